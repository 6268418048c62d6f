/* NCCL's guide, example 1: one process and one thread drive four devices. */
#include "check.h"

enum { DEVICES = 4, COUNT = 1 << 18 };

int main(void) {
  int devices[DEVICES] = {0, 1, 2, 3};
  ncclComm_t comms[DEVICES];
  cudaStream_t streams[DEVICES];
  float **send = (float **)malloc(DEVICES * sizeof(float *));
  float **recv = (float **)malloc(DEVICES * sizeof(float *));
  for (int i = 0; i < DEVICES; i++) {
    CUDA(cudaSetDevice(i));
    CUDA(cudaMalloc((void **)send + i, COUNT * sizeof(float)));
    CUDA(cudaMalloc((void **)recv + i, COUNT * sizeof(float)));
    CUDA(cudaMemset(recv[i], 0xff, COUNT * sizeof(float)));
    fill(send[i], COUNT, (float)i);
    CUDA(cudaStreamCreate(streams + i));
  }
  NCCL(ncclCommInitAll(comms, DEVICES, devices));
  NCCL(ncclGroupStart());
  for (int i = 0; i < DEVICES; i++) {
    NCCL(ncclAllReduce((const void *)send[i], (void *)recv[i], COUNT, ncclFloat, ncclSum, comms[i],
                       streams[i]));
  }
  NCCL(ncclGroupEnd());
  for (int i = 0; i < DEVICES; i++) {
    CUDA(cudaSetDevice(i));
    CUDA(cudaStreamSynchronize(streams[i]));
    expect(recv[i], COUNT, 0 + 1 + 2 + 3, DEVICES);
  }
  for (int i = 0; i < DEVICES; i++) {
    CUDA(cudaSetDevice(i));
    CUDA(cudaFree(send[i]));
    CUDA(cudaFree(recv[i]));
    CUDA(cudaStreamDestroy(streams[i]));
    NCCL(ncclCommDestroy(comms[i]));
  }
  free(send);
  free(recv);
  printf("all right\n");
  return 0;
}
