/* A net plugin over TCP on loopback, in the version VERSION. It checks how it is used: memory is
 * registered, tags match, and are the sender's rank unless FIXTURE_CROWD says that the process has several
 * of them, handles stay where they are, contexts, listeners and connections belong to one thread, a
 * connection has four requests under way at most, and all is closed at the end.
 * FIXTURE_REPORT is a file to which what is left at the end is appended. FIXTURE_GPU=address, dma-buf
 * (either) or only-dma-buf has it take memory of GPUs, which it copies with CUDA; what has come is there
 * only after a flush, if FIXTURE_FLUSH is set. FIXTURE=strict has accept block until somebody connects, and
 * the first isend until it was accepted; it tells no sizes of messages, and only lets the oldest request of
 * a connection be tested. From version 10 on it tells a profiler of each message. FIXTURE=slow takes a message 20 ms after it is asked first, and is done with it
 * 20 ms after that; slower is done with it after 200 ms. FIXTURE=capacity tells the size of the place as
 * that of a message. FIXTURE=null region gives no handles of memory, as NCCL's own sockets do, null context
 * none of the communicator (from version 11 on); null send and null receive take no message after the first
 * FIXTURE_AFTER. Where a rank connects with FIXTURE=stranger lies, leaves or waits, somebody else does so
 * before. FIXTURE=resets resets a connection at a message after the first FIXTURE_AFTER. FIXTURE_ADDRESS is
 * where the host is reached, if not on loopback. With LATE, all but init is set by that, the name, too. With
 * UNDEFINED, it calls a function that is nowhere. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <arpa/inet.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <time.h>

#include "nccl_net.h"
#include "fixture.h"

/* The longest message with "medium messages", in bytes. */
#define MEDIUM 100000

static ncclDebugLogger_t logger;
#if VERSION >= 10
static ncclProfilerCallback_t profiler;
enum { START, STOP, UPDATE, UPDATE_AND_STOP };
#endif
static int open_objects[5];
enum { CONTEXT, LISTENER, CONNECTION, REGION, REQUEST };
static const char *const object_names[] = {"contexts", "listeners", "connections", "regions",
                                           "requests"};
/* Messages in memory of GPUs. */
static int gpu_sends, gpu_receives, gpu_flushes;

static void count(int kind, int by) { __atomic_add_fetch(&open_objects[kind], by, __ATOMIC_SEQ_CST); }

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
  if (gpu_sends | gpu_receives)
    fprintf(to, "GPU: sends %d, receives %d, flushes %d\n", gpu_sends, gpu_receives, gpu_flushes);
  fprintf(to, "ended\n");
  fclose(to);
}

/* The driver, where memory of GPUs is taken. */
static int by_dma_buf(void) {
  const char *gpu = getenv("FIXTURE_GPU");
  return gpu && strcmp(gpu, "address");
}

static int by_address(void) {
  const char *gpu = getenv("FIXTURE_GPU");
  return gpu && strcmp(gpu, "only-dma-buf");
}

#define CUDA_FUNCTION(name, ...)                                        \
  int (*call)(__VA_ARGS__) = (int (*)(__VA_ARGS__))dlsym(cuda(), name); \
  if (!call) return -1

static void *cuda(void) {
  static void *library;
  if (!library) library = dlopen("libcuda.so.1", RTLD_NOW);
  return library;
}

static int current_context(void **context) {
  CUDA_FUNCTION("cuCtxGetCurrent", void **);
  return call(context);
}

static int make_stream(void **stream) {
  CUDA_FUNCTION("cuStreamCreate", void **, unsigned);
  return call(stream, 1 /* non-blocking */);
}

static int synchronize(void *stream) {
  CUDA_FUNCTION("cuStreamSynchronize", void *);
  return call(stream);
}

/* Copies to or from memory of a GPU, beside whatever else runs there. */
static ncclResult_t copy(void *to, const void *from, uint64_t size) {
  static __thread void *stream;
  void *context = NULL;
  if (current_context(&context) || !context) return wrong("a thread without a context");
  if (!stream && make_stream(&stream)) return wrong("no stream");
  CUDA_FUNCTION("cuMemcpyAsync", uint64_t, uint64_t, size_t, void *);
  if (call((uint64_t)(uintptr_t)to, (uint64_t)(uintptr_t)from, size, stream) || synchronize(stream))
    return wrong("memory that CUDA does not know");
  return ncclSuccess;
}

static void complete(void);

/* A variable as it was when the library was loaded. */
static const char *first_mark;
__attribute__((constructor)) static void look(void) { first_mark = getenv("NCCL_TESTS_MARK"); }

static ncclResult_t start(ncclDebugLogger_t log) {
  static int starts;
  logger = log;
  logger(NCCL_LOG_INFO, NCCL_NET, __FILE__, __LINE__, "version %d starts", VERSION);
  if (overlaps()) return wrong("functions overlap");
  if (VERSION <= 10 && __atomic_fetch_add(&starts, 1, __ATOMIC_SEQ_CST)) return wrong("a second init");
  ENTER("init");
  const char *mark = getenv("NCCL_TESTS_MARK");
  if (mark)
    logger(NCCL_LOG_INFO, NCCL_NET, __FILE__, __LINE__, "the mark is %s, at first it was %s", mark,
           first_mark ? first_mark : "none");
  complete();
  return ncclSuccess;
}

#if VERSION <= 9
static ncclResult_t init(ncclDebugLogger_t log) { return start(log); }
#elif VERSION == 10
static ncclResult_t init(ncclDebugLogger_t log, ncclProfilerCallback_t callback) {
  profiler = callback;
  return start(log);
}
#else
/* The context of the one communicator whose functions this thread calls. */
static __thread int *context;

/* What stands for it: a plugin without any state of its own may leave it null. */
static void *given_context(void) { return is("null context") ? NULL : context; }

static ncclResult_t init(void **ctx, uint64_t commId, V(ncclNetCommConfig) * config,
                         ncclDebugLogger_t log, ncclProfilerCallback_t callback) {
  (void)commId;
  logger = log;
  profiler = callback;
  if (!config || config->trafficClass != -1) return wrong("the traffic class");
  ncclResult_t started = start(log);
  if (started) return started;
  if (context) return wrong("a thread of two communicators");
  context = malloc(sizeof *context);
  *ctx = given_context();
  count(CONTEXT, 1);
  return ncclSuccess;
}

static ncclResult_t finalize(void *ctx) {
  ENTER("finalize");
  if (!context || ctx != given_context()) return wrong("the context");
  if (overlaps()) return wrong("functions overlap");
  free(context);
  context = NULL;
  count(CONTEXT, -1);
  return ncclSuccess;
}
#endif

static ncclResult_t devices(int *ndev) {
  if (overlaps()) return wrong("functions overlap");
  ENTER("devices");
  *ndev = is("no devices") ? 0 : is("negative devices") ? -1 : 2;
  return ncclSuccess;
}

static ncclResult_t getProperties(int dev, V(ncclNetProperties) * props) {
  if (overlaps()) return wrong("functions overlap");
  ENTER("getProperties");
  if (dev < 0 || dev > 1) return wrong("the device");
  memset(props, 0, sizeof *props);
  props->name = is("null texts") ? NULL : dev ? "second" : "first";
  props->ptrSupport = is("GPUs only") ? NCCL_PTR_CUDA : NCCL_PTR_HOST;
  if (by_address()) props->ptrSupport |= NCCL_PTR_CUDA;
  if (by_dma_buf()) props->ptrSupport |= NCCL_PTR_DMABUF;
  props->speed = 1000;
  props->latency = 1;
  props->maxComms = is("strict") || is("one connection") ? 1 : 1024;
  props->maxRecvs = 1;
#if VERSION >= 7
  props->netDeviceType = is("offload") ? NCCL_NET_DEVICE_UNPACK : NCCL_NET_DEVICE_HOST;
#endif
#if VERSION >= 9
  props->maxP2pBytes = is("small messages") ? 1000 : is("medium messages") ? MEDIUM : 1 << 30;
  props->forceFlush = getenv("FIXTURE_FLUSH") != NULL;
#endif
  return ncclSuccess;
}

/* What a handle holds; `state` and `self` are for the one who connects. */
struct handle {
  uint32_t address;
  int port;
  int fd;
  struct handle *self;
};

struct connection;

/* What a request is. */
enum { MESSAGE, FLUSH };

struct request {
  int kind;
  struct connection *of;
  struct region *in;
  char *data; /* on the host */
  char *on_gpu;
  int tag;
  uint64_t size, at;
  uint32_t header[2];
  int used, done;
  uint64_t capacity, began_ms;
  void *event;
  struct net_event told;
};

/* The most requests under way that a direction of a connection is promised to have. */
#define MOST 4
struct connection {
  int fd, sends, looks, unaccepted;
  uint64_t asked_ms; /* when the next message was asked for first; 0 if it was not */
  pthread_t thread;
  struct unflushed *unflushed;
  struct request requests[MOST];
  uint64_t first, next, tested;
  /* The messages that a profiler was told of, and what came with the message that was refused last. */
  uint64_t told;
  int refused;
  void *of_refused;
};

struct region {
  char *data;
  uint64_t size;
  struct connection *of;
  int on_gpu;
};

/* A message that has come, and is not in memory of the GPU yet. */
struct unflushed {
  char *from, *to;
  uint64_t size;
  struct unflushed *next;
};

struct listener {
  int fd;
  pthread_t thread;
};

/* All functions of a communicator and rank are called by one thread. */
#define CHECK_THREAD(of)                                                              \
  do {                                                                                \
    if (!pthread_equal((of)->thread, pthread_self())) return wrong("another thread"); \
  } while (0)

static int nonblocking(void) {
  int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0), one = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  return fd;
}

static uint32_t own_address(void) {
  const char *address = getenv("FIXTURE_ADDRESS");
  return address ? inet_addr(address) : htonl(INADDR_LOOPBACK);
}

static struct sockaddr_in place(uint32_t address, int port) {
  struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
  at.sin_addr.s_addr = address;
  return at;
}

/* Somebody who knows where the peer listens, but no secret. */
static void send_stranger(struct sockaddr_in to) {
  const char *rank = getenv("OXCCL_RANK");
  uint32_t message[11] = {36, rank ? (uint32_t)atoi(rank) : 0};
  int lies = is("stranger lies"), leaves = is("stranger leaves");
  if (!lies && !leaves && !is("stranger waits")) return;
  int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  int failed = connect(fd, (struct sockaddr *)&to, sizeof to) < 0;
  if (failed || leaves || (lies && write(fd, message, sizeof message) < 0)) close(fd);
}

static struct connection *connection(int fd, int sends) {
  struct connection *made = calloc(1, sizeof *made);
  made->fd = fd;
  made->sends = sends;
  made->thread = pthread_self();
  count(CONNECTION, 1);
  if (sends) logger(NCCL_LOG_INFO, NCCL_NET, __FILE__, __LINE__, "it has connected");
  return made;
}

/* Waits until there is something to read. */
static void await(int fd) {
  struct pollfd ready = {.fd = fd, .events = POLLIN};
  while (poll(&ready, 1, -1) < 0 && errno == EINTR) continue;
}

static ncclResult_t listen_on(void *handle, void **listenComm) {
  ENTER("listen");
  if (is("null listener")) return ncclSuccess;
  struct sockaddr_in at = place(own_address(), 0);
  socklen_t length = sizeof at;
  struct listener *made = malloc(sizeof *made);
  made->fd = nonblocking();
  made->thread = pthread_self();
  if (bind(made->fd, (struct sockaddr *)&at, sizeof at) || listen(made->fd, 8)) return ncclSystemError;
  getsockname(made->fd, (struct sockaddr *)&at, &length);
  struct handle *filled = handle;
  memset(handle, 0, NCCL_NET_HANDLE_MAXSIZE);
  filled->address = at.sin_addr.s_addr;
  filled->port = ntohs(at.sin_port);
  *listenComm = made;
  count(LISTENER, 1);
  return ncclSuccess;
}

static ncclResult_t connect_to(void *handle, void **sendComm) {
  ENTER("connect");
  if (is("one connection") && open_objects[CONNECTION]) return ncclSystemError;
  if (is("never connects")) return ncclSuccess;
  struct handle *at = handle;
  if (!at->self) {
    at->self = at;
    at->fd = nonblocking();
    struct sockaddr_in to = place(at->address, at->port);
    send_stranger(to);
    if (connect(at->fd, (struct sockaddr *)&to, sizeof to) && errno != EINPROGRESS)
      return ncclSystemError;
    if (!is("strict")) return ncclSuccess;
    struct connection *made = connection(at->fd, 1);
    made->unaccepted = 1;
    *sendComm = made;
    return ncclSuccess;
  }
  if (at->self != at) return wrong("the handle has moved");
  struct sockaddr_in peer;
  socklen_t length = sizeof peer;
  if (getpeername(at->fd, (struct sockaddr *)&peer, &length)) return ncclSuccess;
  *sendComm = connection(at->fd, 1);
  return ncclSuccess;
}

static ncclResult_t accept_from(void *listenComm, void **recvComm) {
  ENTER("accept");
  if (is("one connection") && open_objects[CONNECTION]) return ncclSystemError;
  struct listener *from = listenComm;
  CHECK_THREAD(from);
  if (is("strict")) await(from->fd);
  int fd = accept4(from->fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
  if (fd < 0) return errno == EAGAIN ? ncclSuccess : ncclSystemError;
  if (is("strict") && write(fd, "", 1) != 1) return ncclSystemError;
  *recvComm = connection(fd, 0);
  return ncclSuccess;
}

#if VERSION >= 11
#define WITH_CONTEXT void *ctx,
#define CHECK_CONTEXT \
  if (!context || ctx != given_context()) return wrong("the context")
#else
#define WITH_CONTEXT
#define CHECK_CONTEXT (void)0
#endif

static ncclResult_t listen_(WITH_CONTEXT int dev, void *handle, void **listenComm) {
  CHECK_CONTEXT;
  (void)dev;
  return listen_on(handle, listenComm);
}

#if VERSION == 6
static ncclResult_t connect_(int dev, void *handle, void **sendComm) {
  (void)dev;
  return connect_to(handle, sendComm);
}
static ncclResult_t accept_(void *listenComm, void **recvComm) { return accept_from(listenComm, recvComm); }
#else
#if VERSION == 10
static ncclResult_t connect_(int dev, ncclNetCommConfig_v10_t *config, void *handle, void **sendComm,
                             ncclNetDeviceHandle_v10_t **onDevice) {
  if (!config || config->trafficClass != -1) return wrong("the traffic class");
#else
static ncclResult_t connect_(WITH_CONTEXT int dev, void *handle, void **sendComm,
                             V(ncclNetDeviceHandle) * *onDevice) {
  CHECK_CONTEXT;
#endif
  (void)dev, (void)onDevice;
  return connect_to(handle, sendComm);
}
static ncclResult_t accept_(void *listenComm, void **recvComm, V(ncclNetDeviceHandle) * *onDevice) {
  (void)onDevice;
  return accept_from(listenComm, recvComm);
}
#endif

#if VERSION <= 7
typedef int region_size;
#else
typedef size_t region_size;
#endif

static ncclResult_t register_memory(struct connection *comm, void *data, uint64_t size, int on_gpu,
                                    void **mhandle) {
  CHECK_THREAD(comm);
  struct region *made = malloc(sizeof *made);
  *made = (struct region){data, size, comm, on_gpu};
  *mhandle = made;
  count(REGION, 1);
  return ncclSuccess;
}

static ncclResult_t regMr(void *comm, void *data, region_size size, int type, void **mhandle) {
  ENTER("regMr");
  int on_gpu = type == NCCL_PTR_CUDA;
  if (type != NCCL_PTR_HOST && !(on_gpu && by_address())) return wrong("the kind of memory");
  if (on_gpu && is("refuses-GPUs")) return ncclSystemError;
  if (is("null region")) return ncclSuccess;
  return register_memory(comm, data, (uint64_t)size, on_gpu, mhandle);
}

static ncclResult_t regMrDmaBuf(void *comm, void *data, size_t size, int type, uint64_t offset, int fd,
                                void **mhandle) {
  ENTER("regMrDmaBuf");
  char path[64], name[64] = "";
  snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
  if (type != NCCL_PTR_CUDA || !by_dma_buf()) return wrong("the kind of memory");
  if (readlink(path, name, sizeof name - 1) < 0 || strncmp(name, "/dmabuf:", 8))
    return wrong("a descriptor that is no dma-buf");
  if (offset || lseek(fd, 0, SEEK_END) < (off_t)size) return wrong("memory outside of its dma-buf");
  if (is("refuses-dma-bufs")) return ncclSystemError;
  return register_memory(comm, data, size, 1, mhandle);
}

static ncclResult_t deregMr(void *comm, void *mhandle) {
  ENTER("deregMr");
  struct region *of = mhandle;
  if (of->of != comm) return wrong("the connection of a region");
  CHECK_THREAD(of->of);
  free(of);
  count(REGION, -1);
  return ncclSuccess;
}

/* Has a message that has come go where it belongs; the GPU sees it later if it must be flushed. */
static ncclResult_t arrive(struct connection *of, struct request *came) {
  if (!came->on_gpu || of->sends) return ncclSuccess;
  __atomic_add_fetch(&gpu_receives, 1, __ATOMIC_SEQ_CST);
  if (!getenv("FIXTURE_FLUSH")) return copy(came->on_gpu, came->data, came->size);
  struct unflushed *waits = malloc(sizeof *waits);
  *waits = (struct unflushed){malloc(came->size), came->on_gpu, came->size, of->unflushed};
  memcpy(waits->from, came->data, came->size);
  of->unflushed = waits;
  return ncclSuccess;
}

/* Moves the data of a connection as far as possible. */
static ncclResult_t move(struct connection *of) {
  while (of->first < of->next) {
    struct request *oldest = &of->requests[of->first % MOST];
    char *header = (char *)oldest->header;
    uint64_t at = oldest->at;
    int begun = at >= 8;
    char *from = begun ? oldest->data + (at - 8) : header + at;
    uint64_t length = begun ? oldest->size + 8 - at : 8 - at;
    ssize_t moved = 0;
    if (length > 0) {
      moved = of->sends ? send(of->fd, from, length, MSG_NOSIGNAL) : recv(of->fd, from, length, 0);
      if (moved < 0 && errno == EAGAIN) return ncclSuccess;
      if (moved <= 0) return ncclRemoteError;
    }
    oldest->at += (uint64_t)moved;
    if (!of->sends && oldest->at == 8 && !begun) {
      if (oldest->header[0] > oldest->size) return wrong("a message is larger than its place");
      if (oldest->header[1] != (uint32_t)oldest->tag) return wrong("the tag of a message");
      oldest->size = oldest->header[0];
    }
    if (oldest->at == oldest->size + 8) {
      ncclResult_t there = arrive(of, oldest);
      if (there) return there;
      oldest->done = 1;
      of->first++;
    }
  }
  return ncclSuccess;
}

static uint64_t now_ms(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

/* Has both ends of a connection find it reset, as by somebody on the way. */
static void reset(struct connection *of) {
  struct sockaddr nowhere = {.sa_family = AF_UNSPEC};
  connect(of->fd, &nowhere, sizeof nowhere);
}

/* Returns how long a slow sender takes to be done with a message. */
static uint64_t slow_ms(void) { return is("slow") ? 20 : is("slower") ? 200 : 0; }

/* Returns whether a slow sender does not take the next message yet. */
static int is_too_early(struct connection *of) {
  if (!is("slow") || !of->sends) return 0;
  if (!of->asked_ms) of->asked_ms = now_ms();
  if (now_ms() - of->asked_ms < 20) return 1;
  of->asked_ms = 0;
  return 0;
}

/* Tells a profiler that a message begins, of which it knows as `phandle`. */
static void begin_event(struct request *of, void *phandle) {
#if VERSION >= 10
  if (!phandle) return;
  of->told = (struct net_event){of->of, of->of->sends, of->tag, of->of->told++, of->size};
  profiler(&of->event, START, phandle, NET_EVENTS, &of->told);
#else
  (void)of, (void)phandle;
#endif
}

/* Tells it that a message of this size is over, at once or in two calls. */
static void end_event(struct request *of) {
#if VERSION >= 10
  if (!of->event) return;
  of->told.size = of->size;
  if (of->told.number % 2) {
    profiler(&of->event, UPDATE_AND_STOP, NULL, NET_EVENTS, &of->told);
  } else {
    profiler(&of->event, UPDATE, NULL, NET_EVENTS, &of->told);
    profiler(&of->event, STOP, NULL, 0, NULL);
  }
  /* It is over: this does nothing. */
  profiler(&of->event, STOP, NULL, 0, NULL);
#else
  (void)of;
#endif
}

static ncclResult_t post(struct connection *of, void *data, uint64_t size, int tag, void *mhandle,
                         void *phandle, void **request) {
  if (is("medium messages") && size > MEDIUM) return wrong("a message of more than maxP2pBytes");
  static int posts, sends;
  struct region *in = mhandle;
  const char *rank = getenv("OXCCL_RANK");
  if (*request) return wrong("a request before there is one");
  CHECK_THREAD(of);
  if (of->next - of->tested == MOST) return wrong("a fifth request");
  if (!in ? !is("null region")
          : in->of != of || (char *)data < in->data || (char *)data + size > in->data + in->size)
    return wrong("memory that is not registered");
  if (of->sends && rank && !getenv("FIXTURE_CROWD") && tag != atoi(rank)) return wrong("the tag of a send");
  if (is(of->sends ? "null send" : "null receive") && is_late(&posts)) return ncclSuccess;
  if (of->sends && is("resets") && is_late(&sends)) reset(of);
  if (of->refused && of->of_refused != phandle) return wrong("another message after one that was refused");
  of->refused = 1;
  of->of_refused = phandle;
  struct request *made = &of->requests[of->next % MOST];
  if (made->used || (is("reluctant") && ++of->looks % 3) || is_too_early(of)) return ncclSuccess;
  *made = (struct request){.of = of, .in = in, .data = data, .tag = tag, .size = size, .used = 1};
  made->capacity = size;
  made->began_ms = now_ms();
  of->refused = 0;
  begin_event(made, phandle);
  if (in && in->on_gpu) {
    made->on_gpu = data;
    made->data = malloc(size);
    ncclResult_t copied = of->sends ? copy(made->data, data, size) : ncclSuccess;
    if (copied) return copied;
    __atomic_add_fetch(&gpu_sends, of->sends, __ATOMIC_SEQ_CST);
  }
  made->header[0] = of->sends ? (uint32_t)size : 0;
  made->header[1] = of->sends ? (uint32_t)tag : 0;
  of->next++;
  count(REQUEST, 1);
  *request = made;
  return move(of);
}

#if VERSION <= 8
typedef int message_size;
#else
typedef size_t message_size;
#endif
#if VERSION >= 10
#define PROFILED void *phandle,
#define PROFILED_ALL void **phandles,
#define EVENT phandle
#define FIRST_EVENT phandles[0]
#else
#define PROFILED
#define PROFILED_ALL
#define EVENT NULL
#define FIRST_EVENT NULL
#endif

static ncclResult_t isend(void *sendComm, void *data, message_size size, int tag, void *mhandle,
                          PROFILED void **request) {
  ENTER("isend");
  struct connection *of = sendComm;
  if (of->unaccepted) {
    char accepted;
    await(of->fd);
    if (read(of->fd, &accepted, 1) != 1) return ncclSystemError;
    of->unaccepted = 0;
  }
  return post(sendComm, data, (uint64_t)size, tag, mhandle, EVENT, request);
}

static ncclResult_t irecv(void *recvComm, int n, void **data, message_size *sizes, int *tags,
                          void **mhandles, PROFILED_ALL void **request) {
  ENTER("irecv");
  if (n != 1) return wrong("several messages at once");
  return post(recvComm, data[0], (uint64_t)sizes[0], tags[0], mhandles[0], FIRST_EVENT, request);
}

static ncclResult_t iflush(void *recvComm, int n, void **data, int *sizes, void **mhandles,
                           void **request) {
  ENTER("iflush");
  struct connection *of = recvComm;
  struct region *in = mhandles[0];
  CHECK_THREAD(of);
  if (n != 1 || *request) return wrong("several messages at once");
  if (!in->on_gpu) return wrong("a flush of memory of the host");
  struct unflushed **at = &of->unflushed;
  while (*at && (*at)->to != data[0]) at = &(*at)->next;
  struct unflushed *found = *at;
  if (!found) return wrong("a flush before the message has come, or a second one");
  uint64_t asked = (uint64_t)sizes[0];
  if (is("strict") ? found->size > asked : found->size != asked) return wrong("the size of a flush");
  ncclResult_t copied = copy(found->to, found->from, found->size);
  *at = found->next;
  free(found->from);
  free(found);
  struct request *made = calloc(1, sizeof *made);
  *made = (struct request){.kind = FLUSH, .of = of, .used = 1};
  count(REQUEST, 1);
  __atomic_add_fetch(&gpu_flushes, 1, __ATOMIC_SEQ_CST);
  *request = made;
  return copied;
}

static ncclResult_t test(void *request, int *done, int *sizes) {
  ENTER("test");
  struct request *of = request;
  if (!of->used) return wrong("a request that is over");
  CHECK_THREAD(of->of);
  if (of->kind == FLUSH) {
    if (of->used++ < 3) return ncclSuccess;
    *done = 1;
    free(of);
    count(REQUEST, -1);
    return ncclSuccess;
  }
  static int tests;
  if (is("never completes") && is_late(&tests)) return ncclSuccess;
  if (is("strict") && of != &of->of->requests[of->of->tested % MOST]) return wrong("a test out of order");
  ncclResult_t moved = move(of->of);
  if (moved) return moved;
  if (!of->done) return ncclSuccess;
  if (of->of->sends && now_ms() - of->began_ms < slow_ms()) return ncclSuccess;
  *done = 1;
  end_event(of);
  if (is("capacity")) of->size = of->capacity;
  if (sizes && !is("strict")) *sizes = is("lies") ? 1 << 20 : is("negative size") ? -5 : (int)of->size;
  of->used = 0;
  of->of->tested++;
  if (of->on_gpu) free(of->data);
  count(REQUEST, -1);
  return ncclSuccess;
}

static ncclResult_t close_connection(struct connection *of) {
  CHECK_THREAD(of);
  close(of->fd);
  free(of);
  count(CONNECTION, -1);
  return ncclSuccess;
}

static ncclResult_t closeSend(void *sendComm) {
  ENTER("closeSend");
  return close_connection(sendComm);
}

static ncclResult_t closeRecv(void *recvComm) {
  ENTER("closeRecv");
  return close_connection(recvComm);
}

#ifdef UNDEFINED
void function_that_is_nowhere(void);
#endif

static ncclResult_t closeListen(void *listenComm) {
  ENTER("closeListen");
#ifdef UNDEFINED
  if (is("calls what is missing")) function_that_is_nowhere();
#endif
  struct listener *of = listenComm;
  CHECK_THREAD(of);
  close(of->fd);
  free(of);
  count(LISTENER, -1);
  return ncclSuccess;
}

#define PLUGIN __attribute__((visibility("default"))) V(ncclNet) JOIN(ncclNetPlugin_v, VERSION, )
#ifdef LATE
PLUGIN = {.name = "Fixture", .init = init};
static const V(ncclNet) whole = {
    .name = "Complete",
#else
PLUGIN = {
    .name = NAME,
#endif
    .init = init,
    .devices = devices,
    .getProperties = getProperties,
    .listen = listen_,
    .connect = connect_,
    .accept = accept_,
    .regMr = regMr,
    .regMrDmaBuf = regMrDmaBuf,
    .deregMr = deregMr,
#ifndef NO_ISEND
    .isend = isend,
#endif
    .irecv = irecv,
    .iflush = iflush,
    .test = test,
    .closeSend = closeSend,
    .closeRecv = closeRecv,
    .closeListen = closeListen,
#if VERSION >= 11
    .finalize = finalize,
#endif
};

static void complete(void) {
#ifdef LATE
  JOIN(ncclNetPlugin_v, VERSION, ) = whole;
#endif
}
