/* A thousand communicators one after the other leave nothing behind: `churn threads` has two ranks in one
 * process, `churn processes` one in each of two, `churn alone` one that is all there is. */
#include "oxccl.h"

#include <dirent.h>
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { ROUNDS = 1000, WARM_UP = 100, COUNT = 5000 };

#define CHECK(condition)                                                                     \
  do {                                                                                       \
    if (!(condition)) {                                                                      \
      fprintf(stderr, "%s:%d: %s is false: %s\n", __FILE__, __LINE__, #condition,            \
              ncclGetLastError(NULL));                                                       \
      exit(1);                                                                               \
    }                                                                                        \
  } while (0)

static int entries(const char *folder) {
  int n = 0;
  DIR *dir = opendir(folder);
  CHECK(dir);
  while (readdir(dir)) n++;
  closedir(dir);
  return n;
}

static int mappings(void) {
  int n = 0, c;
  FILE *maps = fopen("/proc/self/maps", "r");
  CHECK(maps);
  while ((c = getc(maps)) != EOF) n += c == '\n';
  fclose(maps);
  return n;
}

struct use {
  int descriptors, mappings, threads;
  long bytes;
};

static struct use now(void) {
  struct use use = {entries("/proc/self/fd"), mappings(), entries("/proc/self/task"),
                    (long)mallinfo2().uordblks};
  return use;
}

/* Threads that end by themselves may do so a little later. */
static void compare(const char *who, struct use before) {
  struct use after;
  for (time_t end = time(NULL) + 10;; usleep(1000)) {
    after = now();
    /* A thread's stack that the C library keeps, and its guard page, are two mappings. */
    if (after.descriptors <= before.descriptors && after.threads <= before.threads &&
        after.mappings <= before.mappings + 8 && after.bytes <= before.bytes + (128 << 10))
      break;
    if (time(NULL) > end) {
      fprintf(stderr, "%s: after %d rounds: %d → %d descriptors, %d → %d mappings, %d → %d threads, "
              "%ld → %ld bytes\n", who, ROUNDS, before.descriptors, after.descriptors,
              before.mappings, after.mappings, before.threads, after.threads, before.bytes,
              after.bytes);
      exit(1);
    }
  }
  printf("%s: %d → %d descriptors, %d → %d mappings, %d → %d threads, %ld → %ld bytes\n", who,
         before.descriptors, after.descriptors, before.mappings, after.mappings, before.threads,
         after.threads, before.bytes, after.bytes);
}

static int in[COUNT], out[2][COUNT];

static void use(ncclComm_t *comms, int n, int round) {
  for (int i = 0; i < COUNT; i++) in[i] = i + round;
  CHECK(ncclGroupStart() == ncclSuccess);
  for (int r = 0; r < n; r++)
    CHECK(ncclAllReduce(in, out[r], COUNT, ncclInt, ncclSum, comms[r], NULL) == ncclSuccess);
  CHECK(ncclGroupEnd() == ncclSuccess);
  for (int r = 0; r < n; r++) {
    CHECK(oxcclDeviceSet(oxcclDeviceHost, r) == ncclSuccess);
    CHECK(oxcclStreamSynchronize(NULL, -1) == ncclSuccess);
    CHECK(out[r][COUNT - 1] == 2 * (COUNT - 1 + round));
  }
  CHECK(oxcclDeviceSet(oxcclDeviceHost, 0) == ncclSuccess);
  for (int r = 0; r < n; r++) CHECK(ncclCommDestroy(comms[r]) == ncclSuccess);
}

static void in_threads(void) {
  struct use before = {0, 0, 0, 0};
  for (int round = 0; round < ROUNDS; round++) {
    ncclComm_t comms[2];
    if (round == WARM_UP) before = now();
    CHECK(ncclCommInitAll(comms, 2, NULL) == ncclSuccess);
    use(comms, 2, round);
  }
  compare("threads", before);
}

static void alone(void) {
  struct use before = {0, 0, 0, 0};
  for (int round = 0; round < ROUNDS; round++) {
    ncclUniqueId id;
    ncclComm_t comm;
    if (round == WARM_UP) before = now();
    CHECK(ncclGetUniqueId(&id) == ncclSuccess);
    CHECK(ncclCommInitRank(&comm, 1, id, 0) == ncclSuccess);
    CHECK(ncclCommDestroy(comm) == ncclSuccess);
  }
  compare("alone", before);
}

static void in_processes(void) {
  struct use before = {0, 0, 0, 0};
  int ids[2];
  CHECK(pipe(ids) == 0);
  pid_t pid = fork();
  CHECK(pid >= 0);
  int rank = pid != 0;
  for (int round = 0; round < ROUNDS; round++) {
    ncclUniqueId id;
    ncclComm_t comm;
    if (round == WARM_UP) before = now();
    if (rank == 0) {
      CHECK(ncclGetUniqueId(&id) == ncclSuccess);
      CHECK(write(ids[1], &id, sizeof id) == sizeof id);
    } else {
      CHECK(read(ids[0], &id, sizeof id) == sizeof id);
    }
    CHECK(ncclCommInitRank(&comm, 2, id, rank) == ncclSuccess);
    use(&comm, 1, round);
  }
  compare(rank ? "process 1" : "process 0", before);
  if (pid) {
    int status;
    CHECK(waitpid(pid, &status, 0) == pid && status == 0);
  }
  if (pid == 0) exit(0);
}

int main(int argc, char **argv) {
  CHECK(argc == 2);
  /* One heap, so that the number of its mappings says something. */
  mallopt(M_ARENA_MAX, 1);
  if (strcmp(argv[1], "threads") == 0)
    in_threads();
  else if (strcmp(argv[1], "alone") == 0)
    alone();
  else
    in_processes();
  printf("nothing is left behind\n");
  return 0;
}
