/* NCCL's guide, example 4: several communicators per device, those that block and those that do not; and
 * what else of CUDA's runtime there is: events, host functions, graphs. */
#include <mpi.h>

/* nccl.h first: it includes CUDA's header itself. */
#include "nccl.h"

#include "check.h"

enum { COMMS = 2, COUNT = 1000 };

static void twice(void *number) { *(int *)number *= 2; }

/* All-reduces on a communicator, at once and from a graph. */
static void use(ncclComm_t comm, int rank, int ranks, cudaStream_t stream) {
  float *send, *recv, ms = -1;
  int number = 21;
  cudaEvent_t start, end;
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  CUDA(cudaMalloc((void **)&send, COUNT * sizeof(float)));
  CUDA(cudaMalloc((void **)&recv, COUNT * sizeof(float)));
  CUDA(cudaEventCreate(&start));
  CUDA(cudaEventCreate(&end));
  fill(send, COUNT, (float)rank);
  CUDA(cudaEventRecord(start, stream));
  NCCL(ncclAllReduce(send, recv, COUNT, ncclFloat, ncclSum, comm, stream));
  CUDA(cudaLaunchHostFunc(stream, twice, &number));
  CUDA(cudaEventRecord(end, stream));
  CUDA(cudaStreamWaitEvent(stream, start, 0));
  CUDA(cudaStreamSynchronize(stream));
  CUDA(cudaEventElapsedTime(&ms, start, end));
  CUDA(cudaEventQuery(end));
  if (ms < 0 || number != 42) FAILED("the stream", "wrong");
  expect(recv, COUNT, (float)(ranks * (ranks - 1) / 2), ranks);
  CUDA(cudaMemset(recv, 0, COUNT * sizeof(float)));
  CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
  NCCL(ncclAllReduce(send, recv, COUNT, ncclFloat, ncclSum, comm, stream));
  CUDA(cudaStreamEndCapture(stream, &graph));
  CUDA(cudaGraphInstantiate(&exec, graph, 0));
  for (int i = 0; i < 3; i++) CUDA(cudaGraphLaunch(exec, stream));
  CUDA(cudaStreamSynchronize(stream));
  expect(recv, COUNT, (float)(ranks * (ranks - 1) / 2), ranks);
  CUDA(cudaGraphExecDestroy(exec));
  CUDA(cudaGraphDestroy(graph));
  CUDA(cudaEventDestroy(start));
  CUDA(cudaEventDestroy(end));
  CUDA(cudaFree(send));
  CUDA(cudaFree(recv));
}

int main(int argc, char **argv) {
  int own, ranks;
  ncclUniqueId id;
  ncclResult_t state;
  ncclComm_t blocking[COMMS], others[COMMS];
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  cudaStream_t stream;
  config.blocking = 0;
  MPI(MPI_Init(&argc, &argv));
  MPI(MPI_Comm_rank(MPI_COMM_WORLD, &own));
  MPI(MPI_Comm_size(MPI_COMM_WORLD, &ranks));
  CUDA(cudaSetDevice(own));
  CUDA(cudaStreamCreate(&stream));
  for (int i = 0; i < COMMS; i++) {
    if (own == 0) NCCL(ncclGetUniqueId(&id));
    MPI(MPI_Bcast((void *)&id, sizeof id, MPI_BYTE, 0, MPI_COMM_WORLD));
    NCCL(ncclCommInitRank(&blocking[i], ranks, id, own));
  }
  for (int i = 0; i < COMMS; i++) {
    if (own == 0) NCCL(ncclGetUniqueId(&id));
    MPI(MPI_Bcast((void *)&id, sizeof id, MPI_BYTE, 0, MPI_COMM_WORLD));
    state = ncclCommInitRankConfig(&others[i], ranks, id, own, &config);
    if (state != ncclSuccess && state != ncclInProgress) FAILED("init", ncclGetErrorString(state));
    do NCCL(ncclCommGetAsyncError(others[i], &state));
    while (state == ncclInProgress);
    NCCL(state);
  }
  for (int i = 0; i < COMMS; i++) {
    use(blocking[i], own, ranks, stream);
    use(others[i], own, ranks, stream);
  }
  for (int i = 0; i < COMMS; i++) {
    NCCL(ncclCommDestroy(blocking[i]));
    do NCCL(ncclCommGetAsyncError(others[i], &state));
    while (state == ncclInProgress);
    NCCL(ncclCommDestroy(others[i]));
  }
  /* What is wrong is told, and does no harm. */
  if (cudaSetDevice(-1) != cudaErrorInvalidValue) FAILED("cudaSetDevice(-1)", "accepted");
  if (cudaMalloc(NULL, 1) != cudaErrorInvalidValue) FAILED("cudaMalloc(NULL)", "accepted");
  float *none;
  if (cudaMalloc((void **)&none, SIZE_MAX / 2) == cudaSuccess) FAILED("cudaMalloc", "too much");
  CUDA(cudaStreamDestroy(stream));
  if (cudaStreamSynchronize(stream) == cudaSuccess) FAILED("a stream that is no more", "accepted");
  MPI(MPI_Finalize());
  printf("all right\n");
  return 0;
}
