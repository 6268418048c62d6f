/* Bad arguments: the right code, and a text that names the argument and its value. */
#include "oxccl.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int failures;

static void expect(ncclResult_t have, ncclResult_t want, const char *text, const char *what) {
  const char *got = ncclGetLastError(NULL);
  if (have != want || (text && !strstr(got, text))) {
    fprintf(stderr, "%s: code %d, expected %d; text \"%s\", expected \"%s\"\n", what, have, want,
            got, text ? text : "");
    failures++;
  }
}

#define EXPECT(call, code, text) expect((call), (code), (text), #call)

static void creation(void) {
  ncclComm_t comm = NULL;
  ncclUniqueId id, empty;
  memset(&empty, 0, sizeof empty);
  EXPECT(ncclGetUniqueId(NULL), ncclInvalidArgument, "uniqueId is null");
  EXPECT(ncclGetUniqueId(&id), ncclSuccess, NULL);
  EXPECT(ncclCommInitRank(NULL, 1, id, 0), ncclInvalidArgument, "comm is null");
  EXPECT(ncclCommInitRank(&comm, 0, id, 0), ncclInvalidArgument, "nranks is 0");
  EXPECT(ncclCommInitRank(&comm, -3, id, 0), ncclInvalidArgument, "nranks is -3");
  EXPECT(ncclCommInitRank(&comm, 2, id, 2), ncclInvalidArgument, "rank is 2");
  EXPECT(ncclCommInitRank(&comm, 2, id, -1), ncclInvalidArgument, "rank is -1");
  EXPECT(ncclCommInitRank(&comm, 1, empty, 0), ncclInvalidArgument, "commId");
  EXPECT(ncclCommInitAll(NULL, 1, NULL), ncclInvalidArgument, "comm is null");
  EXPECT(ncclCommInitAll(&comm, 0, NULL), ncclInvalidArgument, "ndev is 0");
  if (comm != NULL) failures++;
}

static void calls(ncclComm_t comm, cudaStream_t s) {
  int x[8] = {1}, y[8] = {2};
  int number;
  EXPECT(ncclAllReduce(NULL, y, 1, ncclInt, ncclSum, comm, s), ncclInvalidArgument, "sendbuff is null");
  EXPECT(ncclAllReduce(x, NULL, 1, ncclInt, ncclSum, comm, s), ncclInvalidArgument, "recvbuff is null");
  EXPECT(ncclAllReduce(NULL, NULL, 0, ncclInt, ncclSum, comm, s), ncclSuccess, NULL);
  EXPECT(ncclAllReduce(x, y, 1, (ncclDataType_t)12, ncclSum, comm, s), ncclInvalidArgument, "datatype is 12");
  EXPECT(ncclAllReduce(x, y, 1, (ncclDataType_t)-1, ncclSum, comm, s), ncclInvalidArgument, "datatype is -1");
  EXPECT(ncclAllReduce(x, y, 1, ncclInt, (ncclRedOp_t)77, comm, s), ncclInvalidArgument, "op is 77");
  EXPECT(ncclAllReduce(x, y, (size_t)-1, ncclInt, ncclSum, comm, s), ncclInvalidArgument, "count is");
  EXPECT(ncclAllReduce(x, y, 1, ncclInt, ncclSum, NULL, s), ncclInvalidArgument, "comm is null");
  EXPECT(ncclAllReduce(x, y, 1, ncclInt, ncclSum, (ncclComm_t)x, s), ncclInvalidArgument, "no handle");
  EXPECT(ncclAllReduce(x, y, 1, ncclInt, ncclSum, comm, (cudaStream_t)x), ncclInvalidArgument, "stream");
  EXPECT(ncclBroadcast(x, y, 1, ncclInt, 1, comm, s), ncclInvalidArgument, "root is 1");
  EXPECT(ncclReduce(x, y, 1, ncclInt, ncclSum, -1, comm, s), ncclInvalidArgument, "root is -1");
  EXPECT(ncclSend(x, 1, ncclInt, 5, comm, s), ncclInvalidArgument, "peer is 5");
  EXPECT(ncclSend(x, 1, ncclInt, 0, comm, s), ncclInvalidUsage, "to itself");
  EXPECT(ncclRecv(NULL, 1, ncclInt, 0, comm, s), ncclInvalidArgument, "recvbuff is null");
  EXPECT(ncclGroupEnd(), ncclInvalidUsage, "without ncclGroupStart");
  /* An error within a group: nothing of it is launched, and the next group works. */
  EXPECT(ncclGroupStart(), ncclSuccess, NULL);
  EXPECT(ncclAllReduce(x, y, 1, ncclInt, ncclSum, comm, s), ncclSuccess, NULL);
  EXPECT(ncclSend(x, 1, ncclInt, 9, comm, s), ncclInvalidArgument, "peer is 9");
  EXPECT(ncclGroupEnd(), ncclInvalidArgument, "peer is 9");
  EXPECT(oxcclStreamSynchronize(s, -1), ncclSuccess, NULL);
  if (y[0] != 2) failures++;
  EXPECT(ncclGroupStart(), ncclSuccess, NULL);
  EXPECT(ncclSend(x, 8, ncclInt, 0, comm, s), ncclSuccess, NULL);
  EXPECT(ncclRecv(y, 8, ncclInt, 0, comm, s), ncclSuccess, NULL);
  EXPECT(ncclGroupEnd(), ncclSuccess, NULL);
  EXPECT(oxcclStreamSynchronize(s, -1), ncclSuccess, NULL);
  if (y[0] != 1) failures++;
  EXPECT(ncclCommCount(comm, NULL), ncclInvalidArgument, "count is null");
  EXPECT(ncclCommUserRank(comm, NULL), ncclInvalidArgument, "rank is null");
  EXPECT(ncclCommGetAsyncError(comm, NULL), ncclInvalidArgument, "asyncError is null");
  EXPECT(ncclGetVersion(NULL), ncclInvalidArgument, "version is null");
  EXPECT(ncclGetVersion(&number), ncclSuccess, NULL);
  if (number != NCCL_VERSION_CODE || number != NCCL_VERSION(2, 32, 3)) failures++;
}

static void objects(ncclComm_t comm) {
  cudaStream_t s;
  oxcclEvent_t e;
  void *p = NULL;
  int local;
  oxcclErrorInfo_t info = OXCCL_ERROR_INFO_INITIALIZER;
  EXPECT(oxcclStreamCreate(NULL), ncclInvalidArgument, "null");
  EXPECT(oxcclStreamCreate(&s), ncclSuccess, NULL);
  EXPECT(oxcclStreamEndCapture(s, NULL), ncclInvalidArgument, "graph is null");
  EXPECT(oxcclStreamDestroy(s), ncclSuccess, NULL);
  EXPECT(oxcclStreamDestroy(s), ncclInvalidArgument, "was destroyed");
  EXPECT(oxcclStreamSynchronize(s, -1), ncclInvalidArgument, "was destroyed");
  EXPECT(oxcclEventCreate(&e), ncclSuccess, NULL);
  EXPECT(oxcclEventRecord(e, s), ncclInvalidArgument, "stream");
  EXPECT(oxcclEventDestroy(e), ncclSuccess, NULL);
  EXPECT(oxcclEventQuery(e), ncclInvalidArgument, "was destroyed");
  EXPECT(oxcclGraphLaunch(NULL, NULL), ncclInvalidArgument, "exec is null");
  EXPECT(ncclMemAlloc(NULL, 1), ncclInvalidArgument, "ptr is null");
  EXPECT(ncclMemAlloc(&p, (size_t)-1), ncclInvalidArgument, "size is");
  EXPECT(ncclMemFree(&local), ncclInvalidArgument, "ptr is");
  EXPECT(ncclMemFree(NULL), ncclSuccess, NULL);
  EXPECT(oxcclDeviceSet(oxcclDeviceCuda, 0), ncclInvalidUsage, "no usable CUDA device");
  EXPECT(oxcclDeviceSet((oxcclDeviceKind_t)9, 0), ncclInvalidArgument, "kind is 9");
  EXPECT(oxcclLastError(&info), ncclSuccess, NULL);
  if (info.code != ncclInvalidArgument || !strstr(info.text, "kind is 9")) failures++;
  info.size = 3;
  EXPECT(oxcclLastError(&info), ncclInvalidArgument, "size is 3");
  /* As a program knows the structure whose text had 512 bytes. */
  info.size = offsetof(oxcclErrorInfo_t, text) + 512;
  memset(info.text, 'x', sizeof info.text);
  EXPECT(oxcclLastError(&info), ncclSuccess, NULL);
  if (!strstr(info.text, "size is 3") || info.text[512] != 'x') failures++;
  info.size = sizeof info;
  EXPECT(oxcclCommLastError(comm, &info), ncclSuccess, NULL);
  if (info.code != 0) failures++;
}

int main(void) {
  ncclComm_t comm;
  creation();
  expect(ncclCommInitAll(&comm, 1, NULL), ncclSuccess, NULL, "ncclCommInitAll");
  calls(comm, NULL);
  objects(comm);
  EXPECT(ncclCommDestroy(comm), ncclSuccess, NULL);
  EXPECT(ncclCommDestroy(comm), ncclInvalidArgument, "was destroyed");
  EXPECT(ncclCommDestroy(NULL), ncclSuccess, NULL);
  printf(failures ? "%d failures\n" : "all arguments are checked\n", failures);
  return failures != 0;
}
