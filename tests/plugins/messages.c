/* Two ends of a net plugin (version 11) in one process, without the library: messages of several
 * sizes, as many under way as NCCL has, checked byte by byte. Prints the time of a message that is
 * answered, and the bandwidth of a stream of them.
 *
 *   messages PLUGIN [SENDING_DEVICE RECEIVING_DEVICE [LARGEST_BYTES]] */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <sched.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include "nccl_net.h"

enum { UNDER_WAY = 32, LIMIT_S = 60 };

static ncclNet_v11_t *net;
static size_t largest = 1 << 20;

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec + t.tv_nsec * 1e-9;
}

static void say(ncclDebugLogLevel level, unsigned long flags, const char *file, int line,
                const char *format, ...) {
  (void)level, (void)flags;
  va_list list;
  va_start(list, format);
  fprintf(stderr, "%s:%d ", file, line);
  vfprintf(stderr, format, list);
  fputc('\n', stderr);
  va_end(list);
}

static void fail(const char *what) {
  printf("FAILED: %s\n", what);
  exit(1);
}

#define CHECK(call) do { if ((call) != ncclSuccess) fail(#call); } while (0)

/* Goes on until something is there, within the limit. */
#define UNTIL(there, call)                                   \
  do {                                                       \
    double start = now();                                    \
    while (!(there)) {                                       \
      CHECK(call);                                           \
      sched_yield();                                         \
      if (now() - start > LIMIT_S) fail("in time: " #call);  \
    }                                                        \
  } while (0)

static unsigned char byte_of(int round, int slot, size_t at) {
  return (unsigned char)(round * 31 + slot * 7 + at * 13 + (at >> 8) * 5);
}

/* An end that sends or receives messages. */
struct End {
  void *connection;
  unsigned char *memory;
  void *region;
  int sends;
};

static struct End open_end(int device, int sends, void **listener, unsigned char *handle) {
  struct End end = {.sends = sends};
  void *context = NULL;
  ncclNetCommConfig_v11_t config = {.trafficClass = -1};
  CHECK(net->init(&context, 1, &config, say, NULL));
  if (!listener) {
    UNTIL(end.connection, net->connect(context, device, handle, &end.connection, NULL));
  } else {
    UNTIL(end.connection, net->accept(*listener, &end.connection, NULL));
    CHECK(net->closeListen(*listener));
  }
  end.memory = mmap(NULL, largest * UNDER_WAY, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS,
                    -1, 0);
  if (end.memory == MAP_FAILED) fail("mmap");
  CHECK(net->regMr(end.connection, end.memory, largest * UNDER_WAY, NCCL_PTR_HOST, &end.region));
  return end;
}

static void *start(struct End *end, int slot, size_t len) {
  void *request = NULL, *data = end->memory + slot * largest;
  int tag = 3;
  if (end->sends) {
    UNTIL(request, net->isend(end->connection, data, len, tag, end->region, NULL, &request));
  } else {
    UNTIL(request, net->irecv(end->connection, 1, &data, &len, &tag, &end->region, NULL, &request));
  }
  return request;
}

static void finish(struct End *end, void *request, size_t len) {
  int done = 0, size = -1;
  UNTIL(done, net->test(request, &done, &size));
  if (!end->sends && (size_t)size != len) fail("a message has its size");
}

/* Sends or receives messages, several under way. Of checked ones each byte is compared; those are
 * received into memory of the largest size. */
static void stream(struct End *end, int messages, size_t len, int checked) {
  void *requests[UNDER_WAY] = {0};
  for (int i = 0; i < messages + UNDER_WAY; i++) {
    int slot = i % UNDER_WAY, round = i / UNDER_WAY;
    unsigned char *data = end->memory + slot * largest;
    if (i >= UNDER_WAY) {
      if (!requests[slot]) continue;
      finish(end, requests[slot], len);
      requests[slot] = NULL;
      for (size_t at = 0; checked && !end->sends && at < len; at++)
        if (data[at] != byte_of(round - 1, slot, at)) fail("a message has its bytes");
      for (size_t at = len; checked && !end->sends && at < largest && at < len + 64; at++)
        if (data[at] != 0xee) fail("nothing is written behind a message");
    }
    if (i >= messages) continue;
    if (checked && end->sends)
      for (size_t at = 0; at < len; at++) data[at] = byte_of(round, slot, at);
    if (checked && !end->sends) memset(data, 0xee, largest);
    requests[slot] = start(end, slot, end->sends || !checked ? len : largest);
  }
}

struct Side {
  int first; /* whether this side sends first, in what is answered */
  struct End out, in;
  int devices[2];
  void *listener;
  unsigned char own[128], theirs[128];
  pthread_barrier_t *meet;
};

static void *run(void *given) {
  struct Side *side = given;
  if (side->first) {
    side->out = open_end(side->devices[0], 1, NULL, side->theirs);
    side->in = open_end(side->devices[0], 0, &side->listener, NULL);
  } else {
    side->in = open_end(side->devices[0], 0, &side->listener, NULL);
    side->out = open_end(side->devices[0], 1, NULL, side->theirs);
  }
  const size_t checked[] = {0, 1, 7, 64, 4095, 65552, largest};
  for (int i = 0; i < 7; i++) {
    if (checked[i] > largest) continue;
    for (int turn = 0; turn < 2; turn++)
      stream(side->first == !turn ? &side->out : &side->in, 3 * UNDER_WAY + 1, checked[i], 1);
  }
  for (size_t len = 8; len <= largest; len *= 8) {
    int rounds = len <= 4096 ? 200 : 20, messages = len <= 4096 ? 400 : 40;
    pthread_barrier_wait(side->meet);
    double began = now();
    for (int i = 0; i < rounds; i++)
      for (int turn = 0; turn < 2; turn++) {
        struct End *end = side->first == !turn ? &side->out : &side->in;
        finish(end, start(end, 0, len), len);
      }
    double half = (now() - began) / rounds / 2;
    pthread_barrier_wait(side->meet);
    began = now();
    stream(side->first ? &side->out : &side->in, messages, len, 0);
    double all = now() - began;
    if (!side->first)
      printf("%10zu B  %10.2f us  %10.1f MB/s\n", len, half * 1e6, len * messages / all * 1e-6);
    fflush(stdout);
  }
  struct End *ends[] = {&side->out, &side->in};
  for (int i = 0; i < 2; i++) {
    CHECK(net->deregMr(ends[i]->connection, ends[i]->region));
    CHECK(i ? net->closeRecv(ends[i]->connection) : net->closeSend(ends[i]->connection));
  }
  return NULL;
}

int main(int argc, char **argv) {
  void *library = argc > 1 ? dlopen(argv[1], RTLD_NOW | RTLD_LOCAL) : NULL;
  if (!library) fail(argc > 1 ? dlerror() : "usage: messages PLUGIN [DEVICE DEVICE [BYTES]]");
  net = dlsym(library, "ncclNetPlugin_v11");
  if (!net) fail("the library has ncclNetPlugin_v11");
  if (argc > 4) largest = strtoul(argv[4], NULL, 0);
  void *context = NULL;
  ncclNetCommConfig_v11_t config = {.trafficClass = -1};
  CHECK(net->init(&context, 1, &config, say, NULL));
  int devices = 0;
  CHECK(net->devices(&devices));
  for (int i = 0; i < devices; i++) {
    ncclNetProperties_v11_t p;
    CHECK(net->getProperties(i, &p));
    printf("%s, device %d: %s at %s, %d Mbit/s\n", net->name, i, p.name,
           p.pciPath ? p.pciPath : "no place", p.speed);
  }
  pthread_barrier_t meet;
  pthread_barrier_init(&meet, NULL, 2);
  struct Side sides[2];
  memset(sides, 0, sizeof sides);
  for (int i = 0; i < 2; i++) {
    sides[i].first = !i;
    sides[i].meet = &meet;
    sides[i].devices[0] = argc > 3 ? atoi(argv[2 + i]) : 0;
    if (sides[i].devices[0] >= devices) fail("the device is there");
    CHECK(net->listen(context, sides[i].devices[0], sides[i].own, &sides[i].listener));
    memcpy(sides[!i].theirs, sides[i].own, sizeof sides[i].own);
  }
  pthread_t other;
  pthread_create(&other, NULL, run, &sides[1]);
  run(&sides[0]);
  pthread_join(other, NULL);
  CHECK(net->finalize(context));
  printf("OK\n");
  return 0;
}
