/* Calls in adverse surroundings: `adverse HOW`. They work, or fail with a text. */
#include "oxccl.h"

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

enum { COUNT = 1 << 16 };

/* By _exit: handlers of exit call the library, too. */
#define CHECK(condition)                                                                     \
  do {                                                                                       \
    if (!(condition)) {                                                                      \
      fprintf(stderr, "%s:%d: %s is false: %s\n", __FILE__, __LINE__, #condition,            \
              ncclGetLastError(NULL));                                                       \
      _exit(1);                                                                              \
    }                                                                                        \
  } while (0)
#define OK(call) CHECK((call) == ncclSuccess)
#define FAILS(call, code, text) CHECK((call) == (code) && strstr(ncclGetLastError(NULL), text))

static ncclComm_t comms[2];
static cudaStream_t streams[2];

static void begin(int ranks) {
  OK(ncclCommInitAll(comms, ranks, NULL));
  for (int r = 0; r < ranks; r++) OK(oxcclStreamCreate(&streams[r]));
}

static void end(int ranks) {
  for (int r = 0; r < ranks; r++) {
    OK(ncclCommDestroy(comms[r]));
    OK(oxcclStreamDestroy(streams[r]));
  }
}

/* The library's threads come through here. */
static atomic_int refused;

int pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*start)(void *),
                   void *argument) {
  int (*real)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);
  if (refused) return EAGAIN;
  *(void **)&real = dlsym(RTLD_NEXT, "pthread_create");
  return real(thread, attributes, start, argument);
}

static void count(void *called) {
  atomic_fetch_add((atomic_int *)called, 1);
}

/* No thread can be started that calls functions of the user: none counts as called. */
static void no_threads(void) {
  atomic_int called = 0;
  oxcclGraph_t graph;
  oxcclGraphExec_t exec;
  OK(oxcclStreamCreate(&streams[0]));
  OK(oxcclStreamBeginCapture(streams[0], oxcclCaptureGlobal));
  OK(oxcclStreamHostFunc(streams[0], count, &called));
  OK(oxcclStreamEndCapture(streams[0], &graph));
  OK(oxcclGraphInstantiate(&exec, graph));
  refused = 1;
  FAILS(oxcclStreamHostFunc(streams[0], count, &called), ncclSystemError, "ulimit -u");
  OK(oxcclStreamSynchronize(streams[0], -1));
  /* What else the graph does is done. */
  OK(oxcclGraphLaunch(exec, streams[0]));
  FAILS(oxcclStreamSynchronize(streams[0], -1), ncclSystemError, "ulimit -u");
  CHECK(called == 0);
  refused = 0;
  OK(oxcclStreamHostFunc(streams[0], count, &called));
  OK(oxcclGraphLaunch(exec, streams[0]));
  OK(oxcclStreamSynchronize(streams[0], -1));
  CHECK(called == 2);
  OK(oxcclGraphDestroy(graph, exec));
  OK(oxcclStreamDestroy(streams[0]));
}

/* All that keeps something for the thread. */
static void calls(void) {
  int in[8] = {1, 2, 3, 4, 5, 6, 7, 8}, out[8] = {0};
  const char **keys;
  int nkeys = 0;
  FAILS(ncclAllReduce(NULL, out, 8, ncclInt, ncclSum, comms[0], streams[0]), ncclInvalidArgument,
        "sendbuff is null");
  OK(ncclAllReduce(in, out, 8, ncclInt, ncclSum, comms[0], streams[0]));
  OK(oxcclStreamSynchronize(streams[0], -1));
  CHECK(memcmp(in, out, sizeof in) == 0);
  memset(out, 0, sizeof out);
  OK(ncclGroupStart());
  OK(ncclAllReduce(in, out, 8, ncclInt, ncclSum, comms[0], streams[0]));
  OK(ncclGroupEnd());
  OK(oxcclStreamSynchronize(streams[0], -1));
  CHECK(memcmp(in, out, sizeof in) == 0);
  OK(ncclGroupStart());
  FAILS(ncclSend(in, 1, ncclInt, 9, comms[0], streams[0]), ncclInvalidArgument, "peer is 9");
  FAILS(ncclGroupEnd(), ncclInvalidArgument, "peer is 9");
  OK(ncclParamGetAllParameterKeys(&keys, &nkeys));
  CHECK(nkeys > 0 && keys[nkeys - 1][0] != 0);
}

static void destructor(void *done) {
  calls();
  *(int *)done = 1;
}

static pthread_key_t key;

static void *user(void *done) {
  calls();
  CHECK(pthread_setspecific(key, done) == 0);
  return NULL;
}

static void handler(void) {
  calls();
  end(1);
  printf("it went well\n");
}

/* Calls when the thread's own data are gone: in destructors of keys, and in handlers of exit. */
static void at_exit(void) {
  pthread_t thread;
  int done = 0;
  begin(1);
  CHECK(pthread_key_create(&key, destructor) == 0);
  CHECK(pthread_create(&thread, NULL, user, &done) == 0);
  CHECK(pthread_join(thread, NULL) == 0 && done);
  calls();
  CHECK(atexit(handler) == 0);
  exit(0);
}

static ncclResult_t waited;

static void *cancelled(void *unused) {
  (void)unused;
  /* From here on any call of the system may end the thread. */
  CHECK(pthread_cancel(pthread_self()) == 0);
  waited = oxcclStreamSynchronize(streams[0], 500000000);
  pthread_testcancel();
  return NULL;
}

/* A thread is cancelled after the call in which it waits, not in it. */
static void cancellation(void) {
  pthread_t thread;
  void *result = NULL;
  int out;
  begin(2);
  OK(ncclRecv(&out, 1, ncclInt, 1, comms[0], streams[0]));
  CHECK(pthread_create(&thread, NULL, cancelled, NULL) == 0);
  CHECK(pthread_join(thread, &result) == 0);
  CHECK(result == PTHREAD_CANCELED && waited == ncclInProgress);
  OK(ncclCommAbort(comms[0]));
  OK(ncclCommAbort(comms[1]));
}

static ncclComm_t alone;
static int calls_made;

/* Calls that end at once, that are captured, that fail, that wait, and that are queued, each in a
 * thread that the next call of the system would end. */
static void *calls_of_cancelled(void *unused) {
  static int in[2], out[2];
  oxcclGraph_t graph;
  (void)unused;
  CHECK(pthread_cancel(pthread_self()) == 0);
  for (int twice = 0; twice < 2; twice++)
    OK(ncclAllReduce(in, out, 2, ncclInt, ncclSum, alone, streams[0]));
  OK(oxcclStreamBeginCapture(streams[0], oxcclCaptureGlobal));
  OK(ncclAllReduce(in, out, 1, ncclInt, ncclMax, alone, streams[0]));
  OK(oxcclStreamEndCapture(streams[0], &graph));
  OK(oxcclGraphDestroy(graph, NULL));
  FAILS(ncclAllReduce(in, NULL, 1, ncclInt, ncclSum, alone, streams[0]), ncclInvalidArgument,
        "recvbuff");
  OK(ncclAllReduce(in, out, 1, ncclInt, ncclSum, comms[0], streams[0]));
  OK(ncclAllReduce(in, out, 1, ncclInt, ncclSum, alone, streams[0]));
  calls_made = 1;
  pthread_testcancel();
  return NULL;
}

/* Small calls are not guarded as a whole, but wherever they may end in the system. */
static void cancellation_in_small_calls(void) {
  pthread_t thread;
  void *result = NULL;
  begin(2);
  OK(ncclCommInitAll(&alone, 1, NULL));
  CHECK(pthread_create(&thread, NULL, calls_of_cancelled, NULL) == 0);
  CHECK(pthread_join(thread, &result) == 0);
  CHECK(result == PTHREAD_CANCELED && calls_made);
  OK(ncclCommAbort(comms[0]));
  OK(ncclCommAbort(comms[1]));
  OK(ncclCommAbort(alone));
}

/* The address space has no room for the arena: there is memory nevertheless, which is copied. */
static void no_arena(void) {
  const struct rlimit limit = {(rlim_t)16 << 30, (rlim_t)16 << 30};
  int *in[2], *out[2];
  CHECK(setrlimit(RLIMIT_AS, &limit) == 0 && setenv("OXCCL_ARENA_GIB", "512", 1) == 0);
  begin(2);
  for (int r = 0; r < 2; r++) {
    OK(ncclMemAlloc((void **)&in[r], COUNT * sizeof(int)));
    OK(ncclMemAlloc((void **)&out[r], COUNT * sizeof(int)));
    CHECK((uintptr_t)in[r] % (64 << 10) == 0);
    for (int i = 0; i < COUNT; i++) {
      CHECK(in[r][i] == 0);
      in[r][i] = i + r;
    }
    FAILS(ncclAllReduce(in[r], out[r], COUNT + 1, ncclInt, ncclSum, comms[r], streams[r]),
          ncclInvalidArgument, "at most the 262144 bytes");
    OK(ncclAllReduce(in[r], out[r], COUNT, ncclInt, ncclSum, comms[r], streams[r]));
  }
  for (int r = 0; r < 2; r++) {
    OK(oxcclStreamSynchronize(streams[r], -1));
    for (int i = 0; i < COUNT; i++) CHECK(out[r][i] == 2 * i + 1);
  }
  for (int r = 0; r < 2; r++) {
    OK(ncclMemFree(in[r]));
    OK(ncclMemFree(out[r]));
    FAILS(ncclMemFree(out[r]), ncclInvalidArgument, "ptr is");
  }
  end(2);
}

int main(int argc, char **argv) {
  if (argc != 2) return 2;
  if (strcmp(argv[1], "no-threads") == 0) no_threads();
  else if (strcmp(argv[1], "at-exit") == 0) at_exit();
  else if (strcmp(argv[1], "cancellation") == 0) cancellation();
  else if (strcmp(argv[1], "small-calls") == 0) cancellation_in_small_calls();
  else if (strcmp(argv[1], "no-arena") == 0) no_arena();
  else return 2;
  printf("it went well\n");
  return 0;
}
