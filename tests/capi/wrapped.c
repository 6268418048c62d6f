/* Three all-reduces; says how many a preloaded wrapper has seen. */
#include "oxccl.h"

#include <stdio.h>
#include <stdlib.h>

/* The wrapper's; not there without it. */
__attribute__((weak)) int wrapped_calls(void);

#define CHECK(call)                                                        \
  do {                                                                     \
    if ((call) != ncclSuccess) {                                           \
      fprintf(stderr, "%s: %s\n", #call, ncclGetLastError(NULL));          \
      exit(1);                                                             \
    }                                                                      \
  } while (0)

int main(void) {
  ncclComm_t comms[2];
  float data[2][4] = {{1, 2, 3, 4}, {10, 20, 30, 40}}, sums[2][4];
  CHECK(ncclCommInitAll(comms, 2, NULL));
  /* Grouped, and in a group that holds one call each. */
  CHECK(ncclGroupStart());
  for (int i = 0; i < 2; i++)
    CHECK(ncclAllReduce(data[i], sums[i], 4, ncclFloat, ncclSum, comms[i], NULL));
  CHECK(ncclGroupEnd());
  for (int i = 0; i < 2; i++) CHECK(ncclCommFinalize(comms[i]));
  for (int i = 0; i < 2; i++)
    for (int j = 0; j < 4; j++)
      if (sums[i][j] != 11 * (j + 1)) {
        fprintf(stderr, "sum %d of rank %d is %f\n", j, i, sums[i][j]);
        return 1;
      }
  for (int i = 0; i < 2; i++) CHECK(ncclCommDestroy(comms[i]));
  ncclComm_t alone;
  CHECK(ncclCommInitAll(&alone, 1, NULL));
  CHECK(ncclAllReduce(data[0], sums[0], 4, ncclFloat, ncclSum, alone, NULL));
  CHECK(ncclCommDestroy(alone));
  printf("wrapped %d calls\n", wrapped_calls ? wrapped_calls() : 0);
  return 0;
}
