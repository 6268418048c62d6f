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
/* Three ranks of one communicator. */
static ncclComm_t trio[3];
static cudaStream_t stream;
static void *const UNTOUCHED = (void *)0x5a5a;

/* Functions that take a communicator; `is` says what is wrong with it. */
static void communicators(ncclComm_t bad, const char *is) {
  int number = -7;
  ncclResult_t code = (ncclResult_t)-7;
  oxcclErrorInfo_t info = OXCCL_ERROR_INFO_INITIALIZER;
  ncclComm_t made = (ncclComm_t)UNTOUCHED;
  ncclUniqueId id;
  uint64_t value = 7;
  memset(&id, 7, sizeof id);
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
  BAD(ncclCommSplit(bad, 0, 0, &made, NULL), "comm", is);
  BAD(ncclCommShrink(bad, in, 1, &made, NULL, NCCL_SHRINK_DEFAULT), "comm", is);
  /* Ranks that join a communicator have none. */
  if (bad != NULL) BAD(ncclCommGrow(bad, 2, NULL, -1, &made, NULL), "comm", is);
  BAD(ncclCommGetUniqueId(bad, &id), "comm", is);
  if (bad != NULL) BAD(ncclCommAbort(bad), "comm", is);
  BAD(ncclCommRevoke(bad, NCCL_REVOKE_DEFAULT), "comm", is);
  BAD(ncclCommSuspend(bad, NCCL_SUSPEND_MEM), "comm", is);
  BAD(ncclCommResume(bad), "comm", is);
  BAD(ncclCommMemStats(bad, ncclStatGpuMemTotal, &value), "comm", is);
  if (made != (ncclComm_t)UNTOUCHED || value != 7 || id.internal[0] != 7) failures++;
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
  BAD(ncclCommInitRankConfig(NULL, 1, id, 0, NULL), "comm", "null");
  BAD(ncclCommInitRankScalable(NULL, 1, 0, 1, &id, NULL), "newcomm", "null");
  BAD(ncclCommSplit(comm, 0, 0, NULL, NULL), "newcomm", "null");
  number = 1;
  BAD(ncclCommShrink(trio[0], &number, 1, NULL, NULL, NCCL_SHRINK_ABORT), "newcomm", "null");
  BAD(ncclCommGrow(comm, 2, &id, -1, NULL, NULL), "newcomm", "null");
  BAD(ncclCommGrow(NULL, 2, &id, 1, NULL, NULL), "newcomm", "null");
  BAD(ncclCommGetUniqueId(comm, NULL), "uniqueId", "null");
  BAD(ncclCommMemStats(comm, ncclStatGpuMemTotal, NULL), "value", "null");
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
  ncclComm_t made = (ncclComm_t)UNTOUCHED;
  ncclUniqueId id;
  uint64_t value = 7;
  int one = 1;
  FINE(ncclGetUniqueId(&id));
  BAD(ncclCommInitAll(&made, n, NULL), "ndev", is);
  BAD(ncclCommInitRank(&made, n, id, 0), "nranks", is);
  BAD(ncclCommInitRank(&made, 2, id, n), "rank", is);
  BAD(ncclCommInitRankConfig(&made, n, id, 0, NULL), "nranks", is);
  BAD(ncclCommInitRankConfig(&made, 2, id, n, NULL), "rank", is);
  BAD(ncclCommInitRankScalable(&made, n, 0, 1, &id, NULL), "nranks", is);
  BAD(ncclCommInitRankScalable(&made, 2, n, 1, &id, NULL), "myrank", is);
  BAD(ncclCommInitRankScalable(&made, 2, 0, n, &id, NULL), "nId", is);
  BAD(ncclCommShrink(trio[0], &one, n, &made, NULL, NCCL_SHRINK_DEFAULT), "excludeRanksCount", is);
  BAD(ncclCommShrink(trio[0], &n, 1, &made, NULL, NCCL_SHRINK_DEFAULT), "excludeRanksList", is);
  BAD(ncclCommShrink(trio[0], &one, 1, &made, NULL, n), "shrinkFlags", is);
  BAD(ncclCommGrow(comm, n, &id, -1, &made, NULL), "nRanks", is);
  BAD(ncclCommGrow(NULL, n, &id, 1, &made, NULL), "nRanks", is);
  BAD(ncclCommGrow(NULL, 2, &id, n, &made, NULL), "rank", is);
  BAD(ncclCommRevoke(comm, n), "revokeFlags", is);
  BAD(ncclCommSuspend(comm, n), "flags", is);
  BAD(ncclCommMemStats(comm, (ncclCommMemStat_t)n, &value), "stat", is);
  if (made != (ncclComm_t)UNTOUCHED || value != 7) failures++;
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

/* Configurations of every function that takes one. */
static void configurations(ncclConfig_t *bad, const char *argument, const char *is) {
  ncclComm_t made = (ncclComm_t)UNTOUCHED;
  ncclUniqueId id;
  int one = 1;
  FINE(ncclGetUniqueId(&id));
  BAD(ncclCommInitRankConfig(&made, 1, id, 0, bad), argument, is);
  BAD(ncclCommInitRankScalable(&made, 1, 0, 1, &id, bad), argument, is);
  BAD(oxcclCommInitEnv(&made, bad), argument, is);
  BAD(ncclCommSplit(comm, 0, 0, &made, bad), argument, is);
  BAD(ncclCommShrink(trio[0], &one, 1, &made, bad, NCCL_SHRINK_DEFAULT), argument, is);
  BAD(ncclCommGrow(comm, 2, &id, -1, &made, bad), argument, is);
  BAD(ncclCommGrow(NULL, 2, &id, 1, &made, bad), argument, is);
  if (made != (ncclComm_t)UNTOUCHED) failures++;
}

static void bad_configurations(void) {
  const size_t sizes[] = {0, 8, 16, 20, 23, 25, 4104, (size_t)1 << 40, (size_t)-1};
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
    /* No byte more than it says, so that valgrind sees what is read beyond. */
    size_t bytes = sizes[i] > 8 && sizes[i] <= sizeof config ? sizes[i] : 8;
    ncclConfig_t *small = (ncclConfig_t *)malloc(bytes);
    char is[64];
    config.size = sizes[i];
    memcpy((void *)small, &config, bytes);
    snprintf(is, sizeof is, "a structure of %zu bytes", sizes[i]);
    configurations(small, "config", is);
    free(small);
  }
  config.size = sizeof config;
  config.magic = 1;
  configurations(&config, "config", "a structure with magic 0x1");
#define FIELD(field, value, text)                         \
  do {                                                    \
    ncclConfig_t bad_field = NCCL_CONFIG_INITIALIZER;     \
    bad_field.maxCTAs = 4;                                \
    bad_field.field = value;                              \
    configurations(&bad_field, #field, text);             \
  } while (0)
  FIELD(blocking, 7, "7");
  FIELD(blocking, -1, "-1");
  FIELD(cgaClusterSize, -1, "-1");
  FIELD(minCTAs, 0, "0");
  FIELD(minCTAs, 5, "5");
  FIELD(maxCTAs, 0, "0");
  FIELD(splitShare, 2, "2");
  FIELD(collnetEnable, -1, "-1");
  FIELD(CTAPolicy, 4, "4");
  FIELD(shrinkShare, 3, "3");
  FIELD(nvlsCTAs, 0, "0");
  FIELD(nChannelsPerNetPeer, 65, "65");
  FIELD(nvlinkCentricSched, 2, "2");
  FIELD(graphUsageMode, 3, "3");
  FIELD(numRmaCtx, -1, "-1");
  FIELD(maxP2pPeers, 0, "0");
  FIELD(graphStreamOrdering, 2, "2");
}

/* Functions that take the handle of a variable. */
static void variables(ncclParamHandle_t bad, const char *is) {
  int64_t number = 7;
  const char *text = NULL;
  int length = 7;
  BAD(ncclParamGetI8(bad, (int8_t *)&number), "h", is);
  BAD(ncclParamGetI16(bad, (int16_t *)&number), "h", is);
  BAD(ncclParamGetI32(bad, (int32_t *)&number), "h", is);
  BAD(ncclParamGetI64(bad, &number), "h", is);
  BAD(ncclParamGetU8(bad, (uint8_t *)&number), "h", is);
  BAD(ncclParamGetU16(bad, (uint16_t *)&number), "h", is);
  BAD(ncclParamGetU32(bad, (uint32_t *)&number), "h", is);
  BAD(ncclParamGetU64(bad, (uint64_t *)&number), "h", is);
  if (strncmp(is, "that of", 7) != 0) {
    BAD(ncclParamGetStr(bad, &text), "h", is);
    BAD(ncclParamGet(bad, &number, sizeof number, &length), "h", is);
  }
  if (number != 7 || text || length != 7) failures++;
}

static void bad_variables(void) {
  ncclParamHandle_t number, text, none = NULL;
  const char *value = NULL, **table = NULL;
  char bytes[4] = "xyz";
  int length = 7;
  FINE(ncclParamBind(&number, "OXCCL_INIT_TIMEOUT"));
  FINE(ncclParamBind(&text, "NCCL_DEBUG"));
  variables(NULL, "null");
  variables((ncclParamHandle_t)&length, "0x");
  variables((ncclParamHandle_t)comm, "0x");
  variables((ncclParamHandle_t)((char *)number + 4096), "0x");
  variables(text, "that of NCCL_DEBUG=");
  BAD(ncclParamBind(NULL, "NCCL_DEBUG"), "out", "null");
  BAD(ncclParamBind(&none, NULL), "key", "null");
  BAD(ncclParamBind(&none, ""), "key", "\"\"");
  BAD(ncclParamBind(&none, "NCCL_DEBG"), "key", "\"NCCL_DEBG\"");
  BAD(ncclParamGetI8(number, NULL), "out", "null");
  BAD(ncclParamGetI16(number, NULL), "out", "null");
  BAD(ncclParamGetI32(number, NULL), "out", "null");
  BAD(ncclParamGetI64(number, NULL), "out", "null");
  BAD(ncclParamGetU8(number, NULL), "out", "null");
  BAD(ncclParamGetU16(number, NULL), "out", "null");
  BAD(ncclParamGetU32(number, NULL), "out", "null");
  BAD(ncclParamGetU64(number, NULL), "out", "null");
  BAD(ncclParamGetStr(text, NULL), "out", "null");
  BAD(ncclParamGet(text, NULL, 4, &length), "out", "null");
  BAD(ncclParamGet(text, bytes, 4, NULL), "len", "null");
  BAD(ncclParamGetParameter(NULL, &value, &length), "key", "null");
  BAD(ncclParamGetParameter("DEBUG", &value, &length), "key", "\"DEBUG\"");
  BAD(ncclParamGetParameter("NCCL_DEBUG", NULL, &length), "value", "null");
  BAD(ncclParamGetParameter("NCCL_DEBUG", &value, NULL), "valueLen", "null");
  BAD(ncclParamGetAllParameterKeys(NULL, &length), "table", "null");
  BAD(ncclParamGetAllParameterKeys(&table, NULL), "tableLen", "null");
  if (none || value || table || length != 7) failures++;
  /* The length that would do is told. */
  BAD(ncclParamGet(number, bytes, -1, &length), "maxLen", "-1");
  BAD(ncclParamGet(number, bytes, 3, &length), "maxLen", "3");
  if (length != 8 || strcmp(bytes, "xyz") != 0) failures++;
}

/* What belongs to one function that makes a communicator from another only. */
static void children(void) {
  ncclComm_t made = (ncclComm_t)UNTOUCHED;
  ncclUniqueId id, ids[2];
  int twice[2] = {1, 1}, own = 0, three = 3, others[2] = {2, 0};
  FINE(ncclCommGetUniqueId(comm, &id));
  memset(ids, 0, sizeof ids);
  BAD(ncclCommInitRankConfig(&made, 1, ids[0], 0, NULL), "commId", "something else");
  BAD(ncclCommInitRankScalable(&made, 1, 0, 1, NULL, NULL), "commIds", "null");
  ids[0] = id;
  BAD(ncclCommInitRankScalable(&made, 2, 0, 2, ids, NULL), "commIds", "something else");
  BAD(ncclCommInitRankScalable(&made, 2, 0, 0, ids, NULL), "nId", "0");
  BAD(ncclCommInitRankScalable(&made, 2, 0, 3, ids, NULL), "nId", "3");
  BAD(ncclCommSplit(comm, -2, 0, &made, NULL), "color", "-2");
  BAD(ncclCommSplit(comm, -2147483647 - 1, 0, &made, NULL), "color", "-2147483648");
  BAD(ncclCommShrink(trio[0], NULL, 1, &made, NULL, 0), "excludeRanksList", "null");
  BAD(ncclCommShrink(trio[0], twice, 0, &made, NULL, 0), "excludeRanksCount", "0");
  BAD(ncclCommShrink(trio[0], twice, 3, &made, NULL, 0), "excludeRanksCount", "3");
  BAD(ncclCommShrink(comm, twice, 1, &made, NULL, 0), "excludeRanksCount", "1");
  BAD(ncclCommShrink(trio[0], twice, 2, &made, NULL, 0), "excludeRanksList", "rank 1 twice");
  BAD(ncclCommShrink(trio[0], &own, 1, &made, NULL, 1), "excludeRanksList",
      "a list with the calling rank 0");
  BAD(ncclCommShrink(trio[2], others, 2, &made, NULL, 1), "excludeRanksList",
      "a list with the calling rank 2");
  BAD(ncclCommShrink(trio[0], &three, 1, &made, NULL, 0), "excludeRanksList", "3");
  BAD(ncclCommShrink(trio[0], twice, 1, &made, NULL, 2), "shrinkFlags", "2");
  BAD(ncclCommGrow(comm, 1, &id, -1, &made, NULL), "nRanks", "1");
  BAD(ncclCommGrow(trio[0], 3, &id, -1, &made, NULL), "nRanks", "3");
  BAD(ncclCommGrow(comm, 2, &id, 0, &made, NULL), "rank", "0");
  BAD(ncclCommGrow(comm, 2, &ids[1], -1, &made, NULL), "uniqueId", "something else");
  BAD(ncclCommGrow(NULL, 2, &ids[1], 1, &made, NULL), "uniqueId", "something else");
  BAD(ncclCommGrow(NULL, 2, NULL, 1, &made, NULL), "uniqueId", "null");
  BAD(ncclCommGrow(NULL, 1, &id, 0, &made, NULL), "nRanks", "1");
  BAD(ncclCommGrow(NULL, 2, &id, 2, &made, NULL), "rank", "2");
  BAD(ncclCommGrow(NULL, 2, &id, -1, &made, NULL), "rank", "-1");
  USAGE(ncclCommGrow(comm, 2, NULL, -1, &made, NULL), "no rank passed an id");
  BAD(ncclCommSuspend(comm, 0), "flags", "0");
  BAD(ncclCommSuspend(comm, 3), "flags", "3");
  BAD(ncclCommMemStats(comm, (ncclCommMemStat_t)4, (uint64_t *)&id), "stat", "4");
  USAGE(ncclCommResume(comm), "not suspended");
  if (made != (ncclComm_t)UNTOUCHED) failures++;
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
  USAGE(oxcclDeviceSet(oxcclDeviceCuda, 0), "no usable CUDA device");
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
  FINE(ncclCommAbort(NULL));
  FINE(ncclMemFree(NULL));
  FINE(oxcclMemFree(NULL));
  FINE(oxcclGraphDestroy(NULL, NULL));
}

/* No operation may come while it rests, nor after it was revoked, nor after the end, which comes in two
 * steps. */
static void no_operations(const char *text) {
  USAGE(ncclCommSuspend(comm, NCCL_SUSPEND_MEM), text);
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
  ncclComm_t aborted;
  oxcclEvent_t event, dead_event;
  oxcclGraph_t graph, dead_graph;
  oxcclGraphExec_t exec, dead_exec;
  ncclComm_t dead_comm;
  const char *alien = "0x", *dead = "0xc";
  FINE(ncclCommInitAll(&comm, 1, NULL));
  FINE(ncclCommInitAll(&dead_comm, 1, NULL));
  FINE(ncclCommInitAll(&aborted, 1, NULL));
  FINE(ncclCommInitAll(trio, 3, NULL));
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
  FINE(ncclCommAbort(aborted));
  FINE(oxcclStreamDestroy(dead_stream));
  FINE(oxcclEventDestroy(dead_event));
  FINE(oxcclGraphDestroy(dead_graph, dead_exec));

  /* Null; the address of something else; a handle of another kind; what was destroyed. */
  communicators(NULL, "null");
  communicators((ncclComm_t)&local, alien);
  communicators((ncclComm_t)stream, alien);
  communicators((ncclComm_t)(size_t)-1, alien);
  communicators(dead_comm, dead);
  communicators(aborted, dead);
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
  bad_configurations();
  bad_variables();
  children();

  /* Everything still works after all that. */
  FINE(ncclAllReduce(in, out, 8, ncclInt, ncclSum, comm, stream));
  FINE(oxcclStreamSynchronize(stream, -1));
  if (memcmp(in, out, sizeof in) != 0) failures++;
  memset(out, 0, sizeof out);
  FINE(ncclCommSuspend(comm, NCCL_SUSPEND_MEM));
  no_operations("suspended");
  FINE(ncclCommResume(comm));
  FINE(ncclCommFinalize(comm));
  no_operations("finalized");
  FINE(ncclCommDestroy(comm));
  communicators(comm, dead);
  comm = trio[0];
  FINE(ncclCommRevoke(comm, NCCL_REVOKE_DEFAULT));
  no_operations("revoked");
  USAGE(ncclCommFinalize(comm), "revoked");
  for (int i = 0; i < 3; i++) FINE(ncclCommAbort(trio[i]));
  FINE(oxcclGraphDestroy(graph, exec));
  FINE(oxcclEventDestroy(event));
  FINE(oxcclStreamDestroy(stream));
  printf(failures ? "%d of %d calls failed\n" : "no failures; all bad arguments are named (%d of %d)\n",
         failures ? failures : calls, calls);
  return failures != 0;
}
