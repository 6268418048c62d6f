/* Every collective over 4 processes, through nccl.h and oxccl.h. Compiles as C11 and as C++17.
 * The processes share the unique id through a pipe, as a program without a launcher would. */
#include "oxccl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

enum { RANKS = 4, COUNT = 3000 };

#define CHECK(call)                                                                        \
  do {                                                                                     \
    ncclResult_t result_ = (call);                                                         \
    if (result_ != ncclSuccess) {                                                          \
      fprintf(stderr, "%s:%d: %s: %s: %s\n", __FILE__, __LINE__, #call,                    \
              ncclGetErrorString(result_), ncclGetLastError(NULL));                        \
      exit(1);                                                                             \
    }                                                                                      \
  } while (0)

#define EXPECT(condition)                                                                  \
  do {                                                                                     \
    if (!(condition)) {                                                                    \
      fprintf(stderr, "%s:%d: %s is false: %s\n", __FILE__, __LINE__, #condition,          \
              ncclGetLastError(NULL));                                                     \
      exit(1);                                                                             \
    }                                                                                      \
  } while (0)

static ncclComm_t comm;
static cudaStream_t stream;
static int rank;
static int *in, *out;

static int value(int of, int i) { return of * 1000003 + i * 7 + 1; }

static int sum(int i) {
  int s = 0;
  for (int r = 0; r < RANKS; r++) s += value(r, i);
  return s;
}

static void fill(void) {
  for (int i = 0; i < RANKS * COUNT; i++) {
    in[i] = value(rank, i);
    out[i] = -1;
  }
}

static void wait_all(void) { CHECK(oxcclStreamSynchronize(stream, -1)); }

static void expect(int have, int want, const char *what, int i) {
  if (have != want) {
    fprintf(stderr, "rank %d %s element %d: %d, expected %d\n", rank, what, i, have, want);
    exit(1);
  }
}

static void reductions(void) {
  fill();
  CHECK(ncclAllReduce(in, out, COUNT, ncclInt, ncclSum, comm, stream));
  wait_all();
  for (int i = 0; i < COUNT; i++) expect(out[i], sum(i), "all_reduce", i);
  fill();
  CHECK(pncclReduce(in, out, COUNT, ncclInt32, ncclSum, 2, comm, stream));
  wait_all();
  for (int i = 0; i < COUNT; i++) expect(out[i], rank == 2 ? sum(i) : -1, "reduce", i);
  fill();
  CHECK(ncclReduceScatter(in, out, COUNT, ncclInt32, ncclSum, comm, stream));
  wait_all();
  for (int i = 0; i < COUNT; i++) expect(out[i], sum(rank * COUNT + i), "reduce_scatter", i);
}

static void copies(void) {
  fill();
  CHECK(ncclBroadcast(in, out, COUNT, ncclInt32, 3, comm, stream));
  wait_all();
  for (int i = 0; i < COUNT; i++) expect(out[i], value(3, i), "broadcast", i);
  fill();
  CHECK(ncclBcast(in, COUNT, ncclInt32, 1, comm, stream));
  wait_all();
  for (int i = 0; i < COUNT; i++) expect(in[i], value(1, i), "bcast", i);
  fill();
  CHECK(ncclAllGather(in, out, COUNT, ncclInt32, comm, stream));
  wait_all();
  for (int i = 0; i < RANKS * COUNT; i++) expect(out[i], value(i / COUNT, i % COUNT), "all_gather", i);
  fill();
  CHECK(ncclAlltoAll(in, out, COUNT, ncclInt32, comm, stream));
  wait_all();
  for (int i = 0; i < RANKS * COUNT; i++)
    expect(out[i], value(i / COUNT, rank * COUNT + i % COUNT), "alltoall", i);
  fill();
  CHECK(ncclGather(in, out, COUNT, ncclInt32, 0, comm, stream));
  wait_all();
  for (int i = 0; i < RANKS * COUNT; i++)
    expect(out[i], rank == 0 ? value(i / COUNT, i % COUNT) : -1, "gather", i);
  fill();
  CHECK(ncclScatter(in, out, COUNT, ncclInt32, 1, comm, stream));
  wait_all();
  for (int i = 0; i < COUNT; i++) expect(out[i], value(1, rank * COUNT + i), "scatter", i);
}

static void point_to_point(void) {
  int next = (rank + 1) % RANKS, prev = (rank + RANKS - 1) % RANKS;
  fill();
  CHECK(ncclGroupStart());
  CHECK(ncclSend(in, COUNT, ncclInt32, next, comm, stream));
  CHECK(ncclRecv(out, COUNT, ncclInt32, prev, comm, stream));
  CHECK(ncclGroupEnd());
  wait_all();
  for (int i = 0; i < COUNT; i++) expect(out[i], value(prev, i), "send/recv", i);
}

static void graphs_and_events(void) {
  oxcclGraph_t graph;
  oxcclGraphExec_t exec;
  oxcclEvent_t before, after;
  cudaStream_t side;
  float ms = -1;
  CHECK(oxcclStreamCreate(&side));
  CHECK(oxcclEventCreate(&before));
  CHECK(oxcclEventCreate(&after));
  /* Fork to a second stream and join again, within one capture. */
  CHECK(oxcclStreamBeginCapture(stream, oxcclCaptureGlobal));
  CHECK(oxcclMemcpyAsync(out, in, COUNT * sizeof(int), stream));
  CHECK(oxcclEventRecord(before, stream));
  CHECK(oxcclStreamWaitEvent(side, before));
  CHECK(ncclAllReduce(out, out, COUNT, ncclInt32, ncclSum, comm, side));
  CHECK(oxcclEventRecord(after, side));
  CHECK(oxcclStreamWaitEvent(stream, after));
  CHECK(ncclAllReduce(out, out, COUNT, ncclInt32, ncclMax, comm, stream));
  EXPECT(oxcclStreamSynchronize(stream, -1) == ncclInvalidUsage);
  CHECK(oxcclStreamEndCapture(stream, &graph));
  CHECK(oxcclGraphInstantiate(&exec, graph));
  for (int replay = 0; replay < 50; replay++) {
    for (int i = 0; i < COUNT; i++) in[i] = value(rank, i + replay);
    CHECK(oxcclGraphLaunch(exec, stream));
    wait_all();
    for (int i = 0; i < COUNT; i++) expect(out[i], sum(i + replay), "graph", i);
  }
  CHECK(oxcclGraphExecUpdate(exec, graph));
  CHECK(oxcclGraphDestroy(graph, exec));
  /* A stream that had joined the capture, and events of it, are free again. */
  CHECK(oxcclStreamWaitEvent(side, after));
  CHECK(oxcclMemcpyAsync(out, in, sizeof(int), side));
  CHECK(oxcclStreamSynchronize(side, -1));
  CHECK(oxcclEventRecord(before, stream));
  CHECK(ncclAllReduce(in, out, COUNT, ncclInt32, ncclSum, comm, stream));
  CHECK(oxcclEventRecord(after, stream));
  wait_all();
  CHECK(oxcclEventQuery(after));
  CHECK(oxcclEventElapsedTime(&ms, before, after));
  EXPECT(ms >= 0);
  CHECK(oxcclEventDestroy(before));
  CHECK(oxcclEventDestroy(after));
  CHECK(oxcclStreamDestroy(side));
}

enum call { SUM, SUM_OF_OTHERS, MAXIMUM, OF_LONGS, COPY, TWICE };

static oxcclGraph_t captured(enum call call) {
  oxcclGraph_t graph;
  CHECK(oxcclStreamBeginCapture(stream, oxcclCaptureRelaxed));
  switch (call) {
    case SUM: CHECK(ncclAllReduce(in, out, 2, ncclInt32, ncclSum, comm, stream)); break;
    case SUM_OF_OTHERS: CHECK(ncclAllReduce(out, in, 3, ncclInt32, ncclSum, comm, stream)); break;
    case MAXIMUM: CHECK(ncclAllReduce(in, out, 2, ncclInt32, ncclMax, comm, stream)); break;
    case OF_LONGS: CHECK(ncclAllReduce(in, out, 1, ncclInt64, ncclSum, comm, stream)); break;
    case COPY: CHECK(oxcclMemcpyAsync(out, in, 8, stream)); break;
    case TWICE:
      CHECK(ncclAllReduce(in, out, 2, ncclInt32, ncclSum, comm, stream));
      CHECK(ncclAllReduce(in, out, 2, ncclInt32, ncclSum, comm, stream));
  }
  CHECK(oxcclStreamEndCapture(stream, &graph));
  return graph;
}

/* A graph takes other buffers and counts, but no other calls; what it has refused leaves it as it was. */
static void updates_of_graphs(void) {
  oxcclGraph_t graph = captured(SUM);
  oxcclGraphExec_t exec;
  CHECK(oxcclGraphInstantiate(&exec, graph));
  CHECK(oxcclGraphDestroy(graph, NULL));
  for (int call = SUM_OF_OTHERS; call <= TWICE; call++) {
    ncclResult_t expected = call == SUM_OF_OTHERS ? ncclSuccess : ncclInvalidArgument;
    graph = captured((enum call)call);
    EXPECT(oxcclGraphExecUpdate(exec, graph) == expected);
    CHECK(oxcclGraphDestroy(graph, NULL));
  }
  for (int i = 0; i < 3; i++) out[i] = value(rank, i);
  CHECK(oxcclGraphLaunch(exec, stream));
  wait_all();
  for (int i = 0; i < 3; i++) expect(in[i], sum(i), "updated graph", i);
  CHECK(oxcclGraphDestroy(NULL, exec));
}

static int called;
static void host_function(void *argument) { called = *(int *)argument; }

static void streams(void) {
  int argument = 41 + rank;
  memset(in, 0, COUNT * sizeof(int));
  CHECK(oxcclMemsetAsync(in, 1, COUNT * sizeof(int), stream));
  CHECK(oxcclMemcpyAsync(out, in, COUNT * sizeof(int), stream));
  CHECK(oxcclStreamHostFunc(stream, host_function, &argument));
  wait_all();
  EXPECT(called == argument);
  CHECK(oxcclStreamQuery(stream));
  for (int i = 0; i < COUNT; i++) expect(out[i], 0x01010101, "memset and memcpy", i);
}

static void run(ncclUniqueId id) {
  int number = -1;
  ncclResult_t state = ncclInternalError;
  CHECK(oxcclDeviceSet(oxcclDeviceHost, rank));
  CHECK(ncclCommInitRank(&comm, RANKS, id, rank));
  CHECK(ncclCommCount(comm, &number));
  EXPECT(number == RANKS);
  CHECK(ncclCommUserRank(comm, &number));
  EXPECT(number == rank);
  CHECK(ncclCommCuDevice(comm, &number));
  EXPECT(number == rank);
  CHECK(oxcclStreamCreate(&stream));
  for (int mapped = 0; mapped < 2; mapped++) {
    size_t bytes = RANKS * COUNT * sizeof(int);
    if (mapped) {
      CHECK(ncclMemAlloc((void **)&in, bytes));
      CHECK(oxcclMemAlloc((void **)&out, bytes));
    } else {
      in = (int *)malloc(bytes);
      out = (int *)malloc(bytes);
    }
    reductions();
    copies();
    point_to_point();
    graphs_and_events();
  updates_of_graphs();
    streams();
    if (mapped) {
      CHECK(ncclMemFree(in));
      CHECK(oxcclMemFree(out));
    } else {
      free(in);
      free(out);
    }
  }
  CHECK(ncclCommGetAsyncError(comm, &state));
  EXPECT(state == ncclSuccess);
  CHECK(ncclCommFinalize(comm));
  CHECK(ncclCommDestroy(comm));
  EXPECT(ncclCommCount(comm, &number) == ncclInvalidArgument);
  CHECK(oxcclStreamDestroy(stream));
}

int main(void) {
  int pipes[RANKS][2];
  ncclUniqueId id;
  int failed = 0, status;
  for (int r = 0; r < RANKS; r++) EXPECT(pipe(pipes[r]) == 0);
  for (int r = 0; r < RANKS; r++) {
    if (fork() == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      alarm(60);
      rank = r;
      if (r == 0) {
        CHECK(ncclGetUniqueId(&id));
        for (int to = 1; to < RANKS; to++) EXPECT(write(pipes[to][1], &id, sizeof id) == sizeof id);
      } else {
        EXPECT(read(pipes[r][0], &id, sizeof id) == sizeof id);
      }
      run(id);
      exit(0);
    }
  }
  while (wait(&status) > 0) failed |= status;
  printf("%s\n", failed ? "failed" : "all collectives are right");
  return failed != 0;
}
