/* What the fixtures share. FIXTURE in the environment makes a plugin misbehave: `FUNCTION=error`,
 * `FUNCTION=hang`, `FUNCTION=exit`, or a name that it understands itself. FIXTURE_RANK limits that to one rank,
 * FIXTURE_AFTER to the calls of the function after so many. A library may be compiled with a FAULT of its own
 * in the place of FIXTURE, and with another NAME of its plugin. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define JOIN_(a, b, c) a##b##c
#define JOIN(a, b, c) JOIN_(a, b, c)
#define V(name) JOIN(name##_v, VERSION, _t)

#ifndef FAULT
#define FAULT getenv("FIXTURE")
#endif
#ifndef NAME
#define NAME "Fixture"
#endif

static inline int is(const char *name) {
  const char *of = getenv("FIXTURE_RANK"), *own = getenv("OXCCL_RANK"), *what = FAULT;
  return what && (!of || (own && !strcmp(of, own))) && !strcmp(what, name);
}

/* Counts a call; whether it comes after the first FIXTURE_AFTER. */
static inline int is_late(int *calls) {
  const char *after = getenv("FIXTURE_AFTER");
  return __atomic_fetch_add(calls, 1, __ATOMIC_SEQ_CST) >= (after ? atoi(after) : 0);
}

/* What every function does first. */
static inline ncclResult_t enter(const char *function) {
  static int calls;
  char error[64], hang[64], end[64];
  snprintf(error, sizeof error, "%s=error", function);
  snprintf(hang, sizeof hang, "%s=hang", function);
  snprintf(end, sizeof end, "%s=exit", function);
  if (!is(error) && !is(hang) && !is(end)) return ncclSuccess;
  if (!is_late(&calls)) return ncclSuccess;
  while (is(hang)) pause();
  if (is(end)) _exit(9);
  return ncclSystemError;
}

#define ENTER(function)                     \
  do {                                      \
    ncclResult_t entered = enter(function); \
    if (entered) return entered;            \
  } while (0)

/* What the net plugin tells the profiler of a message, in a format of this number. */
#define NET_EVENTS 0x70001
struct net_event {
  const void *connection;
  int sends, tag;
  /* The number of the message among those of the connection that have an event, and its bytes. */
  unsigned long number, size;
};

/* Whether anything else begins or ends the plugin meanwhile. */
static inline int overlaps(void) {
  static int inside;
  int others = __atomic_fetch_add(&inside, 1, __ATOMIC_SEQ_CST);
  usleep(500);
  __atomic_fetch_sub(&inside, 1, __ATOMIC_SEQ_CST);
  return others;
}
