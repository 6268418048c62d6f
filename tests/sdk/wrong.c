/* Stands before the library and gets things wrong, so that a program which does not look at its results is
 * found out. */
#include "oxccl.h"

ncclResult_t ncclAllReduce(const void *send, void *recv, size_t count, ncclDataType_t type,
                           ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) {
  return pncclAllReduce(send, recv, count, type, op == ncclSum ? ncclMin : ncclSum, comm, stream);
}

ncclResult_t ncclAllGather(const void *send, void *recv, size_t count, ncclDataType_t type,
                           ncclComm_t comm, cudaStream_t stream) {
  ncclResult_t code = pncclAllGather(send, recv, count, type, comm, stream);
  return code == ncclSuccess ? oxcclMemsetAsync(recv, 0x5a, 1, stream) : code;
}

ncclResult_t ncclSend(const void *data, size_t count, ncclDataType_t type, int peer,
                      ncclComm_t comm, cudaStream_t stream) {
  static const double other[1] = {-17};
  (void)data;
  return pncclSend(other, count, type, peer, comm, stream);
}
