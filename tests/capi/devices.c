/* One process, one thread, many devices; counts that divide by nothing; a large buffer; a call that
 * must not wait for its peer. */
#include "oxccl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DEVICES = 6, COUNT = 1001 };

#define CHECK(call)                                                              \
  do {                                                                           \
    if ((call) != ncclSuccess) {                                                 \
      fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #call,              \
              ncclGetLastError(NULL));                                           \
      exit(1);                                                                   \
    }                                                                            \
  } while (0)

int main(void) {
  ncclComm_t comms[DEVICES];
  double *in[DEVICES], *out[DEVICES];
  CHECK(ncclCommInitAll(comms, DEVICES, NULL));
  for (int d = 0; d < DEVICES; d++) {
    CHECK(ncclMemAlloc((void **)&in[d], COUNT * sizeof(double)));
    CHECK(ncclMemAlloc((void **)&out[d], COUNT * sizeof(double)));
    for (int i = 0; i < COUNT; i++) in[d][i] = d + i;
  }
  CHECK(ncclGroupStart());
  for (int d = 0; d < DEVICES; d++)
    CHECK(ncclAllReduce(in[d], out[d], COUNT, ncclDouble, ncclAvg, comms[d], NULL));
  CHECK(ncclGroupEnd());
  for (int d = 0; d < DEVICES; d++) {
    CHECK(oxcclDeviceSet(oxcclDeviceHost, d));
    CHECK(oxcclStreamSynchronize(NULL, -1));
    for (int i = 0; i < COUNT; i++) {
      double want = i + (DEVICES - 1) / 2.0;
      if (out[d][i] != want) {
        fprintf(stderr, "device %d element %d: %f, expected %f\n", d, i, out[d][i], want);
        return 1;
      }
    }
  }
  /* Without a group: each call has to return although its peers have not called yet. */
  for (int d = 0; d < DEVICES; d++)
    CHECK(ncclAllReduce(in[d], out[d], COUNT, ncclDouble, ncclMax, comms[d], NULL));
  for (int d = 0; d < DEVICES; d++) {
    CHECK(oxcclDeviceSet(oxcclDeviceHost, d));
    CHECK(oxcclStreamSynchronize(NULL, -1));
    if (out[d][COUNT - 1] != DEVICES - 1 + COUNT - 1) return 1;
  }
  /* A wait that is bounded: the other ranks never call. */
  CHECK(oxcclDeviceSet(oxcclDeviceHost, 0));
  CHECK(ncclAllReduce(in[0], out[0], COUNT, ncclDouble, ncclMax, comms[0], NULL));
  if (oxcclStreamSynchronize(NULL, 2000000) != ncclInProgress) return 1;
  CHECK(oxcclCommSetTimeout(comms[0], 20000000));
  if (oxcclStreamSynchronize(NULL, -1) != ncclRemoteError) return 1;
  if (!strstr(ncclGetLastError(comms[0]), "waited")) return 1;
  oxcclErrorInfo_t info = OXCCL_ERROR_INFO_INITIALIZER;
  CHECK(oxcclCommLastError(comms[0], &info));
  if (info.code != ncclRemoteError || info.rank != 0 || info.peer < 1 || info.opSeq != 2) return 1;
  if (strcmp(info.operation, "all_reduce") != 0) return 1;
  if (ncclAllReduce(in[0], out[0], 1, ncclDouble, ncclMax, comms[0], NULL) != ncclRemoteError) return 1;
  for (int d = 0; d < DEVICES; d++) {
    CHECK(ncclCommDestroy(comms[d]));
    CHECK(ncclMemFree(in[d]));
    CHECK(ncclMemFree(out[d]));
  }
  printf("many devices work in one thread\n");
  return 0;
}
