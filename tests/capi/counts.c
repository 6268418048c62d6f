/* Collectives with a count per rank and user-defined reductions over 3 processes, which share memory first
 * and then are hosts of their own. */
#include "oxccl.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum { RANKS = 3, COUNT = 100001, ROOM = 4 * COUNT };

#define CHECK(call)                                                                        \
  do {                                                                                     \
    ncclResult_t result_ = (call);                                                         \
    if (result_ != ncclSuccess) {                                                          \
      fprintf(stderr, "%s:%d: %s: %s: %s\n", __FILE__, __LINE__, #call,                    \
              ncclGetErrorString(result_), ncclGetLastError(NULL));                        \
      exit(1);                                                                             \
    }                                                                                      \
  } while (0)

#define EXPECT(condition)                                                                  \
  do {                                                                                     \
    if (!(condition)) {                                                                    \
      fprintf(stderr, "%s:%d: rank %d: %s is false: %s\n", __FILE__, __LINE__, rank,       \
              #condition, ncclGetLastError(NULL));                                         \
      exit(1);                                                                             \
    }                                                                                      \
  } while (0)

static int rank;
static ncclComm_t comm;
static int in[ROOM], out[ROOM];

/* Rank 1 has nothing. */
static const size_t counts[RANKS] = {COUNT, 0, 7}, places[RANKS] = {9, 0, 0};

static int value(int of, size_t i) { return of * 1000003 + (int)i * 7 + 1; }

static void fill(void) {
  for (int i = 0; i < ROOM; i++) {
    in[i] = value(rank, i);
    out[i] = -1;
  }
}

static void wait_all(void) { CHECK(oxcclStreamSynchronize(NULL, -1)); }

static void gathered(void) {
  for (size_t i = 0; i < COUNT + 9; i++) {
    int want = i < 7 ? value(2, i) : i < 9 ? -1 : value(0, i - 9);
    EXPECT(out[i] == want);
  }
  EXPECT(out[COUNT + 9] == -1);
}

static void moves(void) {
  fill();
  CHECK(oxcclAllGatherv(in, counts[rank], out, counts, places, ncclInt, comm, NULL));
  wait_all();
  gathered();
  fill();
  int root = rank == 2;
  CHECK(oxcclGatherv(in, counts[rank], out, root ? counts : NULL, root ? places : NULL, ncclInt, 2,
                     comm, NULL));
  wait_all();
  if (root) gathered();
  else EXPECT(out[0] == -1);
  fill();
  CHECK(oxcclScatterv(in, counts, places, out, counts[rank], ncclInt, 0, comm, NULL));
  wait_all();
  for (size_t i = 0; i < counts[rank]; i++) EXPECT(out[i] == value(0, places[rank] + i));
  EXPECT(out[counts[rank]] == -1);
  fill();
  /* To rank r go r × COUNT elements from every rank. */
  size_t n[RANKS], at[RANKS], m[RANKS], to[RANKS];
  for (size_t r = 0; r < RANKS; r++) {
    n[r] = r * (COUNT / 3);
    at[r] = 5 * r;
    m[r] = rank * (COUNT / 3);
    to[r] = m[r] * r;
  }
  CHECK(oxcclAlltoAllv(in, n, at, out, m, to, ncclInt, comm, NULL));
  wait_all();
  for (int r = 0; r < RANKS; r++)
    for (size_t i = 0; i < m[r]; i++) EXPECT(out[to[r] + i] == value(r, 5 * rank + i));
}

static void reductions(void) {
  int scalar = rank + 2;
  ncclRedOp_t op;
  CHECK(ncclRedOpCreatePreMulSum(&op, &scalar, ncclInt, ncclScalarHostImmediate, comm));
  scalar = 77;
  fill();
  CHECK(ncclAllReduce(in, out, ROOM, ncclInt, op, comm, NULL));
  wait_all();
  for (size_t i = 0; i < ROOM; i++)
    EXPECT(out[i] == 2 * value(0, i) + 3 * value(1, i) + 4 * value(2, i));
  fill();
  CHECK(oxcclReduceScatterv(in, out, counts, ncclInt, op, comm, NULL));
  CHECK(ncclRedOpDestroy(op, comm));
  wait_all();
  size_t first = rank == 0 ? 0 : COUNT;
  for (size_t i = 0; i < counts[rank]; i++) {
    size_t j = first + i;
    EXPECT(out[i] == 2 * value(0, j) + 3 * value(1, j) + 4 * value(2, j));
  }
  EXPECT(out[counts[rank]] == -1);
}

int main(void) {
  int failed = 0, status;
  for (int hosts = 0; hosts < 2; hosts++) {
    int pipes[RANKS][2];
    ncclUniqueId id;
    for (int r = 0; r < RANKS; r++) EXPECT(pipe(pipes[r]) == 0);
    for (int r = 0; r < RANKS; r++) {
      if (fork() != 0) continue;
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      alarm(60);
      rank = r;
      char name[8];
      snprintf(name, sizeof name, "%d", r);
      if (hosts) setenv("NCCL_HOSTID", name, 1);
      setenv("NCCL_SOCKET_IFNAME", "lo", 1);
      if (r == 0) {
        CHECK(ncclGetUniqueId(&id));
        for (int to = 1; to < RANKS; to++) EXPECT(write(pipes[to][1], &id, sizeof id) == sizeof id);
      } else {
        EXPECT(read(pipes[r][0], &id, sizeof id) == sizeof id);
      }
      CHECK(ncclCommInitRank(&comm, RANKS, id, rank));
      moves();
      reductions();
      CHECK(ncclCommDestroy(comm));
      exit(0);
    }
    while (wait(&status) > 0) failed |= status;
  }
  printf("%s\n", failed ? "failed" : "all counts are right");
  return failed != 0;
}
