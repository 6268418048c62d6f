/* The last rank vanishes; the others learn which one it was and go on without it:
 * oxccl run -n 4 ./08_lost_rank */
#include <unistd.h>

#include "check.h"

/* The number of ranks by an all-reduce. */
static ncclResult_t count(ncclComm_t comm, oxcclStream_t stream, int *x, int *ranks) {
  ncclResult_t code;
  *ranks = 1;
  if ((code = oxcclMemcpyAsync(x, ranks, sizeof *x, stream)) != ncclSuccess) return code;
  if ((code = ncclAllReduce(x, x, 1, ncclInt, ncclSum, comm, stream)) != ncclSuccess) return code;
  if ((code = oxcclMemcpyAsync(ranks, x, sizeof *x, stream)) != ncclSuccess) return code;
  return oxcclStreamSynchronize(stream, -1);
}

int main(void) {
  oxcclErrorInfo_t error = OXCCL_ERROR_INFO_INITIALIZER;
  ncclComm_t comm, rest;
  oxcclStream_t stream;
  int *x, rank, nranks, ranks, right;
  CHECK(oxcclCommInitEnv(&comm, NULL));
  CHECK(ncclCommUserRank(comm, &rank));
  CHECK(ncclCommCount(comm, &nranks));
  CHECK(oxcclStreamCreate(&stream));
  CHECK(oxcclMemAlloc((void **)&x, sizeof *x));
  if (nranks < 2) {
    fprintf(stderr, "start it on two ranks or more\n");
    return 1;
  }
  CHECK(count(comm, stream, x, &ranks));
  right = ranks == nranks;
  if (rank == nranks - 1) _exit(0); /* without a word to anyone */
  while (count(comm, stream, x, &ranks) == ncclSuccess) continue;
  CHECK(oxcclCommLastError(comm, &error));
  int lost = error.peer;
  right &= error.code == ncclRemoteError && lost == nranks - 1;
  CHECK(ncclCommShrink(comm, &lost, 1, &rest, NULL, NCCL_SHRINK_ABORT));
  CHECK(ncclCommAbort(comm));
  CHECK(count(rest, stream, x, &ranks));
  right &= ranks == nranks - 1;
  CHECK(oxcclMemFree(x));
  CHECK(oxcclStreamDestroy(stream));
  CHECK(ncclCommDestroy(rest));
  return verdict(right, rank, nranks, "count of those who are left");
}
