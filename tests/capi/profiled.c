/* Groups and ends for a profiler to follow: what is not launched, what ends within a group, what waits in
 * a stream while its communicator is aborted, and a graph that outlives its communicator. */
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>

#include "oxccl.h"

#define CHECK(call, expected)                                                            \
  do {                                                                                   \
    ncclResult_t got = (call);                                                           \
    if (got != (expected)) {                                                             \
      fprintf(stderr, "%s returned %d: %s\n", #call, got, ncclGetLastError(NULL));       \
      exit(1);                                                                           \
    }                                                                                    \
  } while (0)
#define OK(call) CHECK(call, ncclSuccess)

static void wait_until_released(void *released) {
  while (sem_wait(released)) continue;
}

int main(void) {
  static float data[256];
  oxcclStream_t stream;
  ncclComm_t comm;
  const int device = 0;
  OK(oxcclStreamCreate(&stream));

  /* A call that fails within a group: nothing is launched. */
  OK(ncclCommInitAll(&comm, 1, &device));
  OK(ncclGroupStart());
  OK(ncclAllReduce(data, data, 256, ncclFloat, ncclSum, comm, stream));
  CHECK(ncclAllReduce(data, data, 256, (ncclDataType_t)99, ncclSum, comm, stream), ncclInvalidArgument);
  CHECK(ncclCommDestroy(comm), ncclInvalidUsage);
  CHECK(ncclGroupEnd(), ncclInvalidArgument);
  /* A group that is only simulated. */
  ncclSimInfo_t info = NCCL_SIM_INFO_INITIALIZER;
  OK(ncclGroupStart());
  OK(ncclAllReduce(data, data, 256, ncclFloat, ncclSum, comm, stream));
  OK(ncclGroupSimulateEnd(&info));
  OK(ncclAllReduce(data, data, 256, ncclFloat, ncclSum, comm, stream));
  OK(oxcclStreamSynchronize(stream, -1));

  /* Calls with tags, alone and in a group. */
  ncclCollConfig_t config = NCCL_COLLCONFIG_INITIALIZER;
  config.userProfilerTag = 71;
  OK(ncclAllReduceConfig(data, data, 256, ncclFloat, ncclSum, comm, stream, &config));
  OK(ncclGroupStart());
  config.userProfilerTag = 72;
  OK(ncclAllReduceConfig(data, data, 256, ncclFloat, ncclSum, comm, stream, &config));
  OK(ncclAllReduce(data, data, 256, ncclFloat, ncclSum, comm, stream));
  OK(ncclGroupEnd());
  OK(oxcclStreamSynchronize(stream, -1));
  OK(ncclCommDestroy(comm));

  /* Messages with blocks of different sizes. */
  OK(ncclCommInitAll(&comm, 1, &device));
  const size_t counts[1] = {64}, places[1] = {0};
  OK(oxcclAllGatherv(data, 64, data + 128, counts, places, ncclFloat, comm, stream));
  OK(oxcclStreamSynchronize(stream, -1));

  /* A communicator that is aborted while an operation waits in a stream. */
  sem_t released;
  sem_init(&released, 0, 0);
  OK(oxcclStreamHostFunc(stream, wait_until_released, &released));
  OK(ncclAllReduce(data, data, 256, ncclFloat, ncclSum, comm, stream));
  OK(ncclCommAbort(comm));
  sem_post(&released);
  oxcclStreamSynchronize(stream, -1);

  /* A graph of a communicator that is gone. */
  oxcclGraph_t graph;
  oxcclGraphExec_t exec;
  OK(ncclCommInitAll(&comm, 1, &device));
  OK(oxcclStreamBeginCapture(stream, oxcclCaptureGlobal));
  OK(ncclAllReduce(data, data, 256, ncclFloat, ncclSum, comm, stream));
  OK(oxcclStreamEndCapture(stream, &graph));
  OK(oxcclGraphInstantiate(&exec, graph));
  OK(oxcclGraphLaunch(exec, stream));
  OK(oxcclStreamSynchronize(stream, -1));
  OK(ncclCommDestroy(comm));
  oxcclGraphLaunch(exec, stream);
  oxcclStreamSynchronize(stream, -1);
  OK(oxcclGraphDestroy(graph, exec));

  /* A communicator that is aborted within a group of its calls. */
  OK(ncclCommInitAll(&comm, 1, &device));
  OK(ncclGroupStart());
  OK(ncclAllReduce(data, data, 256, ncclFloat, ncclSum, comm, stream));
  OK(ncclCommAbort(comm));
  ncclGroupEnd();
  oxcclStreamSynchronize(stream, -1);
  OK(oxcclStreamDestroy(stream));
  puts("all ended");
  return 0;
}
