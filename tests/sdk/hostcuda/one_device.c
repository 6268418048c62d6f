/* NCCL's guide, example 2: a device per process of MPI, and, with the argument `threads`, per thread. */
#include "check.h"

#include <mpi.h>
#include <pthread.h>

enum { COUNT = 1 << 18, THREADS = 4 };

static ncclUniqueId id;

/* One rank of the communicator. */
static void rank(int rank, int ranks) {
  ncclComm_t comm;
  cudaStream_t stream;
  float *send, *recv;
  CUDA(cudaSetDevice(rank));
  CUDA(cudaMalloc((void **)&send, COUNT * sizeof(float)));
  CUDA(cudaMalloc((void **)&recv, COUNT * sizeof(float)));
  CUDA(cudaStreamCreate(&stream));
  fill(send, COUNT, (float)rank);
  NCCL(ncclCommInitRank(&comm, ranks, id, rank));
  NCCL(ncclAllReduce(send, recv, COUNT, ncclFloat, ncclSum, comm, stream));
  CUDA(cudaStreamSynchronize(stream));
  expect(recv, COUNT, (float)(ranks * (ranks - 1) / 2), ranks);
  CUDA(cudaFree(send));
  CUDA(cudaFree(recv));
  CUDA(cudaStreamDestroy(stream));
  NCCL(ncclCommDestroy(comm));
}

static void *thread(void *number) {
  rank((int)(intptr_t)number, THREADS);
  return NULL;
}

int main(int argc, char **argv) {
  if (argc > 1 && !strcmp(argv[1], "threads")) {
    pthread_t threads[THREADS];
    NCCL(ncclGetUniqueId(&id));
    for (intptr_t i = 0; i < THREADS; i++) pthread_create(&threads[i], NULL, thread, (void *)i);
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
  } else {
    int own, ranks;
    MPI(MPI_Init(&argc, &argv));
    MPI(MPI_Comm_rank(MPI_COMM_WORLD, &own));
    MPI(MPI_Comm_size(MPI_COMM_WORLD, &ranks));
    if (own == 0) NCCL(ncclGetUniqueId(&id));
    MPI(MPI_Bcast((void *)&id, sizeof id, MPI_BYTE, 0, MPI_COMM_WORLD));
    rank(own, ranks);
    MPI(MPI_Finalize());
  }
  printf("all right\n");
  return 0;
}
