/* C's side of binding-overhead: an all-reduce of 8 bytes of one rank, queued and waited for. */
#include "overhead.h"

#include "oxccl.h"

#define CHECK(call)                                            \
  do {                                                         \
    if ((call) != ncclSuccess) {                               \
      fprintf(stderr, #call ": %s\n", ncclGetLastError(NULL)); \
      exit(1);                                                 \
    }                                                          \
  } while (0)

int main(void) {
  ncclComm_t comm;
  oxcclStream_t stream;
  float *x;
  static double ns[BATCHES];
  CHECK(oxcclCommInitEnv(&comm, NULL));
  CHECK(oxcclStreamCreate(&stream));
  CHECK(oxcclMemAlloc((void **)&x, 8));
  for (int b = 0; b < BATCHES; b++) {
    double start = now_ns();
    for (int i = 0; i < CALLS; i++) CHECK(ncclAllReduce(x, x, 2, ncclFloat, ncclSum, comm, stream));
    ns[b] = now_ns() - start;
    CHECK(oxcclStreamSynchronize(stream, -1));
  }
  report("queued", ns);
  for (int b = 0; b < BATCHES; b++) {
    double start = now_ns();
    for (int i = 0; i < CALLS; i++) {
      CHECK(ncclAllReduce(x, x, 2, ncclFloat, ncclSum, comm, stream));
      CHECK(oxcclStreamSynchronize(stream, -1));
    }
    ns[b] = now_ns() - start;
  }
  report("waited", ns);
  CHECK(oxcclMemFree(x));
  CHECK(oxcclStreamDestroy(stream));
  CHECK(ncclCommDestroy(comm));
  return 0;
}
