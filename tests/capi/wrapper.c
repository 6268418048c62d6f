/* Counts calls of ncclAllReduce: a profiler's way to get between a program and the library. */
#include "nccl.h"

static int calls;

int wrapped_calls(void);

int wrapped_calls(void) { return calls; }

ncclResult_t ncclAllReduce(const void *sendbuff, void *recvbuff, size_t count,
                           ncclDataType_t datatype, ncclRedOp_t op, ncclComm_t comm,
                           cudaStream_t stream) {
  calls++;
  return pncclAllReduce(sendbuff, recvbuff, count, datatype, op, comm, stream);
}
