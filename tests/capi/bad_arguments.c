/* Every function with every kind of bad argument: the code, a text that names the function, the argument
 * and what it is, and outputs that stay untouched. A new function is one line in each list that concerns
 * it. Runs plain, under valgrind and with AddressSanitizer. */
#include "oxccl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int failures, calls;

/* `call` is the source of the call: the text has to begin with its function's name. */
static void expect(ncclResult_t have, ncclResult_t want, const char *argument, const char *is,
                   const char *call) {
  const char *text = ncclGetLastError(NULL);
  size_t name = strcspn(call, "(");
  char wanted[160];
  snprintf(wanted, sizeof wanted, "argument %s is %s", argument, is);
  calls++;
  if (have != want || strncmp(text, call, name) != 0 || !strstr(text, wanted)) {
    fprintf(stderr, "%s: code %d, expected %d; text \"%s\", expected \"%s\"\n", call, have, want,
            text, wanted);
    failures++;
  }
}

#define BAD(call, argument, is) expect((call), ncclInvalidArgument, argument, is, #call)
#define FINE(call)                                                                       \
  do {                                                                                   \
    calls++;                                                                             \
    if ((call) != ncclSuccess) {                                                         \
      fprintf(stderr, "%s failed: %s\n", #call, ncclGetLastError(NULL));                 \
      failures++;                                                                        \
    }                                                                                    \
  } while (0)

/* Every function has a code for a bad state too: the text says what, and that it is no use. */
static void usage(ncclResult_t have, const char *text, const char *call) {
  calls++;
  if (have != ncclInvalidUsage || !strstr(ncclGetLastError(NULL), text)) {
    fprintf(stderr, "%s: code %d: %s\n", call, have, ncclGetLastError(NULL));
    failures++;
  }
}
#define USAGE(call, text) usage((call), text, #call)

static int in[8] = {1, 2, 3, 4, 5, 6, 7, 8}, out[8];
static ncclComm_t comm;
static cudaStream_t stream;
static void *const UNTOUCHED = (void *)0x5a5a;

/* Functions that take a communicator; `is` says what is wrong with it. */
static void communicators(ncclComm_t bad, const char *is) {
  int number = -7;
  ncclResult_t code = (ncclResult_t)-7;
  oxcclErrorInfo_t info = OXCCL_ERROR_INFO_INITIALIZER;
  BAD(ncclAllReduce(in, out, 1, ncclInt, ncclSum, bad, stream), "comm", is);
  BAD(ncclBroadcast(in, out, 1, ncclInt, 0, bad, stream), "comm", is);
  BAD(ncclBcast(in, 1, ncclInt, 0, bad, stream), "comm", is);
  BAD(ncclReduce(in, out, 1, ncclInt, ncclSum, 0, bad, stream), "comm", is);
  BAD(ncclReduceScatter(in, out, 1, ncclInt, ncclSum, bad, stream), "comm", is);
  BAD(ncclAllGather(in, out, 1, ncclInt, bad, stream), "comm", is);
  BAD(ncclAlltoAll(in, out, 1, ncclInt, bad, stream), "comm", is);
  BAD(ncclGather(in, out, 1, ncclInt, 0, bad, stream), "comm", is);
  BAD(ncclScatter(in, out, 1, ncclInt, 0, bad, stream), "comm", is);
  BAD(ncclSend(in, 1, ncclInt, 0, bad, stream), "comm", is);
  BAD(ncclRecv(out, 1, ncclInt, 0, bad, stream), "comm", is);
  BAD(ncclCommFinalize(bad), "comm", is);
  if (bad != NULL) BAD(ncclCommDestroy(bad), "comm", is);
  BAD(ncclCommGetAsyncError(bad, &code), "comm", is);
  BAD(ncclCommCount(bad, &number), "comm", is);
  BAD(ncclCommCuDevice(bad, &number), "comm", is);
  BAD(ncclCommUserRank(bad, &number), "comm", is);
  BAD(oxcclCommLastError(bad, &info), "comm", is);
  BAD(oxcclCommSetTimeout(bad, -1), "comm", is);
  if (number != -7 || (int)code != -7 || info.text[0] != 0 || out[0] != 0) failures++;
}

/* Functions that take a stream; null is the default stream. */
static void streams(cudaStream_t bad, const char *is, oxcclEvent_t event, oxcclGraphExec_t exec) {
  void *graph = UNTOUCHED;
  BAD(ncclAllReduce(in, out, 1, ncclInt, ncclSum, comm, bad), "stream", is);
  BAD(ncclBroadcast(in, out, 1, ncclInt, 0, comm, bad), "stream", is);
  BAD(ncclBcast(in, 1, ncclInt, 0, comm, bad), "stream", is);
  BAD(ncclReduce(in, out, 1, ncclInt, ncclSum, 0, comm, bad), "stream", is);
  BAD(ncclReduceScatter(in, out, 1, ncclInt, ncclSum, comm, bad), "stream", is);
  BAD(ncclAllGather(in, out, 1, ncclInt, comm, bad), "stream", is);
  BAD(ncclAlltoAll(in, out, 1, ncclInt, comm, bad), "stream", is);
  BAD(ncclGather(in, out, 1, ncclInt, 0, comm, bad), "stream", is);
  BAD(ncclScatter(in, out, 1, ncclInt, 0, comm, bad), "stream", is);
  BAD(ncclSend(in, 1, ncclInt, 0, comm, bad), "stream", is);
  BAD(ncclRecv(out, 1, ncclInt, 0, comm, bad), "stream", is);
  BAD(oxcclMemcpyAsync(out, in, 4, bad), "stream", is);
  BAD(oxcclMemsetAsync(out, 1, 4, bad), "stream", is);
  BAD(oxcclEventRecord(event, bad), "stream", is);
  BAD(oxcclStreamWaitEvent(bad, event), "stream", is);
  BAD(oxcclStreamBeginCapture(bad, oxcclCaptureGlobal), "stream", is);
  BAD(oxcclStreamEndCapture(bad, (oxcclGraph_t *)&graph), "stream", is);
  BAD(oxcclGraphLaunch(exec, bad), "stream", is);
  BAD(oxcclStreamDestroy(bad), "stream", is);
  BAD(oxcclStreamQuery(bad), "stream", is);
  BAD(oxcclStreamSynchronize(bad, -1), "stream", is);
  BAD(oxcclStreamHostFunc(bad, free, NULL), "stream", is);
  if (graph != UNTOUCHED || out[0] != 0) failures++;
}

static void events(oxcclEvent_t bad, const char *is, oxcclEvent_t good) {
  float ms = -7;
  BAD(oxcclEventDestroy(bad), "event", is);
  BAD(oxcclEventRecord(bad, stream), "event", is);
  BAD(oxcclEventQuery(bad), "event", is);
  BAD(oxcclStreamWaitEvent(stream, bad), "event", is);
  BAD(oxcclEventElapsedTime(&ms, bad, good), "start", is);
  BAD(oxcclEventElapsedTime(&ms, good, bad), "end", is);
  if (ms != -7) failures++;
}

static void graphs(oxcclGraph_t bad, oxcclGraphExec_t bad_exec, const char *is, oxcclGraph_t good,
                   oxcclGraphExec_t good_exec) {
  void *exec = UNTOUCHED;
  BAD(oxcclGraphInstantiate((oxcclGraphExec_t *)&exec, bad), "graph", is);
  BAD(oxcclGraphExecUpdate(good_exec, bad), "graph", is);
  BAD(oxcclGraphExecUpdate(bad_exec, good), "exec", is);
  BAD(oxcclGraphLaunch(bad_exec, stream), "exec", is);
  if (bad != NULL) BAD(oxcclGraphDestroy(bad, NULL), "graph", is);
  if (bad_exec != NULL) BAD(oxcclGraphDestroy(NULL, bad_exec), "exec", is);
  if (exec != UNTOUCHED) failures++;
}

/* Places for results that are null. */
static void outputs(oxcclEvent_t event, oxcclGraph_t graph) {
  ncclUniqueId id;
  int number;
  oxcclDeviceKind_t kind;
  FINE(ncclGetUniqueId(&id));
  BAD(ncclGetUniqueId(NULL), "uniqueId", "null");
  BAD(ncclCommInitRank(NULL, 1, id, 0), "comm", "null");
  BAD(ncclCommInitAll(NULL, 1, NULL), "comm", "null");
  BAD(oxcclCommInitEnv(NULL, NULL), "comm", "null");
  BAD(ncclCommGetAsyncError(comm, NULL), "asyncError", "null");
  BAD(ncclCommCount(comm, NULL), "count", "null");
  BAD(ncclCommCuDevice(comm, NULL), "device", "null");
  BAD(ncclCommUserRank(comm, NULL), "rank", "null");
  BAD(ncclGetVersion(NULL), "version", "null");
  BAD(ncclMemAlloc(NULL, 1), "ptr", "null");
  BAD(oxcclMemAlloc(NULL, 1), "ptr", "null");
  BAD(oxcclGetVersion(NULL), "version", "null");
  BAD(oxcclDeviceCount(oxcclDeviceHost, NULL), "count", "null");
  BAD(oxcclDeviceGet(NULL, &number), "kind", "null");
  BAD(oxcclDeviceGet(&kind, NULL), "index", "null");
  BAD(oxcclLastError(NULL), "info", "null");
  BAD(oxcclCommLastError(comm, NULL), "info", "null");
  BAD(oxcclStreamCreate(NULL), "stream", "null");
  BAD(oxcclEventCreate(NULL), "event", "null");
  BAD(oxcclEventElapsedTime(NULL, event, event), "ms", "null");
  BAD(oxcclGraphInstantiate(NULL, graph), "exec", "null");
  /* The capture goes on after that. */
  FINE(oxcclStreamBeginCapture(stream, oxcclCaptureGlobal));
  BAD(oxcclStreamEndCapture(stream, NULL), "graph", "null");
  FINE(oxcclStreamEndCapture(stream, &graph));
  FINE(oxcclGraphDestroy(graph, NULL));
}

/* Buffers that are null although there are elements. */
static void buffers(void) {
  BAD(ncclAllReduce(NULL, out, 1, ncclInt, ncclSum, comm, stream), "sendbuff", "null");
  BAD(ncclAllReduce(in, NULL, 1, ncclInt, ncclSum, comm, stream), "recvbuff", "null");
  BAD(ncclBroadcast(NULL, out, 1, ncclInt, 0, comm, stream), "sendbuff", "null");
  BAD(ncclBroadcast(in, NULL, 1, ncclInt, 0, comm, stream), "recvbuff", "null");
  BAD(ncclBcast(NULL, 1, ncclInt, 0, comm, stream), "buff", "null");
  BAD(ncclReduce(NULL, out, 1, ncclInt, ncclSum, 0, comm, stream), "sendbuff", "null");
  BAD(ncclReduce(in, NULL, 1, ncclInt, ncclSum, 0, comm, stream), "recvbuff", "null");
  BAD(ncclReduceScatter(NULL, out, 1, ncclInt, ncclSum, comm, stream), "sendbuff", "null");
  BAD(ncclReduceScatter(in, NULL, 1, ncclInt, ncclSum, comm, stream), "recvbuff", "null");
  BAD(ncclAllGather(NULL, out, 1, ncclInt, comm, stream), "sendbuff", "null");
  BAD(ncclAllGather(in, NULL, 1, ncclInt, comm, stream), "recvbuff", "null");
  BAD(ncclAlltoAll(NULL, out, 1, ncclInt, comm, stream), "sendbuff", "null");
  BAD(ncclAlltoAll(in, NULL, 1, ncclInt, comm, stream), "recvbuff", "null");
  BAD(ncclGather(NULL, out, 1, ncclInt, 0, comm, stream), "sendbuff", "null");
  BAD(ncclGather(in, NULL, 1, ncclInt, 0, comm, stream), "recvbuff", "null");
  BAD(ncclScatter(NULL, out, 1, ncclInt, 0, comm, stream), "sendbuff", "null");
  BAD(ncclScatter(in, NULL, 1, ncclInt, 0, comm, stream), "recvbuff", "null");
  BAD(ncclSend(NULL, 1, ncclInt, 0, comm, stream), "sendbuff", "null");
  BAD(ncclRecv(NULL, 1, ncclInt, 0, comm, stream), "recvbuff", "null");
  BAD(oxcclMemcpyAsync(NULL, in, 4, stream), "dst", "null");
  BAD(oxcclMemcpyAsync(out, NULL, 4, stream), "src", "null");
  BAD(oxcclMemsetAsync(NULL, 1, 4, stream), "dst", "null");
  BAD(oxcclStreamHostFunc(stream, NULL, NULL), "func", "null");
  if (out[0] != 0) failures++;
}

/* Types, operations, ranks, counts out of range. `n` stands for a number that none of them has. */
static void ranges(int n, const char *is) {
  ncclDataType_t type = (ncclDataType_t)n;
  ncclRedOp_t op = (ncclRedOp_t)n;
  BAD(ncclAllReduce(in, out, 1, type, ncclSum, comm, stream), "datatype", is);
  BAD(ncclBroadcast(in, out, 1, type, 0, comm, stream), "datatype", is);
  BAD(ncclBcast(in, 1, type, 0, comm, stream), "datatype", is);
  BAD(ncclReduce(in, out, 1, type, ncclSum, 0, comm, stream), "datatype", is);
  BAD(ncclReduceScatter(in, out, 1, type, ncclSum, comm, stream), "datatype", is);
  BAD(ncclAllGather(in, out, 1, type, comm, stream), "datatype", is);
  BAD(ncclAlltoAll(in, out, 1, type, comm, stream), "datatype", is);
  BAD(ncclGather(in, out, 1, type, 0, comm, stream), "datatype", is);
  BAD(ncclScatter(in, out, 1, type, 0, comm, stream), "datatype", is);
  BAD(ncclSend(in, 1, type, 0, comm, stream), "datatype", is);
  BAD(ncclRecv(out, 1, type, 0, comm, stream), "datatype", is);
  BAD(ncclAllReduce(in, out, 1, ncclInt, op, comm, stream), "op", is);
  BAD(ncclReduce(in, out, 1, ncclInt, op, 0, comm, stream), "op", is);
  BAD(ncclReduceScatter(in, out, 1, ncclInt, op, comm, stream), "op", is);
  BAD(ncclBroadcast(in, out, 1, ncclInt, n, comm, stream), "root", is);
  BAD(ncclBcast(in, 1, ncclInt, n, comm, stream), "root", is);
  BAD(ncclReduce(in, out, 1, ncclInt, ncclSum, n, comm, stream), "root", is);
  BAD(ncclGather(in, out, 1, ncclInt, n, comm, stream), "root", is);
  BAD(ncclScatter(in, out, 1, ncclInt, n, comm, stream), "root", is);
  BAD(ncclSend(in, 1, ncclInt, n, comm, stream), "peer", is);
  BAD(ncclRecv(out, 1, ncclInt, n, comm, stream), "peer", is);
  BAD(oxcclDeviceCount((oxcclDeviceKind_t)n, &out[1]), "kind", is);
  BAD(oxcclDeviceSet((oxcclDeviceKind_t)n, 0), "kind", is);
  BAD(oxcclStreamBeginCapture(stream, (oxcclCaptureMode_t)n), "mode", is);
  if (out[0] != 0 || out[1] != 0) failures++;
}

static void counts(size_t n, const char *is) {
  void *ptr = UNTOUCHED;
  BAD(ncclAllReduce(in, out, n, ncclInt, ncclSum, comm, stream), "count", is);
  BAD(ncclBroadcast(in, out, n, ncclInt, 0, comm, stream), "count", is);
  BAD(ncclBcast(in, n, ncclInt, 0, comm, stream), "count", is);
  BAD(ncclReduce(in, out, n, ncclInt, ncclSum, 0, comm, stream), "count", is);
  BAD(ncclReduceScatter(in, out, n, ncclInt, ncclSum, comm, stream), "recvcount", is);
  BAD(ncclAllGather(in, out, n, ncclInt, comm, stream), "sendcount", is);
  BAD(ncclAlltoAll(in, out, n, ncclInt, comm, stream), "count", is);
  BAD(ncclGather(in, out, n, ncclInt, 0, comm, stream), "count", is);
  BAD(ncclScatter(in, out, n, ncclInt, 0, comm, stream), "count", is);
  BAD(ncclSend(in, n, ncclInt, 0, comm, stream), "count", is);
  BAD(ncclRecv(out, n, ncclInt, 0, comm, stream), "count", is);
  BAD(oxcclMemcpyAsync(out, in, n, stream), "bytes", is);
  BAD(oxcclMemsetAsync(out, 1, n, stream), "bytes", is);
  BAD(ncclMemAlloc(&ptr, n), "size", is);
  BAD(oxcclMemAlloc(&ptr, n), "size", is);
  if (ptr != UNTOUCHED || out[0] != 0) failures++;
}

/* What belongs to one function only. */
static void others(void) {
  ncclComm_t made = (ncclComm_t)UNTOUCHED;
  ncclUniqueId id, none;
  int devices[2] = {0, -4}, local;
  oxcclErrorInfo_t info = OXCCL_ERROR_INFO_INITIALIZER;
  void *memory;
  memset(&none, 0, sizeof none);
  FINE(ncclGetUniqueId(&id));
  BAD(ncclCommInitRank(&made, 0, id, 0), "nranks", "0");
  BAD(ncclCommInitRank(&made, -1, id, 0), "nranks", "-1");
  BAD(ncclCommInitRank(&made, 1 << 30, id, 0), "nranks", "1073741824");
  BAD(ncclCommInitRank(&made, 2, id, 2), "rank", "2");
  BAD(ncclCommInitRank(&made, 2, id, -1), "rank", "-1");
  BAD(ncclCommInitRank(&made, 1, none, 0), "commId", "");
  BAD(ncclCommInitAll(&made, 0, NULL), "ndev", "0");
  BAD(ncclCommInitAll(&made, -1, NULL), "ndev", "-1");
  BAD(ncclCommInitAll(&made, 2, devices), "devlist", "-4");
  BAD(oxcclDeviceSet(oxcclDeviceHost, -1), "index", "-1");
  USAGE(oxcclDeviceSet(oxcclDeviceCuda, 0), "no CUDA device");
  USAGE(oxcclCommInitEnv(&made, &local), "config is not null");
  BAD(ncclMemFree(&local), "ptr", "0x");
  BAD(oxcclMemFree(&local), "ptr", "0x");
  FINE(ncclMemAlloc(&memory, 100));
  BAD(ncclMemFree((char *)memory + 1), "ptr", "0x");
  FINE(ncclMemFree(memory));
  BAD(ncclMemFree(memory), "ptr", "0x");
  info.size = 3;
  BAD(oxcclLastError(&info), "info->size", "3");
  BAD(oxcclCommLastError(comm, &info), "info->size", "3");
  USAGE(ncclGroupEnd(), "without ncclGroupStart");
  USAGE(oxcclStreamEndCapture(stream, (oxcclGraph_t *)&memory), "not being captured");
  FINE(oxcclStreamBeginCapture(stream, oxcclCaptureGlobal));
  USAGE(oxcclStreamBeginCapture(stream, oxcclCaptureGlobal), "already being captured");
  USAGE(oxcclStreamSynchronize(stream, -1), "being captured");
  FINE(oxcclStreamEndCapture(stream, (oxcclGraph_t *)&memory));
  FINE(oxcclGraphDestroy((oxcclGraph_t)memory, NULL));
  if (made != (ncclComm_t)UNTOUCHED) failures++;
  if (strcmp(ncclGetErrorString((ncclResult_t)99), "unknown result code") != 0) failures++;
  /* These take nothing for null. */
  FINE(ncclCommDestroy(NULL));
  FINE(ncclMemFree(NULL));
  FINE(oxcclMemFree(NULL));
  FINE(oxcclGraphDestroy(NULL, NULL));
}

/* No operation may follow the end, which comes in two steps. */
static void finalized(void) {
  const char *text = "finalized";
  FINE(ncclCommFinalize(comm));
  USAGE(ncclAllReduce(in, out, 1, ncclInt, ncclSum, comm, stream), text);
  USAGE(ncclBroadcast(in, out, 1, ncclInt, 0, comm, stream), text);
  USAGE(ncclBcast(in, 1, ncclInt, 0, comm, stream), text);
  USAGE(ncclReduce(in, out, 1, ncclInt, ncclSum, 0, comm, stream), text);
  USAGE(ncclReduceScatter(in, out, 1, ncclInt, ncclSum, comm, stream), text);
  USAGE(ncclAllGather(in, out, 1, ncclInt, comm, stream), text);
  USAGE(ncclAlltoAll(in, out, 1, ncclInt, comm, stream), text);
  USAGE(ncclGather(in, out, 1, ncclInt, 0, comm, stream), text);
  USAGE(ncclScatter(in, out, 1, ncclInt, 0, comm, stream), text);
  USAGE(ncclSend(in, 1, ncclInt, 0, comm, stream), text);
  USAGE(ncclRecv(out, 1, ncclInt, 0, comm, stream), text);
}

int main(void) {
  int local = 0;
  cudaStream_t dead_stream;
  oxcclEvent_t event, dead_event;
  oxcclGraph_t graph, dead_graph;
  oxcclGraphExec_t exec, dead_exec;
  ncclComm_t dead_comm;
  const char *alien = "0x", *dead = "0xc";
  FINE(ncclCommInitAll(&comm, 1, NULL));
  FINE(ncclCommInitAll(&dead_comm, 1, NULL));
  FINE(oxcclStreamCreate(&stream));
  FINE(oxcclStreamCreate(&dead_stream));
  FINE(oxcclEventCreate(&event));
  FINE(oxcclEventCreate(&dead_event));
  FINE(oxcclStreamBeginCapture(stream, oxcclCaptureGlobal));
  FINE(oxcclStreamEndCapture(stream, &graph));
  FINE(oxcclStreamBeginCapture(stream, oxcclCaptureGlobal));
  FINE(oxcclStreamEndCapture(stream, &dead_graph));
  FINE(oxcclGraphInstantiate(&exec, graph));
  FINE(oxcclGraphInstantiate(&dead_exec, graph));
  FINE(ncclCommDestroy(dead_comm));
  FINE(oxcclStreamDestroy(dead_stream));
  FINE(oxcclEventDestroy(dead_event));
  FINE(oxcclGraphDestroy(dead_graph, dead_exec));

  /* Null; the address of something else; a handle of another kind; what was destroyed. */
  communicators(NULL, "null");
  communicators((ncclComm_t)&local, alien);
  communicators((ncclComm_t)stream, alien);
  communicators((ncclComm_t)(size_t)-1, alien);
  communicators(dead_comm, dead);
  streams((cudaStream_t)&local, alien, event, exec);
  streams((cudaStream_t)comm, alien, event, exec);
  streams(dead_stream, dead, event, exec);
  events(NULL, "null", event);
  events((oxcclEvent_t)&local, alien, event);
  events((oxcclEvent_t)stream, alien, event);
  events(dead_event, dead, event);
  graphs(NULL, NULL, "null", graph, exec);
  graphs((oxcclGraph_t)&local, (oxcclGraphExec_t)&local, alien, graph, exec);
  graphs((oxcclGraph_t)exec, (oxcclGraphExec_t)graph, alien, graph, exec);
  graphs(dead_graph, dead_exec, dead, graph, exec);
  outputs(event, graph);
  buffers();
  ranges(-1, "-1");
  ranges(1 << 20, "1048576");
  ranges(-2147483647 - 1, "-2147483648");
  counts((size_t)-1, "18446744073709551615");
  counts(((size_t)1 << 63), "9223372036854775808");
  others();

  /* Everything still works after all that. */
  FINE(ncclAllReduce(in, out, 8, ncclInt, ncclSum, comm, stream));
  FINE(oxcclStreamSynchronize(stream, -1));
  if (memcmp(in, out, sizeof in) != 0) failures++;
  memset(out, 0, sizeof out);
  finalized();
  FINE(ncclCommDestroy(comm));
  communicators(comm, dead);
  FINE(oxcclGraphDestroy(graph, exec));
  FINE(oxcclEventDestroy(event));
  FINE(oxcclStreamDestroy(stream));
  printf(failures ? "%d of %d calls failed\n" : "no failures; all bad arguments are named (%d of %d)\n",
         failures ? failures : calls, calls);
  return failures != 0;
}
