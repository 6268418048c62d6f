/* Ends with work pending: `exits LIBRARY HOW`, two ranks. Rank 0 goes as HOW says while operations are
 * under way; rank 1 has to hear of it. The library is loaded at run time, so that it can be closed. */
#include "oxccl.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { COUNT = 1 << 20 };

#define FUNCTIONS(X)                                                                         \
  X(oxcclCommInitEnv) X(oxcclStreamCreate) X(oxcclStreamSynchronize) X(oxcclStreamHostFunc)  \
  X(ncclAllReduce) X(ncclRecv) X(ncclMemAlloc) X(ncclCommDestroy) X(ncclCommUserRank)        \
  X(ncclGetLastError) X(ncclGetVersion)
#define DECLARE(name) static __typeof__(name) *p_##name;
FUNCTIONS(DECLARE)

static void *library;

static void load(const char *path) {
  library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (!library) {
    fprintf(stderr, "%s\n", dlerror());
    exit(1);
  }
#define LOAD(name) *(void **)&p_##name = dlsym(library, #name);
  FUNCTIONS(LOAD)
}

#define CHECK(condition)                                                                     \
  do {                                                                                       \
    if (!(condition)) {                                                                      \
      fprintf(stderr, "%s:%d: %s is false: %s\n", __FILE__, __LINE__, #condition,            \
              p_ncclGetLastError(NULL));                                                     \
      exit(1);                                                                               \
    }                                                                                        \
  } while (0)

static ncclComm_t comm;
static cudaStream_t stream, other;
static float *in, *out;

/* Operations that both ranks take part in, and one for which rank 1 never comes. */
static void start(int rank) {
  for (int i = 0; i < 20; i++)
    CHECK(p_ncclAllReduce(in, out, COUNT, ncclFloat, ncclSum, comm, stream) == ncclSuccess);
  if (rank == 0) CHECK(p_ncclRecv(out, 1, ncclFloat, 1, comm, other) == ncclSuccess);
}

static void *leave(void *code) {
  exit((int)(size_t)code);
}

static void sleeper(void *unused) {
  (void)unused;
  pause();
}

/* What rank 0 has under way when it goes. */
static int go(const char *path, const char *how) {
  pthread_t thread;
  int version = 0;
  if (strcmp(how, "_exit") == 0) _exit(0);
  if (strcmp(how, "exit") == 0) exit(0);
  if (strcmp(how, "thread") == 0) {
    /* Another thread ends the process while this one waits in the library. */
    CHECK(pthread_create(&thread, NULL, leave, NULL) == 0);
    p_oxcclStreamSynchronize(other, -1);
    pause();
  }
  if (strcmp(how, "function") == 0) {
    /* A user's function is being called and does not return. */
    CHECK(p_oxcclStreamHostFunc(other, sleeper, NULL) == ncclSuccess);
    return 0;
  }
  if (strcmp(how, "dlclose") == 0) {
    CHECK(dlclose(library) == 0);
    /* Its threads still run its code: it stays, and can be used again. */
    load(path);
    CHECK(p_ncclGetVersion(&version) == ncclSuccess && version == NCCL_VERSION_CODE);
    CHECK(dlclose(library) == 0);
    return 0;
  }
  CHECK(strcmp(how, "return") == 0);
  return 0;
}

int main(int argc, char **argv) {
  int rank;
  ncclResult_t result;
  if (argc != 3) return 2;
  load(argv[1]);
  CHECK(p_oxcclCommInitEnv(&comm, NULL) == ncclSuccess);
  CHECK(p_ncclCommUserRank(comm, &rank) == ncclSuccess);
  CHECK(p_oxcclStreamCreate(&stream) == ncclSuccess && p_oxcclStreamCreate(&other) == ncclSuccess);
  CHECK(p_ncclMemAlloc((void **)&in, COUNT * sizeof(float)) == ncclSuccess);
  CHECK(p_ncclMemAlloc((void **)&out, COUNT * sizeof(float)) == ncclSuccess);
  CHECK(p_ncclAllReduce(in, out, COUNT, ncclFloat, ncclSum, comm, stream) == ncclSuccess);
  CHECK(p_oxcclStreamSynchronize(stream, -1) == ncclSuccess);
  start(rank);
  if (rank == 0) return go(argv[1], argv[2]);
  /* Rank 0 may have done its part of some operations before it went, but not of these. */
  do {
    CHECK(p_ncclAllReduce(in, out, COUNT, ncclFloat, ncclSum, comm, stream) == ncclSuccess ||
          strstr(p_ncclGetLastError(comm), "lost rank 0"));
    result = p_oxcclStreamSynchronize(stream, -1);
  } while (result == ncclSuccess);
  CHECK(result == ncclRemoteError && strstr(p_ncclGetLastError(comm), "lost rank 0"));
  CHECK(p_ncclCommDestroy(comm) == ncclSuccess);
  printf("rank 0 is gone\n");
  return 0;
}
