/* Buffers that the other ranks may read and write in place: from ncclMemAlloc, and registered.
 * oxccl run -n 4 ./07_registered */
#include "check.h"

int main(void) {
  enum { EACH = 1 << 16 };
  ncclComm_t comm;
  oxcclStream_t stream;
  void *handle;
  int *x, *host, rank, nranks, right = 1;
  CHECK(oxcclCommInitEnv(&comm, NULL));
  CHECK(ncclCommUserRank(comm, &rank));
  CHECK(ncclCommCount(comm, &nranks));
  CHECK(oxcclStreamCreate(&stream));
  size_t bytes = (size_t)nranks * EACH * sizeof *x;
  CHECK(ncclMemAlloc((void **)&x, bytes));
  CHECK(ncclCommRegister(comm, x, bytes, &handle)); /* once, for all calls to come */
  if (!(host = malloc(bytes))) return 1;
  for (int i = 0; i < EACH; i++) host[i] = rank * EACH + i;
  CHECK(oxcclMemcpyAsync(x + rank * EACH, host, EACH * sizeof *x, stream));
  /* In place: this rank's part lies where it belongs. */
  CHECK(ncclAllGather(x + rank * EACH, x, EACH, ncclInt, comm, stream));
  CHECK(oxcclMemcpyAsync(host, x, bytes, stream));
  CHECK(oxcclStreamSynchronize(stream, -1));
  for (int i = 0; i < nranks * EACH; i++) right &= host[i] == i;
  free(host);
  CHECK(ncclCommDeregister(comm, handle));
  CHECK(ncclMemFree(x));
  CHECK(oxcclStreamDestroy(stream));
  CHECK(ncclCommDestroy(comm));
  return verdict(right, rank, nranks, "gathered numbers");
}
