/* One process drives many devices: all GPUs, or four devices of the host. ./02_devices */
#include "check.h"

enum { MOST = 16 };

int main(void) {
  ncclComm_t comms[MOST];
  oxcclStream_t streams[MOST];
  int *x[MOST], sums[MOST], n = 4, index, right = 1;
  oxcclDeviceKind_t kind;
  CHECK(oxcclDeviceGet(&kind, &index));
  if (kind == oxcclDeviceCuda) CHECK(oxcclDeviceCount(kind, &n));
  if (n > MOST) n = MOST;
  CHECK(ncclCommInitAll(comms, n, NULL));
  for (int i = 0; i < n; i++) {
    CHECK(oxcclDeviceSet(kind, i)); /* what is made from here on belongs to device i */
    CHECK(oxcclStreamCreate(&streams[i]));
    CHECK(oxcclMemAlloc((void **)&x[i], sizeof *x[i]));
    sums[i] = i + 1;
    CHECK(oxcclMemcpyAsync(x[i], &sums[i], sizeof *x[i], streams[i]));
  }
  CHECK(ncclGroupStart()); /* one thread makes the calls of all ranks: they belong together */
  for (int i = 0; i < n; i++) {
    CHECK(ncclAllReduce(x[i], x[i], 1, ncclInt, ncclSum, comms[i], streams[i]));
  }
  CHECK(ncclGroupEnd());
  for (int i = 0; i < n; i++) {
    CHECK(oxcclMemcpyAsync(&sums[i], x[i], sizeof *x[i], streams[i]));
    CHECK(oxcclStreamSynchronize(streams[i], -1));
    right &= sums[i] == n * (n + 1) / 2;
  }
  for (int i = 0; i < n; i++) {
    CHECK(oxcclMemFree(x[i]));
    CHECK(oxcclStreamDestroy(streams[i]));
    CHECK(ncclCommDestroy(comms[i]));
  }
  return verdict(right, 0, 1, "sums on all devices");
}
