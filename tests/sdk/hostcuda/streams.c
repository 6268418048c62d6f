/* What waits for which streams. */
#include "check.h"

#define EXPECT(condition)                              \
  do {                                                 \
    if (!(condition)) FAILED(#condition, "is not so"); \
  } while (0)

/* Long enough that who does not wait is seen. */
static void slow(void *done) {
  for (volatile unsigned i = 0; i < 30000000; i++) {
  }
  *(volatile int *)done = 1;
}

int main(void) {
  enum { MANY = 100 };
  cudaStream_t first, second, other, many[MANY];
  int one = 1, copy = 0;
  volatile int done[3] = {0, 0, 0};
  CUDA(cudaStreamCreate(&first));
  CUDA(cudaStreamCreateWithFlags(&second, cudaStreamNonBlocking));
  for (int i = 0; i < MANY; i++) CUDA(cudaStreamCreate(&many[i]));
  for (int i = 0; i < MANY; i++) CUDA(cudaStreamDestroy(many[i]));
  /* Of another device: neither waits for it. */
  CUDA(cudaSetDevice(1));
  CUDA(cudaStreamCreate(&other));
  CUDA(cudaSetDevice(0));
  CUDA(cudaLaunchHostFunc(first, slow, (void *)&done[0]));
  CUDA(cudaMemcpy(&copy, &one, sizeof copy, cudaMemcpyHostToDevice));
  EXPECT(done[0] && copy == 1);
  done[0] = 0;
  CUDA(cudaLaunchHostFunc(first, slow, (void *)&done[0]));
  CUDA(cudaMemset(&copy, 0, sizeof copy));
  EXPECT(done[0] && copy == 0);
  done[0] = 0;
  CUDA(cudaLaunchHostFunc(first, slow, (void *)&done[0]));
  CUDA(cudaLaunchHostFunc(second, slow, (void *)&done[1]));
  CUDA(cudaDeviceSynchronize());
  EXPECT(done[0] && done[1]);
  CUDA(cudaLaunchHostFunc(other, slow, (void *)&done[2]));
  CUDA(cudaSetDevice(1));
  CUDA(cudaDeviceSynchronize());
  EXPECT(done[2]);
  CUDA(cudaStreamDestroy(other));
  CUDA(cudaStreamDestroy(second));
  CUDA(cudaStreamDestroy(first));
  EXPECT(cudaStreamDestroy(first) == cudaErrorInvalidValue);
  CUDA(cudaDeviceSynchronize());
  printf("all right\n");
  return 0;
}
