/* Softmax regression on Fisher's irises: every rank has a part of the flowers, and all add up their
 * gradients in each step: oxccl run -n 4 ./05_training ../data/iris.csv */
#include <math.h>
#include <string.h>

#include "check.h"

enum { ROWS = 150, INPUTS = 5, KINDS = 3, WEIGHTS = INPUTS * KINDS, EPOCHS = 300 };

static double flowers[ROWS][INPUTS];
static int kinds[ROWS];

/* Four lengths in cm and the kind per line, after a line of titles; lengths are centred and scaled. */
static int load(const char *path) {
  char title[256];
  FILE *file = fopen(path, "r");
  int rows = 0;
  if (!file || !fgets(title, sizeof title, file)) return 0;
  while (rows < ROWS && fscanf(file, "%lf,%lf,%lf,%lf,%d", &flowers[rows][0], &flowers[rows][1],
                               &flowers[rows][2], &flowers[rows][3], &kinds[rows]) == 5) {
    flowers[rows++][4] = 1;
  }
  fclose(file);
  for (int j = 0; j < 4; j++) {
    double sum = 0, squares = 0;
    for (int i = 0; i < ROWS; i++) sum += flowers[i][j];
    for (int i = 0; i < ROWS; i++) squares += pow(flowers[i][j] - sum / ROWS, 2);
    for (int i = 0; i < ROWS; i++) {
      flowers[i][j] = (flowers[i][j] - sum / ROWS) / sqrt(squares / ROWS);
    }
  }
  return rows == ROWS;
}

/* Adds a flower's gradient; whether its kind was guessed. */
static int learn(const double *w, int row, double *gradient) {
  double p[KINDS] = {0}, sum = 0;
  int best = 0;
  for (int k = 0; k < KINDS; k++) {
    for (int j = 0; j < INPUTS; j++) p[k] += w[k * INPUTS + j] * flowers[row][j];
    sum += p[k] = exp(p[k]);
    if (p[k] > p[best]) best = k;
  }
  for (int k = 0; k < KINDS; k++) {
    double off = p[k] / sum - (kinds[row] == k);
    for (int j = 0; j < INPUTS; j++) gradient[k * INPUTS + j] += off * flowers[row][j];
  }
  return best == kinds[row];
}

int main(int argc, char **argv) {
  double w[WEIGHTS] = {0}, most[WEIGHTS], sums[WEIGHTS + 1], *x; /* gradient, and good guesses */
  ncclComm_t comm;
  oxcclStream_t stream;
  int rank, nranks;
  if (argc != 2 || !load(argv[1])) {
    fprintf(stderr, "usage: 05_training iris.csv\n");
    return 1;
  }
  CHECK(oxcclCommInitEnv(&comm, NULL));
  CHECK(ncclCommUserRank(comm, &rank));
  CHECK(ncclCommCount(comm, &nranks));
  CHECK(oxcclStreamCreate(&stream));
  CHECK(oxcclMemAlloc((void **)&x, sizeof sums));
  for (int epoch = 0; epoch < EPOCHS; epoch++) {
    memset(sums, 0, sizeof sums);
    for (int row = rank; row < ROWS; row += nranks) sums[WEIGHTS] += learn(w, row, sums);
    CHECK(oxcclMemcpyAsync(x, sums, sizeof sums, stream));
    CHECK(ncclAllReduce(x, x, WEIGHTS + 1, ncclDouble, ncclSum, comm, stream));
    CHECK(oxcclMemcpyAsync(sums, x, sizeof sums, stream));
    CHECK(oxcclStreamSynchronize(stream, -1));
    for (int i = 0; i < WEIGHTS; i++) w[i] -= 0.5 * sums[i] / ROWS;
  }
  /* All ranks have come to the same weights. */
  CHECK(oxcclMemcpyAsync(x, w, sizeof w, stream));
  CHECK(ncclAllReduce(x, x, WEIGHTS, ncclDouble, ncclMax, comm, stream));
  CHECK(oxcclMemcpyAsync(most, x, sizeof w, stream));
  CHECK(oxcclStreamSynchronize(stream, -1));
  int right = !memcmp(most, w, sizeof w) && sums[WEIGHTS] >= 0.95 * ROWS && sums[WEIGHTS] <= ROWS;
  CHECK(oxcclMemFree(x));
  CHECK(oxcclStreamDestroy(stream));
  CHECK(ncclCommDestroy(comm));
  char what[64];
  snprintf(what, sizeof what, "%.0f of %d flowers", sums[WEIGHTS], ROWS);
  return verdict(right, rank, nranks, what);
}
