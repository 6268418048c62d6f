/* Forks in the middle of work: the child gets an error with a text from every call that takes or makes
 * something, and ends however it likes; the parent goes on. Before anything but an id exists, a fork is
 * harmless. */
#include "nccl_device.h"
#include "oxccl.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { FORKS = 40, COUNT = 100000 };

#define CHECK(condition)                                                                     \
  do {                                                                                       \
    if (!(condition)) {                                                                      \
      fprintf(stderr, "%s:%d: %s is false: %s\n", __FILE__, __LINE__, #condition,            \
              ncclGetLastError(NULL));                                                       \
      _exit(1);                                                                              \
    }                                                                                        \
  } while (0)

static ncclComm_t comms[2];
static cudaStream_t streams[2];
static oxcclEvent_t event;
static oxcclGraphExec_t exec;
static oxcclGraph_t graph;
static ncclUniqueId id;
static ncclWindow_t window;
static ncclRedOp_t user_op;
static int *in[2], *out[2];
static atomic_int stop;

static int refusals;

static void refused(ncclResult_t result, const char *call) {
  if (result != ncclInvalidUsage || !strstr(ncclGetLastError(NULL), "forked")) {
    fprintf(stderr, "child: %s: code %d: %s\n", call, result, ncclGetLastError(NULL));
    _exit(1);
  }
  refusals++;
}
#define REFUSED(call) refused((call), #call)
/* Returns no code, but nothing. */
#define NOTHING(none) refused((none) ? ncclInvalidUsage : ncclSuccess, #none)

/* A line for every function that takes or makes something. */
static void child(void) {
  ncclComm_t comm = comms[0], made;
  cudaStream_t stream = streams[0], made_stream;
  oxcclErrorInfo_t info = OXCCL_ERROR_INFO_INITIALIZER;
  oxcclEvent_t made_event;
  ncclResult_t code;
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  ncclParamHandle_t variable;
  ncclUniqueId fresh;
  const char **keys, *text;
  uint64_t value;
  int number, excluded = 1;
  const size_t counts[2] = {1, 0}, displs[2] = {0, 0};
  ncclWaitSignalDesc_t awaited = {1, 1, 0, 0};
  ncclCommProperties_t properties = NCCL_COMM_PROPERTIES_INITIALIZER;
  ncclTeam_t team = {2, 0, 1};
  ncclRedOp_t op = user_op;
  ncclWindow_t made_window;
  void *ptr;
  float ms;
  REFUSED(ncclAllReduce(in[0], out[0], 1, ncclInt, ncclSum, comm, stream));
  REFUSED(ncclBroadcast(in[0], out[0], 1, ncclInt, 0, comm, stream));
  REFUSED(ncclBcast(in[0], 1, ncclInt, 0, comm, stream));
  REFUSED(ncclReduce(in[0], out[0], 1, ncclInt, ncclSum, 0, comm, stream));
  REFUSED(ncclReduceScatter(in[0], out[0], 1, ncclInt, ncclSum, comm, stream));
  REFUSED(ncclAllGather(in[0], out[0], 1, ncclInt, comm, stream));
  REFUSED(ncclAlltoAll(in[0], out[0], 1, ncclInt, comm, stream));
  REFUSED(ncclGather(in[0], out[0], 1, ncclInt, 0, comm, stream));
  REFUSED(ncclScatter(in[0], out[0], 1, ncclInt, 0, comm, stream));
  REFUSED(ncclSend(in[0], 1, ncclInt, 0, comm, stream));
  REFUSED(ncclRecv(out[0], 1, ncclInt, 0, comm, stream));
  REFUSED(ncclCommFinalize(comm));
  REFUSED(ncclCommDestroy(comm));
  REFUSED(ncclCommGetAsyncError(comm, &code));
  REFUSED(ncclCommCount(comm, &number));
  REFUSED(ncclCommCuDevice(comm, &number));
  REFUSED(ncclCommUserRank(comm, &number));
  REFUSED(oxcclCommLastError(comm, &info));
  REFUSED(oxcclCommSetTimeout(comm, -1));
  REFUSED(ncclCommSplit(comm, 0, 0, &made, NULL));
  REFUSED(ncclCommShrink(comm, &excluded, 1, &made, NULL, NCCL_SHRINK_ABORT));
  REFUSED(ncclCommGrow(comm, 3, &id, -1, &made, NULL));
  REFUSED(ncclCommGrow(NULL, 3, &id, 2, &made, NULL));
  REFUSED(ncclCommGetUniqueId(comm, &fresh));
  REFUSED(ncclCommAbort(comm));
  REFUSED(ncclCommRevoke(comm, NCCL_REVOKE_DEFAULT));
  REFUSED(ncclCommSuspend(comm, NCCL_SUSPEND_MEM));
  REFUSED(ncclCommResume(comm));
  REFUSED(ncclCommMemStats(comm, ncclStatGpuMemTotal, &value));
  REFUSED(ncclCommInitRankConfig(&made, 1, id, 0, &config));
  REFUSED(ncclCommInitRankScalable(&made, 1, 0, 1, &id, NULL));
  REFUSED(ncclGetUniqueId(&fresh));
  REFUSED(ncclCommInitRank(&made, 1, id, 0));
  REFUSED(ncclCommInitAll(&made, 1, NULL));
  REFUSED(oxcclCommInitEnv(&made, NULL));
  REFUSED(ncclMemAlloc(&ptr, 100));
  REFUSED(oxcclMemAlloc(&ptr, 100));
  REFUSED(ncclMemFree(in[0]));
  REFUSED(oxcclMemFree(in[0]));
  REFUSED(oxcclMemcpyAsync(out[0], in[0], 4, stream));
  REFUSED(oxcclMemsetAsync(out[0], 1, 4, stream));
  REFUSED(oxcclStreamCreate(&made_stream));
  REFUSED(oxcclStreamDestroy(stream));
  REFUSED(oxcclStreamQuery(stream));
  REFUSED(oxcclStreamSynchronize(stream, -1));
  REFUSED(oxcclStreamSynchronize(NULL, -1));
  REFUSED(oxcclStreamWaitEvent(stream, event));
  REFUSED(oxcclStreamHostFunc(stream, free, NULL));
  REFUSED(oxcclEventCreate(&made_event));
  REFUSED(oxcclEventDestroy(event));
  REFUSED(oxcclEventRecord(event, stream));
  REFUSED(oxcclEventQuery(event));
  REFUSED(oxcclEventElapsedTime(&ms, event, event));
  REFUSED(oxcclStreamBeginCapture(stream, oxcclCaptureGlobal));
  REFUSED(oxcclStreamEndCapture(stream, &graph));
  REFUSED(oxcclGraphInstantiate(&exec, graph));
  REFUSED(oxcclGraphExecUpdate(exec, graph));
  REFUSED(oxcclGraphLaunch(exec, stream));
  REFUSED(oxcclGraphDestroy(graph, exec));
  REFUSED(oxcclAllGatherv(in[0], 1, out[0], counts, displs, ncclInt, comm, stream));
  REFUSED(oxcclReduceScatterv(in[0], out[0], counts, ncclInt, ncclSum, comm, stream));
  REFUSED(oxcclAlltoAllv(in[0], counts, displs, out[0], counts, displs, ncclInt, comm, stream));
  REFUSED(oxcclGatherv(in[0], 1, out[0], counts, displs, ncclInt, 0, comm, stream));
  REFUSED(oxcclScatterv(in[0], counts, displs, out[0], 1, ncclInt, 0, comm, stream));
  REFUSED(ncclPutSignal(in[0], 1, ncclInt, 0, window, 0, 0, 0, 0, comm, stream));
  REFUSED(ncclSignal(1, 0, 0, 0, comm, stream));
  REFUSED(ncclWaitSignal(1, &awaited, comm, stream));
  REFUSED(ncclCommRegister(comm, in[0], 4, &ptr));
  REFUSED(ncclCommDeregister(comm, in[0]));
  REFUSED(ncclCommWindowRegister(comm, in[0], 4, &made_window, NCCL_WIN_DEFAULT));
  REFUSED(ncclCommWindowDeregister(comm, window));
  REFUSED(ncclWinGetUserPtr(comm, window, &ptr));
  REFUSED(ncclRedOpCreatePreMulSum(&op, in[0], ncclInt, ncclScalarHostImmediate, comm));
  REFUSED(ncclRedOpDestroy(op, comm));
  REFUSED(ncclCommQueryProperties(comm, &properties));
  REFUSED(oxcclCommInPlace(comm, &value));
  REFUSED(oxcclCommByCopyEngines(comm, &value));
  REFUSED(oxcclSetLog(3, NULL, NULL));
  NOTHING(ncclTeamWorld(comm).nRanks == 0);
  NOTHING(ncclTeamLsa(comm).nRanks == 0);
  NOTHING(ncclTeamRail(comm).nRanks == 0);
  NOTHING(ncclTeamRankToWorld(comm, team, 0) == -1);
  NOTHING(ncclTeamRankToLsa(comm, team, 0) == -1);
  REFUSED(ncclGroupSimulateEnd(NULL));
  REFUSED(ncclGroupEnd());
  /* These need nothing of the parent's. */
  CHECK(oxcclSetInitTimeout(-1) == ncclSuccess);
  CHECK(ncclGetVersion(&number) == ncclSuccess);
  CHECK(oxcclLastError(&info) == ncclSuccess && strstr(info.text, "forked"));
  CHECK(strstr(ncclGetLastError(comm), "forked"));
  CHECK(refusals == 85);
  /* Variables were read before. */
  CHECK(ncclParamBind(&variable, "OXCCL_INIT_TIMEOUT") == ncclSuccess);
  CHECK(ncclParamGetU64(variable, &value) == ncclSuccess && value > 0);
  CHECK(ncclParamGetI64(variable, (int64_t *)&value) == ncclSuccess && value > 0);
  CHECK(ncclParamGetStr(variable, &text) == ncclSuccess && *text);
  CHECK(ncclParamGetParameter("NCCL_DEBUG", &text, &number) == ncclSuccess && number > 0);
  CHECK(ncclParamGet(variable, &value, sizeof value, &number) == ncclSuccess && number == 8);
  CHECK(ncclParamGetAllParameterKeys(&keys, &number) == ncclSuccess && number > 0);
  /* The parent's threads may have been writing a line. */
  CHECK(ncclParamBind(NULL, NULL) == ncclInvalidArgument);
  ncclParamDumpAll();
  CHECK(strstr(ncclGetLastError(NULL), "forked"));
  CHECK(ncclParamBind(NULL, NULL) == ncclInvalidArgument);
  ncclResetDebugInit();
  CHECK(strstr(ncclGetLastError(NULL), "forked"));
}

/* Keeps the library's locks busy while the others fork. */
static void *hammer(void *unused) {
  (void)unused;
  while (!atomic_load(&stop)) {
    void *p;
    cudaStream_t s;
    int number;
    CHECK(ncclMemAlloc(&p, 70000) == ncclSuccess && ncclMemFree(p) == ncclSuccess);
    CHECK(oxcclStreamCreate(&s) == ncclSuccess && oxcclStreamDestroy(s) == ncclSuccess);
    CHECK(ncclCommCount(comms[1], &number) == ncclSuccess);
    CHECK(ncclCommCount(NULL, &number) == ncclInvalidArgument);
  }
  return NULL;
}

static void all_reduce(int rank) {
  CHECK(ncclAllReduce(in[rank], out[rank], COUNT, ncclInt, ncclSum, comms[rank], streams[rank]) ==
        ncclSuccess);
}

static void finish(pid_t pid) {
  int status;
  CHECK(waitpid(pid, &status, 0) == pid);
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
    fprintf(stderr, "a child ended with status %#x\n", status);
    _exit(1);
  }
}

/* The parent has made an id only: both may join. */
static void early(void) {
  ncclComm_t comm;
  int one = 1, sum = 0;
  CHECK(ncclGetUniqueId(&id) == ncclSuccess);
  pid_t pid = fork();
  CHECK(pid >= 0);
  CHECK(ncclCommInitRank(&comm, 2, id, pid == 0) == ncclSuccess);
  CHECK(ncclAllReduce(&one, &sum, 1, ncclInt, ncclSum, comm, NULL) == ncclSuccess);
  CHECK(oxcclStreamSynchronize(NULL, -1) == ncclSuccess && sum == 2);
  CHECK(ncclCommDestroy(comm) == ncclSuccess);
  if (pid == 0) _exit(0);
  finish(pid);
}

int main(void) {
  pthread_t thread;
  early();
  CHECK(ncclGetUniqueId(&id) == ncclSuccess);
  CHECK(ncclCommInitAll(comms, 2, NULL) == ncclSuccess);
  CHECK(oxcclEventCreate(&event) == ncclSuccess);
  for (int r = 0; r < 2; r++) {
    CHECK(oxcclStreamCreate(&streams[r]) == ncclSuccess);
    CHECK(ncclMemAlloc((void **)&in[r], COUNT * sizeof(int)) == ncclSuccess);
    CHECK(ncclMemAlloc((void **)&out[r], COUNT * sizeof(int)) == ncclSuccess);
  }
  CHECK(ncclCommWindowRegister(comms[0], in[0], 4, &window, NCCL_WIN_DEFAULT) == ncclSuccess);
  CHECK(ncclRedOpCreatePreMulSum(&user_op, in[0], ncclInt, ncclScalarDevice, comms[0]) == ncclSuccess);
  CHECK(oxcclStreamBeginCapture(streams[0], oxcclCaptureGlobal) == ncclSuccess);
  CHECK(oxcclStreamEndCapture(streams[0], &graph) == ncclSuccess);
  CHECK(oxcclGraphInstantiate(&exec, graph) == ncclSuccess);
  CHECK(pthread_create(&thread, NULL, hammer, NULL) == 0);
  for (int i = 0; i < FORKS; i++) {
    for (int k = 0; k < COUNT; k++) in[0][k] = in[1][k] = i + k;
    /* One rank's operation is under way; every other time within a group. */
    all_reduce(0);
    if (i % 2) CHECK(ncclGroupStart() == ncclSuccess);
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) {
      /* A hang ends with a signal, which the parent sees. */
      alarm(20);
      if (i % 2 == 0) CHECK(ncclGroupStart() == ncclSuccess);
      child();
      if (i % 3 == 0) _exit(0);
      if (i % 3 == 1) exit(0);
      return 0;
    }
    if (i % 2) CHECK(ncclGroupEnd() == ncclSuccess);
    if (i % 4) finish(pid);
    all_reduce(1);
    for (int r = 0; r < 2; r++) CHECK(oxcclStreamSynchronize(streams[r], -1) == ncclSuccess);
    for (int k = 0; k < COUNT; k++) CHECK(out[0][k] == 2 * (i + k) && out[1][k] == 2 * (i + k));
    if (i % 4 == 0) finish(pid);
  }
  atomic_store(&stop, 1);
  CHECK(pthread_join(thread, NULL) == 0);
  for (int r = 0; r < 2; r++) {
    CHECK(ncclCommDestroy(comms[r]) == ncclSuccess);
    CHECK(ncclMemFree(in[r]) == ncclSuccess && ncclMemFree(out[r]) == ncclSuccess);
  }
  printf("forks do no harm\n");
  return 0;
}
