/* What processes of one host reach without a library: an all-reduce of floats through memory that
 * all of them map, each pinned to a processor of its own while there are enough.
 *
 *   bare-host RANKS BATCHES BYTES...
 *
 * Prints one JSON object per size with the least mean time of a batch, in µs:
 * "staged": the inputs and outputs are each process's own; up to 2 KiB every rank writes its input
 * to a slot that all read, above it the ranks fold a part each and publish it.
 * "direct": all map all inputs and outputs; each rank folds its part and writes it to all outputs.
 * Both are run with stores through the cache and past it, to what others read and to what is a
 * rank's own, and the fastest is told. */
#define _GNU_SOURCE
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <signal.h>
#include <time.h>
#include <unistd.h>
#ifdef __SSE2__
#include <emmintrin.h>
#endif

enum { MOST = 64, ONE_SHOT = 2048, BLOCK = 1024 };
enum { SHARED = 1, OWN = 2 }; /* what is stored past the cache */

static int n, rank, crowded;
static volatile uint64_t *told; /* a cache line for each rank */
static uint64_t epoch;
static float *slot[2][MOST], *in[MOST], *out[MOST], *own_in, *own_out;

static double now_us(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1e6 + t.tv_nsec / 1e3;
}

/* Tells all ranks that this one has come so far, and waits for all. */
static void meet(void) {
  __atomic_store_n(&told[rank * 8], ++epoch, __ATOMIC_RELEASE);
  for (int peer = 0; peer < n; peer++)
    for (int spins = 0; __atomic_load_n(&told[peer * 8], __ATOMIC_ACQUIRE) < epoch; spins++) {
#ifdef __SSE2__
      _mm_pause();
#endif
      if (crowded && spins > 100) sched_yield();
    }
}

static void store(float *to, const float *from, size_t count, int past) {
#ifdef __SSE2__
  if (past && (uintptr_t)to % 16 == 0) {
    size_t i = 0;
    for (; i + 4 <= count; i += 4) _mm_stream_ps(to + i, _mm_loadu_ps(from + i));
    memcpy(to + i, from + i, (count - i) * 4);
    return;
  }
#endif
  memcpy(to, from, count * 4);
}

/* Folds this part of all of `from`, a block at a time, and stores it to each of `to`, of which the
 * first is the rank's own. */
static void fold(float **to, int targets, float **from, size_t start, size_t count, int past) {
  float sum[BLOCK];
  for (size_t at = start; at < start + count; at += BLOCK) {
    size_t len = start + count - at < BLOCK ? start + count - at : BLOCK;
    memcpy(sum, from[0] + at, len * 4);
    for (int peer = 1; peer < n; peer++) {
      const float *other = from[peer] + at;
      for (size_t i = 0; i < len; i++) sum[i] += other[i];
    }
    for (int t = 0; t < targets; t++) store(to[t] + at, sum, len, past & (t ? SHARED : OWN));
  }
}

static void ordered(int past) {
#ifdef __SSE2__
  if (past) _mm_sfence();
#endif
  (void)past;
}

/* Where the part of a rank starts, in whole cache lines. */
static size_t part(size_t count, int r) { return r >= n ? count : (count / 16 * r / n) * 16; }

static void direct(size_t count, int past) {
  size_t start = part(count, rank);
  float *to[MOST];
  for (int i = 0; i < n; i++) to[i] = out[(rank + i) % n];
  meet();
  fold(to, n, in, start, part(count, rank + 1) - start, past);
  ordered(past);
  meet();
}

static void staged(size_t count, int past) {
  float **slots = slot[epoch / 2 % 2], *from[MOST], *to[2] = {own_out, slots[rank]};
  for (int peer = 0; peer < n; peer++) from[peer] = peer == rank ? own_in : slots[peer];
  size_t start = part(count, rank), end = part(count, rank + 1);
  if (count * 4 <= ONE_SHOT) {
    memcpy(slots[rank], own_in, count * 4);
    meet();
    fold(to, 1, from, 0, count, 0);
    epoch++; /* so that calls alternate between the slots */
    return;
  }
  store(slots[rank], own_in, start, past & SHARED);
  store(slots[rank] + end, own_in + end, count - end, past & SHARED);
  ordered(past);
  meet();
  fold(to, 2, from, start, end - start, past);
  ordered(past);
  meet();
  for (int peer = 0; peer < n; peer++)
    if (peer != rank) {
      size_t first = part(count, peer);
      store(own_out + first, slots[peer] + first, part(count, peer + 1) - first, past & OWN);
    }
}

/* The last way to store of those that there are. */
static int last_way(void (*call)(size_t, int), size_t bytes) {
  return call == staged && bytes <= ONE_SHOT ? 0 : SHARED | OWN;
}

static double least(void (*call)(size_t, int), size_t bytes, int batches) {
  int iterations = bytes <= 65536 ? 2000 : bytes <= 1 << 20 ? 300 : bytes <= 8 << 20 ? 40 : 8;
  double best = 1e30;
  for (int past = 0; past <= last_way(call, bytes); past++)
    for (int batch = 0; batch < batches; batch++) {
      for (int i = 0; i < iterations / 10 + 1; i++) call(bytes / 4, past);
      meet(), meet();
      double start = now_us();
      for (int i = 0; i < iterations; i++) call(bytes / 4, past);
      double time = (now_us() - start) / iterations;
      if (time < best) best = time;
    }
  return best;
}

/* Calls once for each way to store, and tells in how many elements the results are wrong. */
static size_t wrong_elements(void (*call)(size_t, int), size_t bytes, float *result) {
  size_t wrong = 0;
  for (int past = 0; past <= last_way(call, bytes); past++) {
    meet(), meet();
    memset(result, 255, bytes);
    meet(), meet();
    call(bytes / 4, past);
    for (size_t i = 0; i < bytes / 4; i++)
      wrong += result[i] != (float)(n * (n - 1) / 2 + n * (int)(i % 7));
  }
  return wrong;
}

static void *shared(size_t bytes) {
  void *p = mmap(0, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (p == MAP_FAILED) perror("mmap"), exit(1);
  return p;
}

int main(int argc, char **argv) {
  n = argc > 1 ? atoi(argv[1]) : 0;
  int batches = argc > 2 ? atoi(argv[2]) : 0;
  if (argc < 4 || n < 1 || n > MOST || batches < 1) {
    fprintf(stderr, "usage: bare-host RANKS BATCHES BYTES...\n");
    return 2;
  }
  size_t most = 0;
  for (int i = 3; i < argc; i++) {
    size_t bytes = strtoull(argv[i], NULL, 10);
    if (bytes > most) most = bytes;
  }
  told = shared(MOST * 64);
  for (int r = 0; r < n; r++) {
    in[r] = shared(most), out[r] = shared(most);
    slot[0][r] = shared(most), slot[1][r] = shared(most);
  }
  for (rank = 0; rank < n - 1; rank++) {
    pid_t child = fork();
    if (child < 0) perror("fork"), exit(1);
    if (child == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      break;
    }
  }
  rank = (rank + 1) % n; /* the parent is rank 0 */
  crowded = n > sysconf(_SC_NPROCESSORS_ONLN);
  if (!crowded) {
    cpu_set_t place;
    CPU_ZERO(&place);
    CPU_SET(rank, &place);
    sched_setaffinity(0, sizeof place, &place);
  }
  own_in = malloc(most), own_out = malloc(most);
  for (size_t i = 0; i < most / 4; i++) {
    own_in[i] = in[rank][i] = (float)(rank + i % 7), own_out[i] = out[rank][i] = 0;
    slot[0][rank][i] = slot[1][rank][i] = 0;
  }
  int wrong = 0;
  for (int i = 3; i < argc; i++) {
    size_t bytes = strtoull(argv[i], NULL, 10);
    double s = least(staged, bytes, batches), d = least(direct, bytes, batches);
    wrong |= wrong_elements(staged, bytes, own_out) > 0;
    wrong |= wrong_elements(direct, bytes, out[rank]) > 0;
    if (rank == 0)
      printf("{\"bytes\":%zu,\"staged\":%.3f,\"direct\":%.3f}\n", bytes, s, d), fflush(stdout);
  }
  if (wrong) fprintf(stderr, "rank %d: wrong results\n", rank);
  if (rank != 0) _exit(wrong);
  for (int status; wait(&status) > 0;) wrong |= status != 0;
  return wrong;
}
