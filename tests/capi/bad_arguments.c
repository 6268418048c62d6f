/* Every function with every kind of bad argument: the code, a text that names the function, the argument
 * and what it is, and outputs that stay untouched. A new function is one line in each list that concerns
 * it, here or in bad_structures.h. Runs plain, under valgrind and with AddressSanitizer. */
#include "bad_options.h"

/* Functions that take a communicator; `is` says what is wrong with it. */
static void communicators(ncclComm_t bad, const char *is) {
  int number = -7;
  ncclResult_t code = (ncclResult_t)-7;
  oxcclErrorInfo_t info = OXCCL_ERROR_INFO_INITIALIZER;
  ncclComm_t made = (ncclComm_t)UNTOUCHED;
  ncclUniqueId id;
  uint64_t value = 7;
  void *place = UNTOUCHED;
  ncclRedOp_t op = ncclMax;
  ncclTeam_t whole = {1, 0, 1};
  ncclCommProperties_t properties = NCCL_COMM_PROPERTIES_INITIALIZER;
  memset(&id, 7, sizeof id);
  options_of_bad(bad, is);
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
  BAD(oxcclAllGatherv(in, 1, out, &one, &zero, ncclInt, bad, stream), "comm", is);
  BAD(oxcclReduceScatterv(in, out, &one, ncclInt, ncclSum, bad, stream), "comm", is);
  BAD(oxcclAlltoAllv(in, &one, &zero, out, &one, &zero, ncclInt, bad, stream), "comm", is);
  BAD(oxcclGatherv(in, 1, out, &one, &zero, ncclInt, 0, bad, stream), "comm", is);
  BAD(oxcclScatterv(in, &one, &zero, out, 1, ncclInt, 0, bad, stream), "comm", is);
  BAD(ncclPutSignal(in, 1, ncclInt, 0, window, 0, 0, 0, 0, bad, stream), "comm", is);
  BAD(ncclSignal(0, 0, 0, 0, bad, stream), "comm", is);
  BAD(ncclWaitSignal(1, &awaited, bad, stream), "comm", is);
  BAD(oxcclCommInPlace(bad, &value), "comm", is);
  BAD(oxcclCommByCopyEngines(bad, &value), "comm", is);
  BAD(ncclCommRegister(bad, in, sizeof in, &place), "comm", is);
  BAD(ncclCommDeregister(bad, in), "comm", is);
  BAD(ncclCommWindowRegister(bad, in, sizeof in, (ncclWindow_t *)&place, NCCL_WIN_DEFAULT), "comm", is);
  BAD(ncclCommWindowDeregister(bad, window), "comm", is);
  BAD(ncclWinGetUserPtr(bad, window, &place), "comm", is);
  BAD(ncclRedOpCreatePreMulSum(&op, in, ncclInt, ncclScalarHostImmediate, bad), "comm", is);
  BAD(ncclRedOpDestroy(op, bad), "comm", is);
  NONE(ncclTeamWorld(bad).nRanks, 0, "comm", is);
  NONE(ncclTeamLsa(bad).nRanks, 0, "comm", is);
  NONE(ncclTeamRail(bad).nRanks, 0, "comm", is);
  NONE(ncclTeamRankToWorld(bad, whole, 0), -1, "comm", is);
  NONE(ncclTeamRankToLsa(bad, whole, 0), -1, "comm", is);
  BAD(ncclCommQueryProperties(bad, &properties), "comm", is);
  if (place != UNTOUCHED || op != ncclMax || properties.nRanks != 0) failures++;
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
  BAD(oxcclAllGatherv(in, 1, out, &one, &zero, ncclInt, comm, bad), "stream", is);
  BAD(oxcclReduceScatterv(in, out, &one, ncclInt, ncclSum, comm, bad), "stream", is);
  BAD(oxcclAlltoAllv(in, &one, &zero, out, &one, &zero, ncclInt, comm, bad), "stream", is);
  BAD(oxcclGatherv(in, 1, out, &one, &zero, ncclInt, 0, comm, bad), "stream", is);
  BAD(oxcclScatterv(in, &one, &zero, out, 1, ncclInt, 0, comm, bad), "stream", is);
  BAD(ncclPutSignal(in, 1, ncclInt, 0, window, 0, 0, 0, 0, comm, bad), "stream", is);
  BAD(ncclSignal(0, 0, 0, 0, comm, bad), "stream", is);
  BAD(ncclWaitSignal(1, &awaited, comm, bad), "stream", is);
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
  BAD(oxcclCommInPlace(comm, NULL), "count", "null");
  BAD(oxcclCommByCopyEngines(comm, NULL), "count", "null");
  BAD(ncclCommRegister(comm, in, sizeof in, NULL), "handle", "null");
  BAD(ncclCommWindowRegister(comm, in, sizeof in, NULL, NCCL_WIN_DEFAULT), "win", "null");
  BAD(ncclWinGetUserPtr(comm, window, NULL), "outUserPtr", "null");
  BAD(ncclRedOpCreatePreMulSum(NULL, in, ncclInt, ncclScalarDevice, comm), "op", "null");
  BAD(ncclCommQueryProperties(comm, NULL), "props", "null");
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
  void *place = UNTOUCHED;
  ncclRedOp_t op = ncclMax;
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
  BAD(oxcclAllGatherv(NULL, 1, out, &one, &zero, ncclInt, comm, stream), "sendbuff", "null");
  BAD(oxcclAllGatherv(in, 1, NULL, &one, &zero, ncclInt, comm, stream), "recvbuff", "null");
  BAD(oxcclAllGatherv(in, 1, out, NULL, &zero, ncclInt, comm, stream), "recvcounts", "null");
  BAD(oxcclAllGatherv(in, 1, out, &one, NULL, ncclInt, comm, stream), "recvdispls", "null");
  BAD(oxcclReduceScatterv(NULL, out, &one, ncclInt, ncclSum, comm, stream), "sendbuff", "null");
  BAD(oxcclReduceScatterv(in, NULL, &one, ncclInt, ncclSum, comm, stream), "recvbuff", "null");
  BAD(oxcclReduceScatterv(in, out, NULL, ncclInt, ncclSum, comm, stream), "counts", "null");
#define ALLTOALLV(send, counts, displs, recv, recvcounts, recvdispls, argument)                   \
  BAD(oxcclAlltoAllv(send, counts, displs, recv, recvcounts, recvdispls, ncclInt, comm, stream), \
      argument, "null")
  ALLTOALLV(NULL, &one, &zero, out, &one, &zero, "sendbuff");
  ALLTOALLV(in, NULL, &zero, out, &one, &zero, "sendcounts");
  ALLTOALLV(in, &one, NULL, out, &one, &zero, "senddispls");
  ALLTOALLV(in, &one, &zero, NULL, &one, &zero, "recvbuff");
  ALLTOALLV(in, &one, &zero, out, NULL, &zero, "recvcounts");
  ALLTOALLV(in, &one, &zero, out, &one, NULL, "recvdispls");
  BAD(oxcclGatherv(NULL, 1, out, &one, &zero, ncclInt, 0, comm, stream), "sendbuff", "null");
  BAD(oxcclGatherv(in, 1, NULL, &one, &zero, ncclInt, 0, comm, stream), "recvbuff", "null");
  BAD(oxcclGatherv(in, 1, out, NULL, &zero, ncclInt, 0, comm, stream), "recvcounts", "null");
  BAD(oxcclGatherv(in, 1, out, &one, NULL, ncclInt, 0, comm, stream), "recvdispls", "null");
  BAD(oxcclScatterv(NULL, &one, &zero, out, 1, ncclInt, 0, comm, stream), "sendbuff", "null");
  BAD(oxcclScatterv(in, NULL, &zero, out, 1, ncclInt, 0, comm, stream), "sendcounts", "null");
  BAD(oxcclScatterv(in, &one, NULL, out, 1, ncclInt, 0, comm, stream), "senddispls", "null");
  BAD(oxcclScatterv(in, &one, &zero, NULL, 1, ncclInt, 0, comm, stream), "recvbuff", "null");
  BAD(ncclPutSignal(NULL, 1, ncclInt, 0, window, 0, 0, 0, 0, comm, stream), "localbuff", "null");
  BAD(ncclWaitSignal(1, NULL, comm, stream), "signalDescs", "null");
  BAD(ncclCommRegister(comm, NULL, 4, &place), "buff", "null");
  BAD(ncclCommWindowRegister(comm, NULL, 4, (ncclWindow_t *)&place, 0), "buff", "null");
  BAD(ncclRedOpCreatePreMulSum(&op, NULL, ncclInt, ncclScalarDevice, comm), "scalar", "null");
  if (place != UNTOUCHED || op != ncclMax) failures++;
  BAD(oxcclMemcpyAsync(NULL, in, 4, stream), "dst", "null");
  BAD(oxcclMemcpyAsync(out, NULL, 4, stream), "src", "null");
  BAD(oxcclMemsetAsync(NULL, 1, 4, stream), "dst", "null");
  BAD(oxcclStreamHostFunc(stream, NULL, NULL), "func", "null");
  if (out[0] != 0) failures++;
}

/* Operations that one rank carries out alone, with numbers that do not exist. */
static void one_sided(int n, const char *is) {
  ncclWaitSignalDesc_t count = awaited, peer = awaited, signal = awaited, context = awaited;
  ncclDataType_t type = (ncclDataType_t)n;
  void *place = UNTOUCHED;
  char of_context[64];
  snprintf(of_context, sizeof of_context, "0 in context %s", is);
  BAD(ncclPutSignal(in, 1, type, 0, window, 0, 0, 0, 0, comm, stream), "datatype", is);
  BAD(ncclPutSignal(in, 1, ncclInt, n, window, 0, 0, 0, 0, comm, stream), "peer", is);
  BAD(ncclPutSignal(in, 1, ncclInt, 0, window, 0, n, 0, 0, comm, stream), "sigIdx", is);
  BAD(ncclPutSignal(in, 1, ncclInt, 0, window, 0, 0, n, 0, comm, stream), "sigIdx", of_context);
  BAD(ncclPutSignal(in, 1, ncclInt, 0, window, 0, 0, 0, (unsigned)n, comm, stream), "flags", "");
  BAD(ncclSignal(n, 0, 0, 0, comm, stream), "peer", is);
  BAD(ncclSignal(0, n, 0, 0, comm, stream), "sigIdx", is);
  BAD(ncclSignal(0, 0, n, 0, comm, stream), "sigIdx", of_context);
  BAD(ncclSignal(0, 0, 0, (unsigned)n, comm, stream), "flags", "");
  peer.peer = signal.sigIdx = context.ctx = n;
  BAD(ncclWaitSignal(1, &peer, comm, stream), "signalDescs.peer", is);
  BAD(ncclWaitSignal(1, &signal, comm, stream), "sigIdx", is);
  BAD(ncclWaitSignal(1, &context, comm, stream), "sigIdx", of_context);
  if (n < 0) {
    count.opCnt = n;
    BAD(ncclWaitSignal(1, &count, comm, stream), "signalDescs.opCnt", is);
    BAD(ncclWaitSignal(n, &awaited, comm, stream), "nDesc", is);
  }
  BAD(ncclCommWindowRegister(comm, in, sizeof in, (ncclWindow_t *)&place, n), "winFlags", is);
  if (place != UNTOUCHED) failures++;
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
  BAD(oxcclAllGatherv(in, 1, out, &one, &zero, type, comm, stream), "datatype", is);
  BAD(oxcclReduceScatterv(in, out, &one, type, ncclSum, comm, stream), "datatype", is);
  BAD(oxcclAlltoAllv(in, &one, &zero, out, &one, &zero, type, comm, stream), "datatype", is);
  BAD(oxcclGatherv(in, 1, out, &one, &zero, type, 0, comm, stream), "datatype", is);
  BAD(oxcclScatterv(in, &one, &zero, out, 1, type, 0, comm, stream), "datatype", is);
  BAD(oxcclReduceScatterv(in, out, &one, ncclInt, op, comm, stream), "op", is);
  BAD(oxcclGatherv(in, 1, out, &one, &zero, ncclInt, n, comm, stream), "root", is);
  BAD(oxcclScatterv(in, &one, &zero, out, 1, ncclInt, n, comm, stream), "root", is);
  one_sided(n, is);
  ncclRedOp_t user = ncclMax;
  ncclScalarResidence_t residence = (ncclScalarResidence_t)n;
  BAD(ncclRedOpCreatePreMulSum(&user, in, type, ncclScalarDevice, comm), "datatype", is);
  BAD(ncclRedOpCreatePreMulSum(&user, in, ncclInt, residence, comm), "residence", is);
  BAD(ncclRedOpDestroy(op, comm), "op", is);
  ncclTeam_t whole = {1, 0, 1};
  NONE(ncclTeamRankToWorld(comm, whole, n), -1, "rank", is);
  NONE(ncclTeamRankToLsa(comm, whole, n), -1, "rank", is);
  BAD(oxcclSetLog(n, NULL, NULL), "level", is);
  if (user != ncclMax) failures++;
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
  char of_rank[64];
  snprintf(of_rank, sizeof of_rank, "%s for rank 0", is);
  BAD(oxcclAllGatherv(in, n, out, &one, &zero, ncclInt, comm, stream), "sendcount", is);
  BAD(oxcclAllGatherv(in, 1, out, &n, &zero, ncclInt, comm, stream), "recvcounts", of_rank);
  BAD(oxcclAllGatherv(in, 1, out, &one, &n, ncclInt, comm, stream), "recvdispls", of_rank);
  BAD(oxcclReduceScatterv(in, out, &n, ncclInt, ncclSum, comm, stream), "counts", of_rank);
  BAD(oxcclAlltoAllv(in, &n, &zero, out, &one, &zero, ncclInt, comm, stream), "sendcounts", of_rank);
  BAD(oxcclAlltoAllv(in, &one, &n, out, &one, &zero, ncclInt, comm, stream), "senddispls", of_rank);
  BAD(oxcclAlltoAllv(in, &one, &zero, out, &n, &zero, ncclInt, comm, stream), "recvcounts", of_rank);
  BAD(oxcclAlltoAllv(in, &one, &zero, out, &one, &n, ncclInt, comm, stream), "recvdispls", of_rank);
  BAD(oxcclGatherv(in, n, out, &one, &zero, ncclInt, 0, comm, stream), "sendcount", is);
  BAD(oxcclGatherv(in, 1, out, &n, &zero, ncclInt, 0, comm, stream), "recvcounts", of_rank);
  BAD(oxcclGatherv(in, 1, out, &one, &n, ncclInt, 0, comm, stream), "recvdispls", of_rank);
  BAD(oxcclScatterv(in, &n, &zero, out, 1, ncclInt, 0, comm, stream), "sendcounts", of_rank);
  BAD(oxcclScatterv(in, &one, &n, out, 1, ncclInt, 0, comm, stream), "senddispls", of_rank);
  BAD(oxcclScatterv(in, &one, &zero, out, n, ncclInt, 0, comm, stream), "recvcount", is);
  BAD(ncclPutSignal(in, n, ncclInt, 0, window, 0, 0, 0, 0, comm, stream), "count", is);
  BAD(ncclPutSignal(in, 1, ncclInt, 0, window, n, 0, 0, 0, comm, stream), "peerWinOffset", is);
  if (n == (size_t)-1) {
    BAD(ncclCommRegister(comm, in, n, &ptr), "size", is);
    BAD(ncclCommWindowRegister(comm, in, n, (ncclWindow_t *)&ptr, 0), "size", is);
  }
  BAD(oxcclMemcpyAsync(out, in, n, stream), "bytes", is);
  BAD(oxcclMemsetAsync(out, 1, n, stream), "bytes", is);
  BAD(ncclMemAlloc(&ptr, n), "size", is);
  BAD(oxcclMemAlloc(&ptr, n), "size", is);
  if (ptr != UNTOUCHED || out[0] != 0) failures++;
}

/* Handles of registered memory. */
static void windows(ncclWindow_t bad, const char *is) {
  void *place = UNTOUCHED;
  BAD(ncclCommDeregister(comm, bad), "handle", is);
  BAD(ncclCommWindowDeregister(comm, bad), "win", is);
  BAD(ncclWinGetUserPtr(comm, bad, &place), "win", is);
  BAD(ncclPutSignal(in, 1, ncclInt, 0, bad, 0, 0, 0, 0, comm, stream), "peerWin", is);
  if (place != UNTOUCHED) failures++;
}

/* What is said of an address from which a call touches more than there is. */
static const char *beyond(const void *from, size_t touched, size_t left) {
  static char is[128];
  snprintf(is, sizeof is, "%p, of which the call touches %zu bytes; expected at most the %zu bytes", from,
           touched, left);
  return is;
}

/* Buffers from ncclMemAlloc of 25 numbers, which end before the call does. */
static void short_buffers(void) {
  const size_t nine[3] = {9, 9, 9}, places[3] = {0, 9, 18}, two = 2, last = 24;
  int *s, *r;
  void *place;
  ncclWindow_t win;
  FINE(ncclMemAlloc((void **)&s, 100));
  FINE(ncclMemAlloc((void **)&r, 100));
  BAD(ncclAllReduce(s, out, 26, ncclInt, ncclSum, comm, stream), "sendbuff", beyond(s, 104, 100));
  BAD(ncclAllReduce(in, r, 26, ncclInt, ncclSum, comm, stream), "recvbuff", beyond(r, 104, 100));
  BAD(ncclAllReduce(in, r + 5, 21, ncclInt, ncclSum, comm, stream), "recvbuff", beyond(r + 5, 84, 80));
  BAD(ncclBroadcast(s, out, 26, ncclInt, 0, comm, stream), "sendbuff", beyond(s, 104, 100));
  BAD(ncclBroadcast(in, r, 26, ncclInt, 0, comm, stream), "recvbuff", beyond(r, 104, 100));
  BAD(ncclBcast(s, 26, ncclInt, 0, comm, stream), "buff", beyond(s, 104, 100));
  BAD(ncclBcast(r, 26, ncclInt, 1, trio[0], stream), "buff", beyond(r, 104, 100));
  BAD(ncclReduce(in, r, 26, ncclInt, ncclSum, 0, comm, stream), "recvbuff", beyond(r, 104, 100));
  BAD(ncclReduceScatter(s, out, 9, ncclInt, ncclSum, trio[0], stream), "sendbuff", beyond(s, 108, 100));
  BAD(ncclAllGather(in, r, 9, ncclInt, trio[0], stream), "recvbuff", beyond(r, 108, 100));
  BAD(ncclAlltoAll(s, out, 9, ncclInt, trio[0], stream), "sendbuff", beyond(s, 108, 100));
  BAD(ncclAlltoAll(in, r, 9, ncclInt, trio[0], stream), "recvbuff", beyond(r, 108, 100));
  BAD(ncclGather(in, r, 9, ncclInt, 0, trio[0], stream), "recvbuff", beyond(r, 108, 100));
  BAD(ncclScatter(s, out, 9, ncclInt, 0, trio[0], stream), "sendbuff", beyond(s, 108, 100));
  BAD(ncclSend(s, 26, ncclInt, 1, trio[0], stream), "sendbuff", beyond(s, 104, 100));
  BAD(ncclRecv(r, 26, ncclInt, 1, trio[0], stream), "recvbuff", beyond(r, 104, 100));
  BAD(ncclPutSignal(s + 20, 6, ncclInt, 0, window, 0, 0, 0, 0, comm, stream), "localbuff",
      beyond(s + 20, 24, 20));
  BAD(oxcclAllGatherv(in, 9, r, nine, places, ncclInt, trio[0], stream), "recvbuff", beyond(r + 18, 36, 28));
  BAD(oxcclReduceScatterv(s, out, nine, ncclInt, ncclSum, trio[0], stream), "sendbuff",
      beyond(s + 18, 36, 28));
  BAD(oxcclReduceScatterv(in, r + 20, nine, ncclInt, ncclSum, trio[0], stream), "recvbuff",
      beyond(r + 20, 36, 20));
  BAD(oxcclAlltoAllv(s, nine, places, out, nine, places, ncclInt, trio[0], stream), "sendbuff",
      beyond(s + 18, 36, 28));
  BAD(oxcclGatherv(in, 2, r, &two, &last, ncclInt, 0, comm, stream), "recvbuff", beyond(r + 24, 8, 4));
  BAD(oxcclScatterv(s, &two, &last, out, 2, ncclInt, 0, comm, stream), "sendbuff", beyond(s + 24, 8, 4));
  BAD(oxcclMemcpyAsync(r, in, 101, stream), "dst", beyond(r, 101, 100));
  BAD(oxcclMemcpyAsync(out, s, 101, stream), "src", beyond(s, 101, 100));
  BAD(oxcclMemsetAsync(r, 0, 101, stream), "dst", beyond(r, 101, 100));
  BAD(ncclCommRegister(comm, s, 101, &place), "size", "101; expected at most 100");
  BAD(ncclCommWindowRegister(comm, s + 1, 97, &win, NCCL_WIN_DEFAULT), "size", "97; expected at most 96");
  /* All of it, its end, and none of it behind. */
  for (int i = 0; i < 25; i++) s[i] = i;
  FINE(ncclAllReduce(s, r, 25, ncclInt, ncclSum, comm, stream));
  FINE(ncclAllReduce(s + 20, r + 20, 5, ncclInt, ncclSum, comm, stream));
  FINE(ncclAllReduce(s + 25, r + 25, 0, ncclInt, ncclSum, comm, stream));
  FINE(oxcclStreamSynchronize(stream, -1));
  if (memcmp(s, r, 100) != 0) failures++;
  FINE(ncclMemFree(s));
  BAD(ncclAllReduce(s, r, 1, ncclInt, ncclSum, comm, stream), "sendbuff", "0x");
  FINE(ncclMemFree(r));
}

static void bad_windows(void) {
  void *registered, *place, *memory;
  ncclWindow_t win, another, many[64];
  int local;
  FINE(ncclMemAlloc(&memory, 64));
  FINE(ncclCommWindowRegister(comm, memory, 64, &win, NCCL_WIN_DEFAULT));
  FINE(ncclCommWindowRegister(trio[0], memory, 64, &another, NCCL_WIN_DEFAULT));
  FINE(ncclCommRegister(comm, in, sizeof in, &registered));
  windows(NULL, "null");
  windows((ncclWindow_t)&local, "0x");
  windows((ncclWindow_t)comm, "0x");
  windows(another, "0x");
  BAD(ncclCommDeregister(comm, win), "handle", "0x");
  BAD(ncclCommDeregister(trio[0], registered), "handle", "0x");
  BAD(ncclCommWindowDeregister(comm, (ncclWindow_t)registered), "win", "0x");
  BAD(ncclWinGetUserPtr(comm, (ncclWindow_t)registered, &place), "win", "0x");
  BAD(ncclPutSignal(in, 1, ncclInt, 0, win, 61, 0, 0, 0, comm, stream), "peerWinOffset", "61, with 4");
  BAD(ncclPutSignal(in, 17, ncclInt, 0, win, 0, 0, 0, 0, comm, stream), "peerWinOffset", "0, with 68");
  BAD(ncclPutSignal(in, 1, ncclInt, 0, win, 0, 16, 0, 0, comm, stream), "sigIdx", "16");
  BAD(ncclCommRegister(comm, in, 0, &place), "size", "0");
  BAD(ncclCommWindowRegister(comm, in, 0, &win, NCCL_WIN_DEFAULT), "size", "0");
  BAD(ncclCommWindowRegister(comm, in, 4, &win, 16), "winFlags", "16");
  USAGE(ncclCommWindowRegister(comm, in, 4, &win, NCCL_WIN_GIN_ONLY), "NCCL_WIN_GIN_ONLY");
  USAGE(ncclCommWindowRegister(comm, in, 4, &win, NCCL_WIN_CFT_COUNTED), "NCCL_WIN_CFT_COUNTED");
  FINE(ncclCommWindowDeregister(comm, win));
  windows(win, "0x");
  FINE(ncclCommDeregister(comm, registered));
  BAD(ncclCommDeregister(comm, registered), "handle", "0x");
  FINE(ncclCommWindowDeregister(trio[0], another));
  /* One more than may be at a time. */
  for (int i = 0; i < 64; i++) FINE(ncclCommWindowRegister(trio[0], memory, 64, &many[i], 0));
  USAGE(ncclCommWindowRegister(trio[0], memory, 64, &win, 0), "64 may be registered at a time");
  for (int i = 0; i < 64; i++) FINE(ncclCommWindowDeregister(trio[0], many[i]));
  FINE(ncclMemFree(memory));
}

/* Operations of the user's own: of another communicator, for another type, destroyed, built in. */
static void bad_operations(void) {
  ncclRedOp_t own, another;
  char is[64];
  FINE(ncclRedOpCreatePreMulSum(&own, in, ncclInt, ncclScalarHostImmediate, comm));
  FINE(ncclRedOpCreatePreMulSum(&another, in, ncclInt, ncclScalarHostImmediate, trio[0]));
  snprintf(is, sizeof is, "%d, ", (int)another);
  BAD(ncclRedOpDestroy(another, comm), "op", is);
  BAD(ncclAllReduce(in, out, 1, ncclInt, another, comm, stream), "op", is);
  BAD(oxcclReduceScatterv(in, out, &one, ncclInt, another, comm, stream), "op", is);
  snprintf(is, sizeof is, "%d, made for", (int)own);
  BAD(ncclReduce(in, out, 1, ncclFloat, own, 0, comm, stream), "op", is);
  BAD(oxcclReduceScatterv(in, out, &one, ncclFloat, own, comm, stream), "op", is);
  BAD(ncclRedOpDestroy(ncclSum, comm), "op", "0, which is built in");
  FINE(ncclRedOpDestroy(own, comm));
  FINE(ncclRedOpDestroy(another, trio[0]));
  snprintf(is, sizeof is, "%d, which was destroyed", (int)own);
  BAD(ncclRedOpDestroy(own, comm), "op", is);
  BAD(ncclReduceScatter(in, out, 1, ncclInt, own, comm, stream), "op", is);
  if (out[0] != 0) failures++;
}

/* Counts per rank that contradict each other. */
static void bad_parts(void) {
  const size_t two = 2, three[3] = {2, 2, 2}, overlapping[3] = {0, 1, 4};
  const char *another = "8 bytes for rank 0 itself";
  BAD(oxcclAllGatherv(in, 1, out, &two, &zero, ncclInt, comm, stream), "recvcounts", another);
  BAD(oxcclAlltoAllv(in, &one, &zero, out, &two, &zero, ncclInt, comm, stream), "recvcounts",
      another);
  BAD(oxcclGatherv(in, 1, out, &two, &zero, ncclInt, 0, comm, stream), "recvcounts", another);
  BAD(oxcclScatterv(in, &one, &zero, out, 2, ncclInt, 0, comm, stream), "recvcounts", another);
  BAD(oxcclAllGatherv(in, 2, out, three, overlapping, ncclInt, trio[0], stream),
      "the receive displacements", "such that the data of ranks 0 and 1 overlap");
  BAD(oxcclAlltoAllv(in, &two, &zero, in + 1, &two, &zero, ncclInt, comm, stream), "sendbuff",
      "such that data for rank 0 lie where data of rank 0 come, too");
  BAD(oxcclReduceScatterv(in, in + 1, &two, ncclInt, ncclSum, comm, stream), "recvbuff",
      "within sendbuff, but not at the block of rank 0");
  if (in[1] != 2 || out[0] != 0) failures++;
}

/* There is nothing on the host that kernels could communicate with, whatever the arguments are. */
static void kernels(void) {
  const char *text = "no kernels on the host device";
  ncclTeam_t team = ncclTeamWorld(comm);
  ncclMultimemHandle_t multimem = {NULL};
  void *place = UNTOUCHED;
  USAGE(ncclDevCommCreate(comm, NULL, NULL), text);
  USAGE(ncclDevCommDestroy(NULL, NULL), text);
  USAGE(ncclGetLsaMultimemDevicePointer(window, 0, &place), text);
  USAGE(ncclGetMultimemDevicePointer(NULL, 0, multimem, &place), text);
  USAGE(ncclGetLsaDevicePointer(window, 0, -1, &place), text);
  USAGE(ncclGetPeerDevicePointer(window, 0, 0, NULL), text);
  USAGE(ncclLsaBarrierCreateRequirement(team, 1, NULL, NULL), text);
  USAGE(ncclGinBarrierCreateRequirement(comm, team, 1, NULL, NULL), text);
  USAGE(ncclLLA2ACreateRequirement(1, -1, NULL, NULL), text);
  USAGE(ncclGinOutboxCreateRequirement(1, 1, NULL, NULL), text);
  USAGE(ncclGinInboxA2ACreateRequirement(team, 1, 1, NULL, NULL), text);
  text = "no counted transfers";
  USAGE(ncclGetMultimemDeviceLeInfo(window, 0, NULL, NULL), text);
  USAGE(ncclGetCftDeviceLeInfo(window, 0, 0, team, NULL, NULL), text);
  USAGE(ncclGetPeerDeviceLeInfo(NULL, 0, -1, NULL, NULL), text);
  USAGE(ncclTeamCft(comm, NCCL_CFT_TEAM_FLAT).nRanks ? ncclSuccess : ncclInvalidUsage, text);
  USAGE(ncclTeamCftMultimem(comm).nRanks ? ncclSuccess : ncclInvalidUsage, text);
  NONE(ncclLLA2ACalcSlots(-1, 8), -1, "maxElts", "-1 × 8 bytes");
  NONE(ncclLLA2ACalcSlots(8, -1), -1, "maxElts", "8 × -1 bytes");
  team.stride = 0;
  NONE(ncclTeamRankToWorld(comm, team, 1), -1, "rank", "1 of ncclTeam");
  NONE(ncclTeamRankToLsa(comm, team, 1), -1, "rank", "1 of ncclTeam");
  if (place != UNTOUCHED) failures++;
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
  BAD(oxcclSetLog(6, NULL, NULL), "level", "6");
  BAD(oxcclSetInitTimeout(-2), "timeoutNs", "-2");
  BAD(oxcclCommSetTimeout(comm, -2), "timeoutNs", "-2");
  BAD(oxcclStreamSynchronize(stream, INT64_MIN), "timeoutNs", "-9223372036854775808");
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
  ncclCollConfig_t config = NCCL_COLLCONFIG_INITIALIZER;
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
  EIGHT(USAGE, out, comm, stream, &config, text);
  USAGE(ncclSend(in, 1, ncclInt, 0, comm, stream), text);
  USAGE(ncclRecv(out, 1, ncclInt, 0, comm, stream), text);
  USAGE(oxcclAllGatherv(in, 1, out, &one, &zero, ncclInt, comm, stream), text);
  USAGE(oxcclReduceScatterv(in, out, &one, ncclInt, ncclSum, comm, stream), text);
  USAGE(oxcclAlltoAllv(in, &one, &zero, out, &one, &zero, ncclInt, comm, stream), text);
  USAGE(oxcclGatherv(in, 1, out, &one, &zero, ncclInt, 0, comm, stream), text);
  USAGE(oxcclScatterv(in, &one, &zero, out, 1, ncclInt, 0, comm, stream), text);
  USAGE(ncclPutSignal(in, 1, ncclInt, 0, window, 0, 0, 0, 0, comm, stream), text);
  USAGE(ncclSignal(0, 0, 0, 0, comm, stream), text);
  USAGE(ncclWaitSignal(1, &awaited, comm, stream), text);
}

int main(void) {
  int local = 0;
  void *memory;
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
  FINE(ncclMemAlloc(&memory, 100));
  FINE(ncclCommWindowRegister(comm, memory, 100, &window, NCCL_WIN_DEFAULT));
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
  bad_answers();
  short_buffers();
  bad_windows();
  bad_operations();
  bad_parts();
  kernels();
  children();
  bad_collective_options(dead_event);
  bad_encryption();

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
  FINE(ncclMemFree(memory));
  FINE(oxcclGraphDestroy(graph, exec));
  FINE(oxcclEventDestroy(event));
  FINE(oxcclStreamDestroy(stream));
  printf(failures ? "%d of %d calls failed\n" : "no failures; all bad arguments are named (%d of %d)\n",
         failures ? failures : calls, calls);
  return failures != 0;
}
