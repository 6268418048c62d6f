/* Two ranks of a process, of which one comes late, to a message, to a collective and to one in a graph: a
 * profiler within the program sees that nothing of the other one's ends before. */
#include <sched.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

#include "nccl_profiler.h"
#include "oxccl.h"

#define OK(call)                                                              \
  do {                                                                        \
    if ((call) != ncclSuccess) {                                              \
      fprintf(stderr, "%s: %s\n", #call, ncclGetLastError(NULL));             \
      exit(1);                                                                \
    }                                                                         \
  } while (0)

/* Whether the late rank has come, and rank 0 has begun to move data; events, and those that ended before. */
static atomic_int has_come, moves, begun, ended, early;

static ncclResult_t init(void **context, uint64_t comm, int *mask, const char *name, int nodes, int ranks,
                         int rank, ncclDebugLogger_t log) {
  (void)comm, (void)name, (void)nodes, (void)ranks, (void)rank, (void)log;
  *mask = ncclProfileColl | ncclProfileP2p | ncclProfileKernelCh;
  *context = &begun;
  return ncclSuccess;
}

static ncclResult_t start_event(void *context, void **handle, ncclProfilerEventDescr_v7_t *of) {
  if (!(of->type & (ncclProfileColl | ncclProfileP2p | ncclProfileKernelCh))) return ncclSuccess;
  begun++;
  *handle = context;
  if (of->type == ncclProfileKernelCh && of->rank == 0) moves = 1;
  return ncclSuccess;
}

static ncclResult_t stop_event(void *handle) {
  (void)handle;
  if (!has_come) early++;
  ended++;
  return ncclSuccess;
}

static ncclResult_t record_state(void *handle, ncclProfilerEventState_t state,
                                 ncclProfilerEventStateArgs_v7_t *args) {
  (void)handle, (void)state, (void)args;
  return ncclSuccess;
}

static ncclResult_t finalize(void *context) {
  (void)context;
  return ncclSuccess;
}

__attribute__((visibility("default"))) ncclProfiler_v7_t ncclProfiler_v7 = {
    "Clock", init, start_event, stop_event, record_state, finalize,
};

static void come_late(void *released) {
  while (sem_wait(released)) continue;
  has_come = 1;
}

static void call(int rank, int collective, ncclComm_t comm, oxcclStream_t stream) {
  static float data[2][256];
  if (collective)
    OK(ncclAllReduce(data[rank], data[rank], 256, ncclFloat, ncclSum, comm, stream));
  else if (rank)
    OK(ncclSend(data[rank], 256, ncclFloat, 0, comm, stream));
  else
    OK(ncclRecv(data[rank], 256, ncclFloat, 1, comm, stream));
}

/* Calls on both ranks, or launches a graph that has captured that. */
static void call_both(int collective, int captured, ncclComm_t *comms, oxcclStream_t *streams,
                      oxcclGraphExec_t *execs) {
  for (int rank = 0; rank < 2 && captured; rank++) OK(oxcclStreamBeginCapture(streams[rank], oxcclCaptureGlobal));
  OK(ncclGroupStart());
  for (int rank = 0; rank < 2; rank++) call(rank, collective, comms[rank], streams[rank]);
  OK(ncclGroupEnd());
  for (int rank = 0; rank < 2 && captured; rank++) {
    oxcclGraph_t graph;
    OK(oxcclStreamEndCapture(streams[rank], &graph));
    OK(oxcclGraphInstantiate(&execs[rank], graph));
    OK(oxcclGraphDestroy(graph, NULL));
    OK(oxcclGraphLaunch(execs[rank], streams[rank]));
  }
}

int main(void) {
  ncclComm_t comms[2];
  oxcclGraphExec_t execs[2];
  oxcclStream_t streams[2];
  OK(ncclCommInitAll(comms, 2, NULL));
  for (int rank = 0; rank < 2; rank++) OK(oxcclStreamCreate(&streams[rank]));
  for (int turn = 0; turn < 3; turn++) {
    int before = begun;
    sem_t released;
    sem_init(&released, 0, 0);
    has_come = moves = 0;
    OK(oxcclStreamHostFunc(streams[1], come_late, &released));
    call_both(turn > 0, turn == 2, comms, streams, execs);
    while (!moves) sched_yield();
    sem_post(&released);
    for (int rank = 0; rank < 2; rank++) OK(oxcclStreamSynchronize(streams[rank], -1));
    while (ended < begun) sched_yield();
    /* An operation and a channel of each rank. */
    if (begun != before + 4) return 2;
  }
  for (int rank = 0; rank < 2; rank++) {
    OK(oxcclGraphDestroy(NULL, execs[rank]));
    OK(ncclCommDestroy(comms[rank]));
    OK(oxcclStreamDestroy(streams[rank]));
  }
  printf("%d events, %d ended early\n", begun, early);
  return early || !begun;
}
