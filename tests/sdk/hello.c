/* An all-reduce of all ranks; alone where nobody started more. */
#include <stdio.h>

#include "oxccl.h"

#define CHECK(call)                                              \
  do {                                                           \
    if ((call) != ncclSuccess) {                                 \
      fprintf(stderr, #call ": %s\n", ncclGetLastError(NULL));   \
      return 1;                                                  \
    }                                                            \
  } while (0)

int main(void) {
  ncclComm_t comm;
  oxcclStream_t stream;
  float *x;
  int rank, nranks;
  CHECK(oxcclCommInitEnv(&comm, NULL));
  CHECK(ncclCommUserRank(comm, &rank));
  CHECK(ncclCommCount(comm, &nranks));
  CHECK(oxcclStreamCreate(&stream));
  CHECK(oxcclMemAlloc((void **)&x, 1000 * sizeof *x));
  for (int i = 0; i < 1000; i++) x[i] = (float)(rank + i);
  CHECK(ncclAllReduce(x, x, 1000, ncclFloat, ncclSum, comm, stream));
  CHECK(oxcclStreamSynchronize(stream, -1));
  for (int i = 0; i < 1000; i++) {
    if (x[i] != (float)(nranks * (nranks - 1) / 2 + nranks * i)) return 2;
  }
  CHECK(oxcclMemFree(x));
  CHECK(oxcclStreamDestroy(stream));
  CHECK(ncclCommDestroy(comm));
  printf("rank %d of %d: all right\n", rank, nranks);
  return 0;
}
