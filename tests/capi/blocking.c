/* NCCL_COMM_BLOCKING, from the environment or a configuration file, decides whether creation and end
 * wait, whatever ncclConfig_t says. The argument is the value in effect. */
#include "oxccl.h"

#include <sched.h>
#include <stdio.h>
#include <string.h>

#define CHECK(condition)                                                                \
  do {                                                                                  \
    if (!(condition)) {                                                                 \
      fprintf(stderr, "line %d: %s is false: %s\n", __LINE__, #condition,               \
              ncclGetLastError(NULL));                                                  \
      return 1;                                                                         \
    }                                                                                   \
  } while (0)

static ncclResult_t completed(ncclComm_t comm) {
  ncclResult_t state;
  ncclResult_t code;
  while ((code = ncclCommGetAsyncError(comm, &state)) == ncclSuccess && state == ncclInProgress)
    sched_yield();
  return code != ncclSuccess ? code : state;
}

int main(int argc, char **argv) {
  int blocking = argc == 2 && strcmp(argv[1], "1") == 0;
  ncclResult_t expected = blocking ? ncclSuccess : ncclInProgress;
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = !blocking;
  for (int configured = 0; configured < 2; configured++) {
    ncclComm_t comm = NULL;
    ncclUniqueId id;
    int in = 7, out = 0;
    CHECK(ncclGetUniqueId(&id) == ncclSuccess);
    if (configured)
      CHECK(ncclCommInitRankConfig(&comm, 1, id, 0, &config) == expected);
    else
      CHECK(ncclCommInitRank(&comm, 1, id, 0) == expected);
    CHECK(comm && completed(comm) == ncclSuccess);
    CHECK(ncclAllReduce(&in, &out, 1, ncclInt, ncclSum, comm, NULL) == ncclSuccess);
    CHECK(oxcclStreamSynchronize(NULL, -1) == ncclSuccess && out == 7);
    CHECK(ncclCommFinalize(comm) == expected);
    CHECK(completed(comm) == ncclSuccess);
    CHECK(ncclCommDestroy(comm) == ncclSuccess);
  }
  printf(blocking ? "calls wait\n" : "calls return\n");
  return 0;
}
