/* Makes a communicator whose connections are encrypted with the key in the first argument. */
#include <stdio.h>

#include "oxccl.h"

int main(int argc, char **argv) {
  ncclEncryptionConfig_t config = NCCL_ENCRYPTION_CONFIG_INITIALIZER;
  ncclComm_t comm;
  config.mode = NCCL_ENCRYPTION_MODE_PSK;
  config.psk = argv[argc - 1];
  if (ncclSetEncryption(&config) || oxcclCommInitEnv(&comm, NULL)) {
    return fprintf(stderr, "%s\n", ncclGetLastError(NULL)), 1;
  }
  return ncclCommDestroy(comm);
}
