/* A net plugin within the program: NCCL_NET_PLUGIN=STATIC_PLUGIN finds it by its symbol. */
#define VERSION 12
#include "../plugins/net.c"
#include "oxccl.h"

#define CHECK(call)                                                                    \
  do {                                                                                 \
    ncclResult_t result = (call);                                                      \
    if (result != ncclSuccess) {                                                       \
      fprintf(stderr, "%s: %s\n", #call, ncclGetLastError(NULL));                      \
      return 1;                                                                        \
    }                                                                                  \
  } while (0)

int main(void) {
  ncclComm_t comm;
  oxcclStream_t stream;
  int rank, nranks;
  CHECK(oxcclCommInitEnv(&comm, NULL));
  CHECK(ncclCommUserRank(comm, &rank));
  CHECK(ncclCommCount(comm, &nranks));
  CHECK(oxcclStreamCreate(&stream));
  int value = rank + 1;
  CHECK(ncclAllReduce(&value, &value, 1, ncclInt, ncclSum, comm, stream));
  CHECK(oxcclStreamSynchronize(stream, -1));
  CHECK(ncclCommDestroy(comm));
  CHECK(oxcclStreamDestroy(stream));
  return value == nranks * (nranks + 1) / 2 ? 0 : 2;
}
