/* Heat in a rod that is cut into a piece per rank. In each step neighbours exchange the cells at
 * their edges: oxccl run -n 4 ./04_halo */
#include "check.h"

enum { CELLS = 64, STEPS = 200 };

/* One step of n cells; old[0] and old[n + 1] are their neighbours. */
static void step(double *new, const double *old, int n) {
  for (int i = 1; i <= n; i++) new[i] = old[i] + 0.25 * (old[i - 1] - 2 * old[i] + old[i + 1]);
}

static double initial(int cell) { return cell % 17 == 0 ? 100 : cell % 5; }

int main(void) {
  double piece[2][CELLS + 2] = {{0}}, *edge; /* of the device: to the left and right, from them */
  ncclComm_t comm;
  oxcclStream_t stream;
  int rank, nranks, right = 1;
  CHECK(oxcclCommInitEnv(&comm, NULL));
  CHECK(ncclCommUserRank(comm, &rank));
  CHECK(ncclCommCount(comm, &nranks));
  CHECK(oxcclStreamCreate(&stream));
  CHECK(oxcclMemAlloc((void **)&edge, 4 * sizeof *edge));
  for (int i = 1; i <= CELLS; i++) piece[0][i] = initial(rank * CELLS + i);
  for (int t = 0; t < STEPS; t++) {
    double *old = piece[t % 2], *new = piece[(t + 1) % 2], host[4] = {old[1], old[CELLS]};
    CHECK(oxcclMemcpyAsync(edge, host, sizeof host, stream));
    CHECK(ncclGroupStart()); /* in a group, sends and receives wait for no order */
    if (rank > 0) {
      CHECK(ncclSend(&edge[0], 1, ncclDouble, rank - 1, comm, stream));
      CHECK(ncclRecv(&edge[2], 1, ncclDouble, rank - 1, comm, stream));
    }
    if (rank < nranks - 1) {
      CHECK(ncclSend(&edge[1], 1, ncclDouble, rank + 1, comm, stream));
      CHECK(ncclRecv(&edge[3], 1, ncclDouble, rank + 1, comm, stream));
    }
    CHECK(ncclGroupEnd());
    CHECK(oxcclMemcpyAsync(host, edge, sizeof host, stream));
    CHECK(oxcclStreamSynchronize(stream, -1));
    old[0] = host[2]; /* 0 at the ends of the rod */
    old[CELLS + 1] = host[3];
    step(new, old, CELLS);
  }
  /* The whole rod at once. */
  int all = nranks * CELLS;
  double *whole[2] = {calloc(all + 2, sizeof(double)), calloc(all + 2, sizeof(double))};
  for (int i = 1; i <= all; i++) whole[0][i] = initial(i);
  for (int t = 0; t < STEPS; t++) step(whole[(t + 1) % 2], whole[t % 2], all);
  for (int i = 1; i <= CELLS; i++) {
    right &= piece[STEPS % 2][i] == whole[STEPS % 2][rank * CELLS + i];
  }
  free(whole[0]);
  free(whole[1]);
  CHECK(oxcclMemFree(edge));
  CHECK(oxcclStreamDestroy(stream));
  CHECK(ncclCommDestroy(comm));
  return verdict(right, rank, nranks, "heat");
}
