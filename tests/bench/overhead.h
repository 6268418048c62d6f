/* What overhead.c and overhead.cpp measure with: batches of calls, between which the stream is drained
 * without being timed. Prints the name, and ns per call of the fastest batch and of the median one. */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { BATCHES = 300, CALLS = 500 };

static double now_ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return 1e9 * (double)t.tv_sec + (double)t.tv_nsec;
}

static int by_size(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

static void report(const char *name, double *ns) {
  qsort(ns, BATCHES, sizeof *ns, by_size);
  printf("%s %.1f %.1f\n", name, ns[0] / CALLS, ns[BATCHES / 2] / CALLS);
}
