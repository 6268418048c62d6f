/* What the examples share: calls that must succeed, and the verdict. */
#ifndef CHECK_H_
#define CHECK_H_
#include <stdio.h>
#include <stdlib.h>

#include "oxccl.h"

/* Ends the program with the library's text where a call fails. */
#define CHECK(call)                                              \
  do {                                                           \
    if ((call) != ncclSuccess) {                                 \
      fprintf(stderr, #call ": %s\n", ncclGetLastError(NULL));   \
      exit(1);                                                   \
    }                                                            \
  } while (0)

/* Says whether the result is right; the program's status. */
static inline int verdict(int right, int rank, int nranks, const char *what) {
  printf("rank %d of %d: %s %s\n", rank, nranks, what, right ? "verified" : "WRONG");
  return right ? 0 : 2;
}
#endif
