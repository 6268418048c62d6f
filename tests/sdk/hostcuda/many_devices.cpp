// NCCL's guide, example 3: two devices per process of MPI, by one thread.
#include "check.h"

#include <mpi.h>

enum { DEVICES = 2, COUNT = 1 << 18 };

int main(int argc, char **argv) {
  int own, processes;
  ncclUniqueId id;
  ncclComm_t comms[DEVICES];
  cudaStream_t streams[DEVICES];
  float *send[DEVICES], *recv[DEVICES];
  MPI(MPI_Init(&argc, &argv));
  MPI(MPI_Comm_rank(MPI_COMM_WORLD, &own));
  MPI(MPI_Comm_size(MPI_COMM_WORLD, &processes));
  int ranks = processes * DEVICES;
  for (int i = 0; i < DEVICES; i++) {
    CUDA(cudaSetDevice(own * DEVICES + i));
    CUDA(cudaMalloc(&send[i], COUNT * sizeof(float)));
    CUDA(cudaMalloc(&recv[i], COUNT * sizeof(float)));
    CUDA(cudaStreamCreateWithFlags(&streams[i], cudaStreamNonBlocking));
    fill(send[i], COUNT, static_cast<float>(own * DEVICES + i));
  }
  if (own == 0) NCCL(ncclGetUniqueId(&id));
  MPI(MPI_Bcast(&id, sizeof id, MPI_BYTE, 0, MPI_COMM_WORLD));
  NCCL(ncclGroupStart());
  for (int i = 0; i < DEVICES; i++) {
    CUDA(cudaSetDevice(own * DEVICES + i));
    NCCL(ncclCommInitRank(&comms[i], ranks, id, own * DEVICES + i));
  }
  NCCL(ncclGroupEnd());
  NCCL(ncclGroupStart());
  for (int i = 0; i < DEVICES; i++) {
    NCCL(ncclAllReduce(send[i], recv[i], COUNT, ncclFloat, ncclSum, comms[i], streams[i]));
  }
  NCCL(ncclGroupEnd());
  for (int i = 0; i < DEVICES; i++) {
    CUDA(cudaStreamSynchronize(streams[i]));
    expect(recv[i], COUNT, static_cast<float>(ranks * (ranks - 1) / 2), ranks);
  }
  for (int i = 0; i < DEVICES; i++) {
    CUDA(cudaFree(send[i]));
    CUDA(cudaFree(recv[i]));
    CUDA(cudaStreamDestroy(streams[i]));
    NCCL(ncclCommDestroy(comms[i]));
  }
  MPI(MPI_Finalize());
  printf("all right\n");
  return 0;
}
