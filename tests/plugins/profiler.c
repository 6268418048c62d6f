/* A profiler plugin of the version VERSION. It checks how it is used: parents, names, the order of
 * states, the end of each event, and that what the net plugin tells is part of the right message. FIXTURE
 * may also be `no handles` or `null context`. FIXTURE_MASK is the sum of the kinds of events that it asks
 * for. FIXTURE_REPORT is a file to which the kinds of events are appended, what is missing, and the
 * messages of each lane that the net plugin has told of. With FIXTURE_BLOCKS channels are thread blocks of
 * a GPU: an operation may have several, of which those of a number run one after the other. The file also
 * tells of groups that the user made, of what was captured, and of the operations in replays of that. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "nccl_profiler.h"
#include "fixture.h"

#define KINDS 16
/* The most channels for which NVIDIA's example of a profiler has room. */
#define MOST_CHANNELS 32

/* Of a channel by its number: the times of the beginning and the end of what it ran last. */
struct channel {
  uint64_t begin_ns, end_ns;
};

struct context {
  int mark, events, rank;
  struct channel channels[MOST_CHANNELS];
};
enum { MARK = 4712 };
static int contexts, captured, deep, replays, begun[KINDS], ended[KINDS];

/* The context of a communicator; with FIXTURE=null context, what a null pointer stands for. */
static struct context unmade = {MARK, 0, -1, {{0, 0}}};
static struct context *context_of(void *ctx) {
  if (!is("null context")) return ctx;
  return ctx ? NULL : &unmade;
}

/* The messages with a peer in one direction. */
struct lane {
  struct context *in;
  int rank, peer, sends, channel;
  /* That of the net plugin which has them. */
  const void *connection;
  unsigned long steps, parts, bytes;
};
#define MOST_LANES 4096
static struct lane lanes[MOST_LANES];

struct event {
  struct context *in;
  uint64_t kind, begin_ns;
  struct event *parent;
  int state, over;
  /* Of calls: whether a graph has captured them. */
  int captured;
  /* Of operations: the number of channels that they say they have. Of channels: their number. */
  int channels, channel;
  /* Of operations: the channels that came, and their numbers. */
  int came;
  uint64_t numbers;
  /* Of the messages in a direction: whether they are sent, how many there are, and their most bytes. */
  int sends, steps;
  size_t most;
  struct lane *lane;
  /* Of a message: its number in the lane, its bytes, its part and the bytes of that, with a header. */
  unsigned long number, bytes, of_part;
  struct event *part;
};
/* The bytes of a message beside its data. */
#define HEADER 16

/* Events are kept until the end, so that late uses are noticed. */
#define MOST 400000
static struct event events[MOST];
static int used;

static ncclResult_t wrong(const char *what) {
  fprintf(stderr, "wrong use: %s\n", what);
  return ncclSuccess;
}

static int number(uint64_t kind) {
  for (int i = 0; i < KINDS; i++)
    if (kind == 1ull << i) return i;
  return -1;
}

static struct lane *lane_of(struct context *in, int rank, int peer, int sends, int channel) {
  static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
  pthread_mutex_lock(&lock);
  struct lane *of = lanes;
  for (; of->in; of++)
    if (of->in == in && of->peer == peer && of->sends == sends && of->channel == channel) break;
  if (!of->in) *of = (struct lane){.in = in, .rank = rank, .peer = peer, .sends = sends, .channel = channel};
  pthread_mutex_unlock(&lock);
  return of;
}

static void report_lanes(FILE *to) {
  for (struct lane *of = lanes; of->in; of++) {
    if (!of->connection) continue;
    int from = of->sends ? of->rank : of->peer, at = of->sends ? of->peer : of->rank;
    fprintf(to, "lane %d of %d to %d: %lu messages, %lu bytes\n", of->channel, from, at, of->parts, of->bytes);
    if (of->steps != of->parts) fprintf(to, "%lu messages are left out\n", of->steps - of->parts);
  }
}

__attribute__((destructor)) static void report(void) {
  const char *file = getenv("FIXTURE_REPORT");
  FILE *to = file ? fopen(file, "a") : NULL;
  if (!to) return;
  if (contexts) fprintf(to, "%d contexts are left\n", contexts);
  for (int i = 0; i < KINDS; i++) {
    if (begun[i] != ended[i]) fprintf(to, "%d events of kind %d are left\n", begun[i] - ended[i], i);
    if (begun[i]) fprintf(to, "kind %d\n", i);
  }
#if VERSION >= 4
  int several = 0;
  for (int i = 0; i < used && i < MOST && begun[number(ncclProfileKernelCh)]; i++) {
    const struct event *of = &events[i];
    if (of->came != of->channels) fprintf(to, "%d channels are left out\n", of->channels - of->came);
    several |= of->came > 1;
  }
  if (several) fprintf(to, "several channels\n");
#endif
  if (captured) fprintf(to, "captured\n");
  if (deep) fprintf(to, "deep\n");
  if (replays) fprintf(to, "%d replays\n", replays);
  report_lanes(to);
  fprintf(to, "ended\n");
  fclose(to);
}

static int mask_of_process(void) {
  const char *wanted = getenv("FIXTURE_MASK");
  return wanted ? atoi(wanted) : 0xffff;
}

/* Begins a context, of a rank that versions before 4 do not tell: then it is -1. */
static ncclResult_t begin(void **ctx, int *mask, int rank) {
  static int inits;
  ENTER("init");
  if (overlaps()) wrong("functions overlap");
  /* As with NCCL, whose mask is that of the process. */
  if (!__atomic_fetch_add(&inits, 1, __ATOMIC_SEQ_CST)) *mask = mask_of_process();
  if (is("null context")) return ncclSuccess;
  struct context *made = calloc(1, sizeof *made);
  made->mark = MARK;
  made->rank = rank;
  *ctx = made;
  __atomic_add_fetch(&contexts, 1, __ATOMIC_SEQ_CST);
  return ncclSuccess;
}

#if VERSION <= 3
static ncclResult_t init(void **ctx, int *mask) { return begin(ctx, mask, -1); }
#else
static ncclResult_t begin_with(void **ctx, int *mask, int nodes, int ranks, int rank,
                               ncclDebugLogger_t log) {
  if (nodes < 1 || ranks < nodes || rank < 0 || rank >= ranks) return wrong("the communicator");
  log(NCCL_LOG_INFO, NCCL_PROFILE, __FILE__, __LINE__, "rank %d of %d", rank, ranks);
  return begin(ctx, mask, rank);
}
#if VERSION == 4
static ncclResult_t init(void **ctx, int *mask, const char *name, uint64_t comm, int nodes, int ranks,
                         int rank, ncclDebugLogger_t log) {
  (void)name, (void)comm;
  return begin_with(ctx, mask, nodes, ranks, rank, log);
}
#else
static ncclResult_t init(void **ctx, uint64_t comm, int *mask, const char *name, int nodes, int ranks,
                         int rank, ncclDebugLogger_t log) {
  (void)name, (void)comm;
  return begin_with(ctx, mask, nodes, ranks, rank, log);
}
#endif
#endif

#if VERSION >= 7
static void tagged(const char *what, uint64_t tag) {
  if (tag) fprintf(stderr, "%s with tag %llu\n", what, (unsigned long long)tag);
}
#endif

#define PARENT(child, of) ((child) && (child)->kind == (of))

#if VERSION >= 3
/* What the net plugin tells belongs to the message at its place in the lane of its connection. */
static void check_part(const V(ncclProfilerEventDescr) * of, struct event *parent) {
  const struct net_event *told = of->netPlugin.data;
  if (of->netPlugin.id != NET_EVENTS) wrong("the format of what a net plugin tells");
  if (!PARENT(parent, ncclProfileProxyStep) || parent->over) {
    wrong("a part of no message");
    return;
  }
  struct lane *lane = parent->lane;
  if (!lane->connection) lane->connection = told->connection;
  for (struct lane *other = lanes; other->in; other++)
    if (other != lane && other->connection == told->connection && other->in->mark == MARK)
      wrong("the lane of a connection");
  if (lane->connection != told->connection || lane->sends != told->sends) wrong("the connection of a lane");
  if (told->tag != (told->sends ? of->rank : lane->peer)) wrong("the peer of a message");
  if (parent->number != told->number || parent->part) wrong("a part of another message");
}

/* The sizes of a message and its part are the same, as far as they are told. */
static void check_size(const struct event *of) {
  if (!of->part) return;
  if (!of->part->over) wrong("the end of a message before that of a part");
  if (VERSION >= 4 && (of->lane->sends || of->bytes) && of->bytes + HEADER != of->of_part) wrong("the size of a part");
}

/* Notes a channel of an operation; returns whether it is the first one with its number. */
static int comes(struct event *of, unsigned channel) {
  uint64_t bit = 1ull << channel % MOST_CHANNELS;
  of->came++;
  int known = (of->numbers & bit) != 0;
  of->numbers |= bit;
  return !known;
}
#endif

#if VERSION >= 4
/* Whether a block may begin at a time: those of a number run one after the other. Collectives of one
 * launch share all blocks, and two transfers may share one. */
static int may_begin(const struct channel *of, uint64_t begin_ns) {
  return !getenv("FIXTURE_BLOCKS") || begin_ns == of->begin_ns || begin_ns >= of->end_ns;
}
#endif

static void check(const V(ncclProfilerEventDescr) * of, struct event *parent) {
#if VERSION == 1
#define NAMED(text) ((text) < 15)
#define TYPED(text) ((text) < 12)
#else
#define NAMED(text) ((text) && strlen(text) > 3)
#define TYPED(text) ((text) && !strncmp(text, "nccl", 4))
#endif
  switch (of->type) {
    case ncclProfileColl:
      if (!NAMED(of->coll.func) || !TYPED(of->coll.datatype)) wrong("the names of a collective");
#if VERSION >= 2
      if (!NAMED(of->coll.algo) && strcmp(of->coll.algo, "PAT")) wrong("the algorithm");
      if (strlen(of->coll.proto) < 2) wrong("the protocol");
#endif
#if VERSION >= 4
      if (of->coll.nChannels > 1 && !getenv("FIXTURE_BLOCKS")) wrong("the number of channels");
#endif
      if (of->coll.root < 0 || of->coll.count > 1ul << 40) wrong("the root or the count");
#if VERSION >= 7
      if (!of->coll.kernelVariant || strlen(of->coll.kernelVariant) < 4) wrong("the plan");
      tagged("operation", of->coll.userTag);
#endif
#if VERSION >= 5
      if (!PARENT(parent, ncclProfileCollApi)) wrong("the parent of a collective");
      if (!PARENT((struct event *)of->coll.parentGroup, ncclProfileGroup)) wrong("its group");
#else
      if (!PARENT(parent, ncclProfileGroup)) wrong("the parent of a collective");
#endif
      break;
    case ncclProfileProxyOp:
      if (!PARENT(parent, ncclProfileColl) && !PARENT(parent, ncclProfileP2p))
        wrong("the parent of messages");
      if (of->proxyOp.peer < 0 || of->proxyOp.peer == of->rank) wrong("the peer of messages");
      if (of->proxyOp.pid != getpid() || of->proxyOp.chunkSize < 1 || of->proxyOp.isSend >> 1)
        wrong("messages");
      break;
    case ncclProfileProxyStep:
      if (!PARENT(parent, ncclProfileProxyOp) || of->proxyStep.step != parent->steps++)
        wrong("a message");
      break;
    case ncclProfileP2p:
      if (!NAMED(of->p2p.func) || !TYPED(of->p2p.datatype) || of->p2p.peer < 0) wrong("a transfer");
#if VERSION >= 5
      if (!PARENT(parent, ncclProfileP2pApi)) wrong("the parent of a transfer");
#else
      if (!PARENT(parent, ncclProfileGroup)) wrong("the parent of a transfer");
#endif
      break;
#if VERSION >= 3
    case ncclProfileKernelCh:
      if (!PARENT(parent, ncclProfileColl) && !PARENT(parent, ncclProfileP2p)) wrong("a channel");
      if (parent && !comes(parent, of->kernelCh.channelId)) wrong("a channel that was there");
      if (of->kernelCh.channelId >= MOST_CHANNELS) wrong("the number of a channel");
      break;
    case ncclProfileNetPlugin:
      check_part(of, parent);
      break;
#endif
#if VERSION >= 5
    case ncclProfileGroupApi:
      if (parent || of->groupApi.groupDepth < 1) wrong("a group of calls");
      if (of->groupApi.graphCaptured) captured = 1;
      if (of->groupApi.groupDepth > 1) deep = 1;
      break;
    case ncclProfileCollApi:
    case ncclProfileP2pApi:
      if (!NAMED(of->collApi.func) || !TYPED(of->collApi.datatype)) wrong("a call");
      if (!PARENT(parent, ncclProfileGroupApi)) wrong("the parent of a call");
#if VERSION >= 7
      if (of->type == ncclProfileCollApi) tagged("call", of->collApi.userTag);
#endif
      break;
    case ncclProfileKernelLaunch:
      if (!PARENT(parent, ncclProfileGroupApi) || parent->state != ncclProfilerGroupEndApiStart)
        wrong("a launch");
      break;
#endif
  }
}

static ncclResult_t startEvent(void *ctx, void **handle, V(ncclProfilerEventDescr) * of) {
  ENTER("startEvent");
  int kind = number(of->type);
  struct event *parent = of->parentObj;
  struct context *in = context_of(ctx);
  if (!in || in->mark != MARK || kind < 0 || of->rank < 0) return wrong("an event");
  if (in->rank >= 0 && in->rank != of->rank) return wrong("the context of another rank");
  __atomic_add_fetch(&in->events, 1, __ATOMIC_SEQ_CST);
  if (is("no handles")) return ncclSuccess;
  check(of, parent);
  int at = __atomic_fetch_add(&used, 1, __ATOMIC_SEQ_CST);
  if (at >= MOST) return wrong("too many events");
  events[at] = (struct event){.in = in, .kind = of->type, .parent = parent};
#if VERSION >= 4
  if (of->type == ncclProfileColl) events[at].channels = of->coll.nChannels;
  if (of->type == ncclProfileP2p) events[at].channels = of->p2p.nChannels;
  if (of->type == ncclProfileKernelCh) {
    struct channel *channel = &in->channels[of->kernelCh.channelId % MOST_CHANNELS];
    if (!may_begin(channel, of->kernelCh.pTimer)) wrong("the order of channels");
    channel->begin_ns = of->kernelCh.pTimer;
    events[at].begin_ns = of->kernelCh.pTimer;
    events[at].channel = of->kernelCh.channelId % MOST_CHANNELS;
  }
#endif
#if VERSION >= 5
  if (of->type == ncclProfileCollApi) events[at].captured = of->collApi.graphCaptured;
  if (of->type == ncclProfileP2pApi) events[at].captured = of->p2pApi.graphCaptured;
  if ((of->type == ncclProfileColl || of->type == ncclProfileP2p) && parent && parent->captured)
    __atomic_add_fetch(&replays, 1, __ATOMIC_SEQ_CST);
#endif
  if (of->type == ncclProfileProxyOp) {
    events[at].sends = of->proxyOp.isSend;
    events[at].most = of->proxyOp.chunkSize;
    events[at].lane = lane_of(in, of->rank, of->proxyOp.peer, of->proxyOp.isSend, of->proxyOp.channelId);
  }
  if (of->type == ncclProfileProxyStep && parent) {
    events[at].lane = parent->lane;
    events[at].number = parent->lane->steps++;
  }
#if VERSION >= 3
  if (of->type == ncclProfileNetPlugin && parent) parent->part = &events[at];
#endif
  __atomic_add_fetch(&begun[kind], 1, __ATOMIC_SEQ_CST);
  *handle = &events[at];
  return ncclSuccess;
}

/* Whether a message comes into a state after the one before. */
static int follows(const struct event *of, int state) {
  int sends = of->parent->sends;
  switch (state) {
    case ncclProfilerProxyStepSendGPUWait: return sends && of->state == 0;
#if VERSION >= 4
    case ncclProfilerProxyStepSendPeerWait_v4: return of->state == ncclProfilerProxyStepSendGPUWait;
    case ncclProfilerProxyStepSendWait: return of->state == ncclProfilerProxyStepSendPeerWait_v4;
#else
    case ncclProfilerProxyStepSendWait: return of->state == ncclProfilerProxyStepSendGPUWait;
#endif
    case ncclProfilerProxyStepRecvWait: return !sends && of->state == 0;
    case ncclProfilerProxyStepRecvFlushWait: return of->state == ncclProfilerProxyStepRecvWait;
    case ncclProfilerProxyStepRecvGPUWait: return of->state == ncclProfilerProxyStepRecvFlushWait;
    default: return 0;
  }
}

static ncclResult_t stopEvent(void *handle) {
  ENTER("stopEvent");
  struct event *of = handle;
  if (!of || __atomic_exchange_n(&of->over, 1, __ATOMIC_SEQ_CST)) return wrong("an end");
  if (of->in->mark != MARK) return wrong("an end after the last call");
#if VERSION >= 4
  if (of->kind == ncclProfileKernelCh && of->state != ncclProfilerKernelChStop) return wrong("no stop");
#endif
  if (of->kind == ncclProfileGroupApi && of->state != ncclProfilerGroupEndApiStart) return wrong("states");
  /* An operation goes on for as long as its channels. */
  if (of->kind == ncclProfileKernelCh && of->parent->over) return wrong("an operation without an end");
  int is_message = of->kind == ncclProfileProxyStep;
  if ((is_message || of->kind == ncclProfileProxyOp) && of->parent->over)
    return wrong("messages without an end");
  int sends = is_message && of->parent->sends;
  int last = sends ? ncclProfilerProxyStepSendWait : ncclProfilerProxyStepRecvGPUWait;
  if (is_message && of->state != last) return wrong("the end of a message");
#if VERSION >= 3
  if (is_message) check_size(of);
  if (of->kind == ncclProfileNetPlugin) {
    if (of->parent->over) return wrong("a part of a message without an end");
    of->parent->lane->parts++;
    of->parent->lane->bytes += of->parent->of_part;
  }
#endif
  __atomic_add_fetch(&ended[number(of->kind)], 1, __ATOMIC_SEQ_CST);
  return ncclSuccess;
}

static ncclResult_t recordEventState(void *handle, ncclProfilerEventState_t state,
                                     V(ncclProfilerEventStateArgs) * args) {
  struct event *of = handle;
  if (!of || of->over || of->in->mark != MARK) return wrong("a state of nothing");
  int is_message = of->kind == ncclProfileProxyStep;
  if (is_message && !follows(of, state)) wrong("the states of a message");
  of->state = state;
  ENTER("recordEventState");
#if VERSION >= 4
  if (state == ncclProfilerKernelChStop) {
    if (args->kernelCh.pTimer < of->begin_ns) return wrong("a time");
    of->in->channels[of->channel].end_ns = args->kernelCh.pTimer;
  }
  if (is_message && args->proxyStep.transSize > of->parent->most)
    return wrong("the size of a message");
  if (is_message) of->bytes = args->proxyStep.transSize;
  if (of->kind == ncclProfileNetPlugin) {
    if (state != ncclProfilerNetPluginUpdate) return wrong("the state of a part");
    of->parent->of_part = ((const struct net_event *)args->netPlugin.data)->size;
  }
#else
  (void)args;
#endif
  return ncclSuccess;
}

static ncclResult_t finalize(void *ctx) {
  ENTER("finalize");
  struct context *of = context_of(ctx);
  if (!of || of->mark != MARK) return wrong("the context");
  if (overlaps()) wrong("functions overlap");
  if (mask_of_process() && !of->events && !is("startEvent=error")) wrong("a communicator without events");
  /* It stays, so that late calls are noticed. */
  of->mark = 0;
  if (ctx) __atomic_sub_fetch(&contexts, 1, __ATOMIC_SEQ_CST);
  return ncclSuccess;
}

__attribute__((visibility("default"))) V(ncclProfiler) JOIN(ncclProfiler_v, VERSION, ) = {
    .name = NAME,
    .init = init,
    .startEvent = startEvent,
    .stopEvent = stopEvent,
    .recordEventState = recordEventState,
    .finalize = finalize,
};
