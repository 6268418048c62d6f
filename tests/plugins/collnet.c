/* A network that reduces, for processes of one machine, in the version VERSION: a file that all
 * ranks of a group map. It checks how it is used. FIXTURE=null region gives no handles of memory, null
 * request takes no reduction after the first FIXTURE_AFTER. FIXTURE_REPORT is a file to which it is appended
 * at the end what is left, and how many of the reductions were not staged in memory of the library. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <fcntl.h>
#include <sys/mman.h>

#include "nccl.h"
#include "nccl_net.h"
#include "fixture.h"

static ncclDebugLogger_t logger;
static int open_objects[5], reductions, unstaged;
enum { CONTEXT, LISTENER, GROUP, REGION, REQUEST };
static const char *const object_names[] = {"contexts", "listeners", "groups", "regions", "requests"};

static void count(int kind, int by) { __atomic_add_fetch(&open_objects[kind], by, __ATOMIC_SEQ_CST); }

static int connected; /* whether there was a group */

static ncclResult_t wrong(const char *what) {
  logger(NCCL_LOG_WARN, NCCL_NET, __FILE__, __LINE__, "wrong use: %s", what);
  return ncclInvalidUsage;
}

__attribute__((destructor)) static void report(void) {
  const char *file = getenv("FIXTURE_REPORT");
  FILE *to = file ? fopen(file, "a") : NULL;
  if (!to) return;
  for (int kind = 0; kind < 5; kind++)
    if (open_objects[kind]) fprintf(to, "%d %s are left\n", open_objects[kind], object_names[kind]);
  fprintf(to, "%s", reductions ? "reduced" : "nothing reduced");
  if (unstaged) fprintf(to, ", %d of %d unstaged", unstaged, reductions);
  fprintf(to, "\n");
  fclose(to);
}

static ncclResult_t start(ncclDebugLogger_t log) {
  static int starts;
  logger = log;
  logger(NCCL_LOG_INFO, NCCL_NET, __FILE__, __LINE__, "collnet version %d starts", VERSION);
  if (overlaps()) return wrong("functions overlap");
  if (VERSION <= 10 && __atomic_fetch_add(&starts, 1, __ATOMIC_SEQ_CST)) return wrong("a second init");
  ENTER("init");
  return ncclSuccess;
}

#if VERSION <= 10
#define WITH_CONTEXT
#define CHECK_CONTEXT (void)0
static ncclResult_t init(ncclDebugLogger_t log) { return start(log); }
#else
static const int context_mark = 4711;
#define WITH_CONTEXT void *ctx,
#define CHECK_CONTEXT \
  if (ctx != &context_mark) return wrong("the context")

static ncclResult_t init(void **ctx, uint64_t commId, ncclDebugLogger_t log) {
  (void)commId;
  ncclResult_t started = start(log);
  if (started) return started;
  *ctx = (void *)&context_mark;
  count(CONTEXT, 1);
  return ncclSuccess;
}

static ncclResult_t finalize(void *ctx) {
  ENTER("finalize");
  CHECK_CONTEXT;
  if (overlaps()) return wrong("functions overlap");
  count(CONTEXT, -1);
  return ncclSuccess;
}
#endif

static ncclResult_t devices(int *ndev) {
  ENTER("devices");
  *ndev = is("no devices") ? 0 : is("negative devices") ? -1 : 2;
  return ncclSuccess;
}

static ncclResult_t getProperties(int dev, V(ncclNetProperties) * props) {
  ENTER("getProperties");
  if (dev < 0 || dev > 1) return wrong("the device");
  memset(props, 0, sizeof *props);
  props->name = "switch";
  props->ptrSupport = is("GPUs only") ? NCCL_PTR_CUDA : NCCL_PTR_HOST;
  props->speed = 1000;
  props->maxComms = 1024;
  props->maxRecvs = 1;
#if VERSION >= 9
  props->maxP2pBytes = 1;
  props->maxCollBytes = is("small") ? 1000 : 1 << 30;
#endif
  return ncclSuccess;
}

struct listener {
  char path[64];
};

static ncclResult_t listen_(WITH_CONTEXT int dev, void *handle, void **listenComm) {
  static int number;
  CHECK_CONTEXT;
  ENTER("listen");
  (void)dev;
  if (is("null listener")) return ncclSuccess;
  struct listener *made = calloc(1, sizeof *made);
  int own = __atomic_fetch_add(&number, 1, __ATOMIC_SEQ_CST);
  snprintf(made->path, sizeof made->path, "/dev/shm/oxccl-collnet-%d-%d", getpid(), own);
  memset(handle, 0, NCCL_NET_HANDLE_MAXSIZE);
  memcpy(handle, made, sizeof *made);
  *listenComm = made;
  count(LISTENER, 1);
  return ncclSuccess;
}

/* What the ranks of a group share: reduction number k uses place k % DEPTH. */
#define DEPTH 4
#define RANKS 16
#define BYTES (64 << 10)
struct shared {
  int ranks;
  uint64_t given[RANKS], taken[RANKS];
  uint64_t counts[DEPTH][RANKS];
  char data[DEPTH][RANKS][BYTES];
};

struct group {
  struct shared *shared;
  int nranks, rank, regions;
  pthread_t thread;
  uint64_t next;
  struct request {
    struct group *of;
    int used, type, op;
    uint64_t number, count;
    void *from, *to;
  } requests[DEPTH];
};

/* The library stages in the first two of a group. */
struct region {
  char *data;
  size_t size;
  struct group *of;
  int number;
};

static ncclResult_t connect_(void **handles, int nranks, int rank, void *listenComm, void **collComm) {
  ENTER("connect");
  struct listener *own = listenComm, *first = handles[0];
  if (memcmp(own, handles[rank], sizeof *own)) return wrong("the own handle");
  if (is("null group")) return ncclSuccess;
  int file = open(first->path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (file < 0 || nranks > RANKS || ftruncate(file, sizeof(struct shared))) return ncclSystemError;
  struct group *made = calloc(1, sizeof *made);
  made->shared = mmap(NULL, sizeof(struct shared), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  close(file);
  if (made->shared == MAP_FAILED) return ncclSystemError;
  made->nranks = nranks;
  made->rank = rank;
  made->thread = pthread_self();
  /* Blocks until all have come, for 5 s at most. */
  if (__atomic_add_fetch(&made->shared->ranks, 1, __ATOMIC_SEQ_CST) == nranks) unlink(first->path);
  for (int i = 0; __atomic_load_n(&made->shared->ranks, __ATOMIC_SEQ_CST) < nranks; i++) {
    if (i == 5000) {
      unlink(first->path);
      return ncclRemoteError;
    }
    usleep(1000);
  }
  *collComm = made;
  connected = 1;
  count(GROUP, 1);
  return ncclSuccess;
}

static ncclResult_t reduceSupport(ncclDataType_t type, ncclRedOp_t op, int *supported) {
  ENTER("reduceSupport");
  if (!connected) return wrong("reductions are known once there is a group");
  int known = type <= ncclUint64 || type == ncclFloat32 || type == ncclFloat64;
  *supported = known && op <= ncclMin && !(is("sums only") && op != ncclSum);
  return ncclSuccess;
}

static ncclResult_t regMr(void *comm, void *data, size_t size, int type, void **mhandle) {
  ENTER("regMr");
  if (type != NCCL_PTR_HOST) return wrong("the kind of memory");
  if (is("null region")) return ncclSuccess;
  struct region *made = malloc(sizeof *made);
  struct group *group = comm;
  *made = (struct region){data, size, group, group->regions++};
  *mhandle = made;
  count(REGION, 1);
  return ncclSuccess;
}

static ncclResult_t deregMr(void *comm, void *mhandle) {
  ENTER("deregMr");
  struct region *of = mhandle;
  if (of->of != comm) return wrong("the group of a region");
  /* It is still there. */
  volatile char *memory = of->data;
  memory[0] = memory[0];
  memory[of->size - 1] = memory[of->size - 1];
  free(of);
  count(REGION, -1);
  return ncclSuccess;
}

static size_t size_of(int type) {
  static const size_t sizes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8};
  return sizes[type];
}

static int inside(struct region *region, struct group *group, char *data, size_t size) {
  if (!region) return is("null region");
  return region->of == group && data >= region->data && data + size <= region->data + region->size;
}

#if VERSION == 8
typedef int element_count;
#else
typedef size_t element_count;
#endif

static ncclResult_t iallreduce(void *collComm, void *sendData, void *recvData, element_count elements,
                               ncclDataType_t type, ncclRedOp_t op, void *sendMhandle,
                               void *recvMhandle, void **request) {
  static int looks, posts;
  ENTER("iallreduce");
  struct group *group = collComm;
  struct shared *shared = group->shared;
  uint64_t number = group->next;
  size_t size = (size_t)elements * size_of((int)type);
  int supported = 0, place = (int)(number % DEPTH);
  if (*request) return wrong("a request before there is one");
  if (!pthread_equal(group->thread, pthread_self())) return wrong("another thread");
  if (reduceSupport(type, op, &supported) || !supported) return wrong("a reduction that is not there");
  if (size > BYTES || !inside(sendMhandle, group, sendData, size) ||
      !inside(recvMhandle, group, recvData, size))
    return wrong("memory that is not registered");
  struct request *made = &group->requests[place];
  if (is("null request") && is_late(&posts)) return ncclSuccess;
  if (made->used || (is("reluctant") && ++looks % 3)) return ncclSuccess;
  for (int rank = 0; rank < group->nranks; rank++)
    if (__atomic_load_n(&shared->taken[rank], __ATOMIC_ACQUIRE) + DEPTH <= number) return ncclSuccess;
  memcpy(shared->data[place][group->rank], sendData, size);
  shared->counts[place][group->rank] = (uint64_t)elements;
  __atomic_store_n(&shared->given[group->rank], number + 1, __ATOMIC_RELEASE);
  *made = (struct request){group, 1, (int)type, (int)op, number, (uint64_t)elements, sendData, recvData};
  group->next++;
  count(REQUEST, 1);
  __atomic_add_fetch(&reductions, 1, __ATOMIC_SEQ_CST);
  struct region *sends = sendMhandle, *receives = recvMhandle;
  if (sends && sends->number >= 2 && receives->number >= 2)
    __atomic_add_fetch(&unstaged, 1, __ATOMIC_SEQ_CST);
  *request = made;
  return ncclSuccess;
}

/* Sums and products of integers wrap, so they are those of the type `wraps`. */
#define COMBINE(kind, wraps)                                                 \
  do {                                                                       \
    kind *to = of->to, *from = (kind *)shared->data[place][rank];            \
    for (uint64_t i = 0; i < of->count; i++) {                               \
      kind a = to[i], b = from[i];                                           \
      to[i] = of->op == ncclSum    ? (kind)((wraps)a + (wraps)b)             \
              : of->op == ncclProd ? (kind)((wraps)a * (wraps)b)             \
              : of->op == ncclMax  ? (b > a ? b : a)                         \
                                   : (b < a ? b : a);                        \
    }                                                                        \
  } while (0)

/* Numbers win over NaNs, of which there is one, and -0 is below +0: as in this library. */
static double extreme(double a, double b, int greatest) {
  if (a != a) a = b;
  if (b != b) b = a;
  if (a == b) return (__builtin_signbit(a) != 0) == greatest ? b : a;
  return (a > b) == greatest ? a : b;
}

#define COMBINE_FLOATS(kind)                                                 \
  do {                                                                       \
    kind *to = of->to, *from = (kind *)shared->data[place][rank];            \
    for (uint64_t i = 0; i < of->count; i++) {                               \
      kind a = to[i], b = from[i];                                           \
      kind result = of->op == ncclSum    ? a + b                             \
                    : of->op == ncclProd ? a * b                             \
                                         : (kind)extreme(a, b, of->op == ncclMax); \
      to[i] = result != result ? (kind)__builtin_nan("") : result;           \
    }                                                                        \
  } while (0)

static ncclResult_t test(void *request, int *done, int *size) {
  ENTER("test");
  struct request *of = request;
  if (!of->used) return wrong("a request that is over");
  struct group *group = of->of;
  struct shared *shared = group->shared;
  int place = (int)(of->number % DEPTH);
  static int tests;
  if (is("never completes") && is_late(&tests)) return ncclSuccess;
  for (int rank = 0; rank < group->nranks; rank++)
    if (__atomic_load_n(&shared->given[rank], __ATOMIC_ACQUIRE) <= of->number) return ncclSuccess;
  if (__atomic_load_n(&shared->taken[group->rank], __ATOMIC_ACQUIRE) != of->number)
    return ncclSuccess;
  /* A network may read it until now. */
  if (memcmp(shared->data[place][group->rank], of->from, of->count * size_of(of->type)))
    return wrong("data that have changed");
  memcpy(of->to, shared->data[place][0], of->count * size_of(of->type));
  for (int rank = 1; rank < group->nranks; rank++) {
    if (shared->counts[place][rank] != of->count) return wrong("counts that differ");
    switch (of->type) {
      case ncclInt8: COMBINE(int8_t, uint8_t); break;
      case ncclUint8: COMBINE(uint8_t, uint8_t); break;
      case ncclInt32: COMBINE(int32_t, uint32_t); break;
      case ncclUint32: COMBINE(uint32_t, uint32_t); break;
      case ncclInt64: COMBINE(int64_t, uint64_t); break;
      case ncclUint64: COMBINE(uint64_t, uint64_t); break;
      case ncclFloat32: COMBINE_FLOATS(float); break;
      default: COMBINE_FLOATS(double); break;
    }
  }
  __atomic_store_n(&shared->taken[group->rank], of->number + 1, __ATOMIC_RELEASE);
  *done = 1;
  if (size) *size = (int)(of->count * size_of(of->type));
  of->used = 0;
  count(REQUEST, -1);
  return ncclSuccess;
}

static ncclResult_t closeColl(void *collComm) {
  ENTER("closeColl");
  struct group *group = collComm;
  for (int i = 0; i < DEPTH; i++) {
    /* A network may write it until now. */
    volatile char *to = group->requests[i].used ? group->requests[i].to : NULL;
    if (to) to[0] = to[0];
  }
  munmap(group->shared, sizeof(struct shared));
  free(group);
  count(GROUP, -1);
  return ncclSuccess;
}

static ncclResult_t closeListen(void *listenComm) {
  ENTER("closeListen");
  free(listenComm);
  count(LISTENER, -1);
  return ncclSuccess;
}

#define EXPORT __attribute__((visibility("default")))
EXPORT V(ncclCollNet) JOIN(ncclCollNetPlugin_v, VERSION, ) = {
    .name = "Switch",
    .init = init,
    .devices = devices,
    .getProperties = getProperties,
    .listen = listen_,
    .connect = connect_,
    .reduceSupport = reduceSupport,
    .regMr = regMr,
    .deregMr = deregMr,
    .iallreduce = iallreduce,
    .test = test,
    .closeColl = closeColl,
    .closeListen = closeListen,
#if VERSION >= 11
    .finalize = finalize,
#endif
};

__attribute__((constructor)) static void rename_(void) {
  if (is("other name")) JOIN(ncclCollNetPlugin_v, VERSION, ).name = "Other";
}
