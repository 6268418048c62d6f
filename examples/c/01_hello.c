/* The sum of all ranks' numbers, on every rank: oxccl run -n 4 ./01_hello */
#include "check.h"

int main(void) {
  enum { COUNT = 1000 };
  static float host[COUNT];
  ncclComm_t comm;
  oxcclStream_t stream;
  float *x;
  int rank, nranks, right = 1;
  CHECK(oxcclCommInitEnv(&comm, NULL));
  CHECK(ncclCommUserRank(comm, &rank));
  CHECK(ncclCommCount(comm, &nranks));
  CHECK(oxcclStreamCreate(&stream));
  CHECK(oxcclMemAlloc((void **)&x, sizeof host)); /* of the device: host memory or a GPU's */
  for (int i = 0; i < COUNT; i++) host[i] = (float)(rank + i);
  CHECK(oxcclMemcpyAsync(x, host, sizeof host, stream));
  CHECK(ncclAllReduce(x, x, COUNT, ncclFloat, ncclSum, comm, stream));
  CHECK(oxcclMemcpyAsync(host, x, sizeof host, stream));
  CHECK(oxcclStreamSynchronize(stream, -1)); /* nothing before has waited */
  for (int i = 0; i < COUNT; i++) {
    right &= host[i] == (float)(nranks * (nranks - 1) / 2 + nranks * i);
  }
  CHECK(oxcclMemFree(x));
  CHECK(oxcclStreamDestroy(stream));
  CHECK(ncclCommDestroy(comm));
  return verdict(right, rank, nranks, "sum");
}
