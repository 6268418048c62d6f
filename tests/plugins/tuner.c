/* A tuner plugin of the version VERSION. It checks how it is used. FIXTURE may also be `nothing`, `all`,
 * `init=slow` or `null context`. FIXTURE_CELL, `ROW,COLUMN`, is the cell that it chooses wherever it has a
 * plan. FIXTURE_REPORT is a file to which what is left at the end is appended. */
#include "nccl_tuner.h"
#include "fixture.h"

static ncclDebugLogger_t logger;
static int contexts, answers;

struct context {
  size_t ranks, nodes;
  pthread_t thread;
};

static ncclResult_t wrong(const char *what) {
  logger(NCCL_LOG_WARN, NCCL_TUNING, __FILE__, __LINE__, "wrong use: %s", what);
  return ncclInvalidUsage;
}

__attribute__((destructor)) static void report(void) {
  const char *file = getenv("FIXTURE_REPORT");
  FILE *to = file ? fopen(file, "a") : NULL;
  if (!to) return;
  if (contexts) fprintf(to, "%d contexts are left\n", contexts);
  fprintf(to, "%s\n", answers ? "asked" : "not asked");
  fclose(to);
}

static ncclResult_t start(size_t ranks, size_t nodes, ncclDebugLogger_t log, void **to) {
  logger = log;
  logger(NCCL_LOG_INFO, NCCL_TUNING, __FILE__, __LINE__, "%zu ranks on %zu hosts", ranks, nodes);
  ENTER("init");
  if (overlaps()) return wrong("functions overlap");
  if (is("init=slow")) usleep(3500000);
  if (is("null context")) return ncclSuccess;
  struct context *made = malloc(sizeof *made);
  *made = (struct context){ranks, nodes, pthread_self()};
  *to = made;
  __atomic_add_fetch(&contexts, 1, __ATOMIC_SEQ_CST);
  return ncclSuccess;
}

#if VERSION <= 4
static ncclResult_t init(size_t ranks, size_t nodes, ncclDebugLogger_t log, void **to) {
  return start(ranks, nodes, log, to);
}
#else
static ncclResult_t init(void **to, uint64_t comm, size_t ranks, size_t nodes, ncclDebugLogger_t log,
                         ncclNvlDomainInfo_v5_t *domains, ncclTunerConstants_v5_t *constants) {
  logger = log;
  (void)comm;
  if (domains->nNvlDomains != (int)nodes || domains->minRanksPerNvlDomain < 1 ||
      domains->maxRanksPerNvlDomain > (int)ranks)
    return wrong("the domains");
  constants->baseLatencies[NCCL_ALGO_RING][NCCL_PROTO_SIMPLE] += 1;
  return start(ranks, nodes, log, to);
}
#endif

static int check(const struct context *of, ncclFunc_t function, size_t bytes, const int *channels) {
  __atomic_add_fetch(&answers, 1, __ATOMIC_SEQ_CST);
  int right = is("null context") ? !of : of && pthread_equal(of->thread, pthread_self());
  return right && function >= ncclFuncBroadcast && function <= ncclFuncAllReduce && bytes < 1ul << 40 &&
         channels;
}

static int chosen(int *row, int *column) {
  const char *cell = getenv("FIXTURE_CELL");
  return cell && sscanf(cell, "%d,%d", row, column) == 2;
}

#if VERSION == 2
static ncclResult_t get(void *of, ncclFunc_t function, size_t bytes, int collnet, int nvls, int ops,
                        int *algorithm, int *protocol, int *channels) {
  ENTER("getCollInfo");
  if (!check(of, function, bytes, channels) || collnet || nvls > 1 || ops < 1) return wrong("asking");
  if (*algorithm != NCCL_ALGO_UNDEF || *protocol != NCCL_PROTO_UNDEF) return wrong("the start");
  chosen(algorithm, protocol);
  if (is("nothing")) *algorithm = *protocol = 1000;
  return ncclSuccess;
}
#else
static ncclResult_t get(void *of, ncclFunc_t function, size_t bytes, int ops, float **costs, int rows,
                        int columns,
#if VERSION >= 4
                        int registered,
#endif
                        int *channels) {
  float(*table)[NCCL_NUM_PROTOCOLS] = (float(*)[NCCL_NUM_PROTOCOLS])costs;
  int row, column, plans = 0;
  ENTER("getCollInfo");
  if (!check(of, function, bytes, channels) || ops < 1) return wrong("asking");
#if VERSION >= 4
  if (registered < 0 || registered > 1) return wrong("the registration");
#endif
  if (rows != NCCL_NUM_ALGORITHMS || columns != NCCL_NUM_PROTOCOLS) return wrong("the table's size");
  for (int i = 0; i < rows; i++)
    for (int j = 0; j < columns; j++) {
      plans += table[i][j] != NCCL_ALGO_PROTO_IGNORE;
      if (table[i][j] < 0 && table[i][j] != NCCL_ALGO_PROTO_IGNORE) return wrong("a negative time");
      if (is("nothing")) table[i][j] = NCCL_ALGO_PROTO_IGNORE;
      if (is("all")) table[i][j] = 0;
    }
  if (!plans) return wrong("a table without plans");
  if (chosen(&row, &column) && table[row][column] != NCCL_ALGO_PROTO_IGNORE) table[row][column] = 0;
  *channels = 1;
  return ncclSuccess;
}
#endif

static ncclResult_t end(void *of) {
  ENTER("finalize");
  if (overlaps()) return wrong("functions overlap");
  if (!of) return is("null context") ? ncclSuccess : wrong("the context");
  free(of);
  __atomic_sub_fetch(&contexts, 1, __ATOMIC_SEQ_CST);
  return ncclSuccess;
}

__attribute__((visibility("default"))) V(ncclTuner) JOIN(ncclTunerPlugin_v, VERSION, ) = {
    .name = NAME,
    .init = init,
    .getCollInfo = get,
#if VERSION >= 5
    .finalize = end,
#else
    .destroy = end,
#endif
};
