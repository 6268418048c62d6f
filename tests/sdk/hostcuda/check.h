/* Calls that must succeed, and what a buffer must hold; as C and as C++. */
#include <stdio.h>

#include "cuda_runtime.h"
#include "nccl.h"

#define FAILED(call, text)                                                   \
  do {                                                                       \
    fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, call, text);      \
    exit(EXIT_FAILURE);                                                      \
  } while (0)
#define CUDA(call)                                                           \
  do {                                                                       \
    cudaError_t error = call;                                                \
    if (error != cudaSuccess) FAILED(#call, cudaGetErrorString(error));      \
  } while (0)
#define NCCL(call)                                                           \
  do {                                                                       \
    ncclResult_t result = call;                                              \
    if (result != ncclSuccess) FAILED(#call, ncclGetErrorString(result));    \
  } while (0)
#define MPI(call)                                                            \
  do {                                                                       \
    if (call != MPI_SUCCESS) FAILED(#call, "MPI failed");                    \
  } while (0)

/* Fills a buffer of a device. */
static inline void fill(float *buffer, size_t count, float value) {
  float *host = (float *)malloc(count * sizeof(float));
  for (size_t i = 0; i < count; i++) host[i] = value + (float)(i % 7);
  CUDA(cudaMemcpy(buffer, host, count * sizeof(float), cudaMemcpyHostToDevice));
  free(host);
}

/* Fails unless a buffer of a device is the sum of `ranks` that were filled from values whose sum this is. */
static inline void expect(const float *buffer, size_t count, float values, int ranks) {
  float *host = (float *)malloc(count * sizeof(float));
  CUDA(cudaMemcpy(host, buffer, count * sizeof(float), cudaMemcpyDeviceToHost));
  for (size_t i = 0; i < count; i++) {
    if (host[i] != values + (float)(ranks * (int)(i % 7))) FAILED("the sum", "wrong");
  }
  free(host);
}
