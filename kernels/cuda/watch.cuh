// Waits that end when the host gives up, when time is over, and when a peer has left or calls
// something else.
#pragma once

#include "memory.cuh"

namespace oxccl {

constexpr uint64_t PATIENCE_NS = 20000;  // of spinning, before anything slow is looked at
constexpr uint64_t LOOK_NS = 500000;     // between looks at what is slow
// Of these the host is told, because a store to its memory makes a kernel end 0.8 µs later: of a
// part of the collectives, the same on all ranks, and of a part of the messages, so that calls take
// 0.8 / 32 µs longer in the mean; and of each that is called so rarely that it does not matter.
constexpr uint64_t TELL_EACH = 32;
constexpr uint64_t TELL_NS = 100000000;

__device__ inline Shared* common(const Rank& r) { return reinterpret_cast<Shared*>(r.common); }

__device__ inline uint32_t faulty(const Rank& r) {
  return *const_cast<volatile uint32_t*>(&common(r)->fault);
}

__device__ inline void tell(const Rank& r, uint32_t fault, int peer, int step, uint64_t operation) {
  volatile Control* c = reinterpret_cast<volatile Control*>(r.control);
  c->peer = peer;
  c->step = step;
  c->operation = operation;
  fence();
  c->fault = fault;
  fence();
}

// The steps of waits that have none: within a collective, and outside of collectives.
constexpr int NO_STEP = -1, OUTSIDE = -2;

// The first fault of a communicator is told to the host; nothing runs after it.
__device__ __noinline__ void fail(const Rank& r, uint32_t fault, int peer, int step) {
  if (atomicCAS(&common(r)->fault, FAULT_NONE, fault) != FAULT_NONE) return;
  const volatile Shared* s = common(r);
  volatile Control* c = reinterpret_cast<volatile Control*>(r.control);
  uint64_t begun = step == OUTSIDE ? 0 : s->begun;
  if (begun == 0) {
    c->own_what = NO_CALL;
    return tell(r, fault, peer, step, s->operations);
  }
  const volatile Called& own = s->called[begun % ANNOUNCEMENTS];
  c->own_what = own.what;
  c->own_count = own.count;
  tell(r, fault, peer, step, begun - 1);
}

// Reads what the host has to say. A look into the host's memory takes a microsecond, and looks come
// one after the other, so of all threads of the communicator one looks at a time, `grace_ns` after
// the next look is due. Returns whether this one did.
__device__ inline bool hear_host(const Rank& r, uint64_t now, uint64_t grace_ns) {
  volatile Shared* s = common(r);
  unsigned long long next = s->next_look_ns;
  auto* at = reinterpret_cast<unsigned long long*>(&common(r)->next_look_ns);
  if (now < next + grace_ns || atomicCAS(at, next, now + LOOK_NS) != next) return false;
  const volatile Control* c = reinterpret_cast<const volatile Control*>(r.control);
  s->limit_ns = c->limit_ns;
  s->left = c->left;
  if (c->abort) fail(r, FAULT_ABORTED, -1, -1);
  return true;
}

// Returns whether a peer has announced an operation; if so, what it called.
__device__ inline bool announced(const Rank& r, int peer, uint64_t operation, uint64_t& count,
                                 uint64_t& what) {
  const Announcement* here = announcement(r, r.rank, operation, peer);
  bool all = load_packet(&here->count, operation, count);
  all &= load_packet(&here->what, operation, what);
  return all;
}

// Tells the host what is awaited and in which collective, for those who ask why nothing moves.
__device__ __noinline__ void say_waiting(const Rank& r, int peer, int step, uint64_t waited_ns) {
  volatile Control* c = reinterpret_cast<volatile Control*>(r.control);
  const volatile Shared* s = common(r);
  uint64_t operation = step == OUTSIDE ? 0 : s->begun, count, what;
  const volatile Called& own = s->called[operation % ANNOUNCEMENTS];
  c->waited_ns = waited_ns;
  c->awaited = peer;
  c->awaited_step = step;
  c->awaited_in = operation;
  c->awaited_what = own.what;
  c->awaited_count = own.count;
  c->awaited_has_begun =
      operation != 0 && peer >= 0 && peer < MAX_RANKS && announced(r, peer, operation, count, what);
  fence();
  c->waits = c->waits + 1;
}

// Peers are named by their places among the ranks of this host; ranks of other hosts by their
// numbers in the communicator, from MAX_RANKS on.
__device__ inline int name_of(const Rank& r, uint32_t rank) {
  const Peer* peer = peer_of(r, rank);
  if (!peer) return int(rank);
  return peer->words ? int(MAX_RANKS + rank) : int(peer->place);
}

// Returns whether a peer has left; to be called after `hear_host`.
__device__ inline bool has_left(const Rank& r, int peer) {
  if (peer < 0) return false;
  if (peer < MAX_RANKS) return const_cast<volatile Shared*>(common(r))->left >> peer & 1;
  bool all = true;
  for (int lane = 0; lane < r.net_lanes; lane++)
    all &= load_acquire(&net_words(*peer_of(r, peer - MAX_RANKS, lane))->left) != 0;
  return all;
}

// One thread's wait.
struct Wait {
  uint32_t spins = 0;
  uint32_t looks = 0;  // at what is slow to look at
  uint64_t since = 0;
  uint64_t next = 0;
  int gone = -1;  // the peer that had left at the last slow look

  // Returns whether to give up; to be called after every look that found nothing.
  __device__ bool over(const Rank& r, int peer, int step) {
    if (++spins & 63) return false;
    if (faulty(r)) return true;
    uint64_t now = now_ns();
    if (since == 0) {
      since = now;
      next = now + PATIENCE_NS;
    }
    if (now < next) return false;
    next = now + LOOK_NS;
    looks += 1;
    // Who looks also tells what is awaited. All that wait look once in LOOK_NS, so one that knows
    // its step comes before those that leave others that much more.
    if (hear_host(r, now, step == NO_STEP ? LOOK_NS : 0))
      say_waiting(r, peer, step, now - since);
    uint64_t limit = const_cast<volatile Shared*>(common(r))->limit_ns;
    if (limit != 0 && now - since > limit) fail(r, FAULT_DEADLINE, peer, step);
    bool left = has_left(r, peer);
    // What a peer wrote before it left has been visible since the last look: it did not write what
    // is awaited.
    if (left && gone == peer) fail(r, FAULT_LEFT, peer, step);
    gone = left ? peer : -1;
    return faulty(r);
  }
};

// Reports, as `fail` does, that a peer's call does not fit this rank's.
__device__ __noinline__ void differ(const Rank& r, int peer, uint64_t operation,
                                    uint32_t own_what, uint64_t own_count, uint32_t their_what,
                                    uint64_t their_count) {
  if (atomicCAS(&common(r)->fault, FAULT_NONE, FAULT_MISMATCH) != FAULT_NONE) return;
  volatile Control* c = reinterpret_cast<volatile Control*>(r.control);
  c->own_what = own_what;
  c->own_count = own_count;
  c->their_what = their_what;
  c->their_count = their_count;
  tell(r, FAULT_MISMATCH, peer, -1, operation);
}

// Waits for something that a peer does at a step, or outside collectives; false when it will not
// come. It will not if the peer, on this host, has begun the next collective, as it waits there for
// this rank.
template <typename Ready>
__device__ inline bool await(const Rank& r, int peer, int step, uint32_t own_what,
                             uint64_t own_count, Ready ready) {
  Wait wait;
  for (uint32_t looks = 0; !ready();) {
    if (wait.over(r, peer, step)) return false;
    if (wait.looks == looks) continue;
    looks = wait.looks;
    if (peer >= MAX_RANKS) continue;
    uint64_t operation = common(r)->operations + 1;
    uint64_t count, what;
    if (!announced(r, peer, operation, count, what)) continue;
    // Within a collective the peer may have announced the same one, before this rank counted it.
    if (uint32_t(what) == own_what && count == own_count) continue;
    // What the peer did before its announcement is visible here as well.
    fence();
    if (ready()) return true;
    differ(r, peer, operation - 1, own_what, own_count, what, count);
    return false;
  }
  return true;
}

// The time of a block: it runs the operation (IN_TIME), or runs before copy engines that move its
// blocks (AHEAD). The operation then does the same once more.
enum Time { IN_TIME, AHEAD };

// Waits until a peer has announced a collective that this rank has announced, and compares both;
// false when they differ, or it never will.
__device__ inline bool await_same(const Rank& r, int peer, uint64_t operation) {
  const volatile Called& own = common(r)->called[operation % ANNOUNCEMENTS];
  uint64_t count, what;
  Wait wait;
  while (!announced(r, peer, operation, count, what))
    if (wait.over(r, peer, NO_STEP)) return false;
  if (what == own.what && count == own.count) return true;
  differ(r, peer, operation - 1, own.what, own.count, what, count);
  return false;
}

// Returns whether all peers have announced what this rank called in the collectives after
// `compared` up to `last`, as far as one look tells. The look is at all announcements, while the
// counters are on their way: one trip to memory takes as long as a small operation's data.
__device__ inline bool called_the_same(const Rank& r, uint64_t operation, uint64_t compared,
                                       uint64_t last) {
  constexpr int PEERS = 32 / ANNOUNCEMENTS;
  int place = threadIdx.x & 31, slot = place / PEERS;
  const volatile Called& own = common(r)->called[slot];
  uint64_t own_what = own.what, own_count = own.count;
  Packet what, count;
  auto load = [&](int peer) {
    const Announcement* here = announcement(r, r.rank, slot, peer < r.nranks ? peer : 0);
    what = load_halves(&here->what);
    count = load_halves(&here->count);
  };
  int peer = place % PEERS;
  load(peer);
  // The number after `compared` whose announcement is in this slot.
  uint64_t number = compared + 1 + (slot - (compared + 1)) % ANNOUNCEMENTS;
  bool looks = reached(last, number), same = true;
  for (;;) {
    if (looks && peer < r.nranks && peer != r.rank)
      same &= number != operation && holds(what, number, own_what) &&
              holds(count, number, own_count);
    peer += PEERS;
    if (!__any_sync(~0u, peer < r.nranks)) return __all_sync(~0u, same);
    load(peer);
  }
}

// Tells a peer what is called here. What the peer may still look at must not be overwritten.
__device__ inline void tell_call(const Collective& call, int peer, uint64_t operation) {
  Announcement* there = announcement(call.rank, peer, operation, call.rank.rank);
  store_packet(&there->count, operation, call.descriptor_count);
  store_packet(&there->what, operation, call.descriptor_what);
}

// Waits for what a peer called in the collectives after `compared` up to `last`, and tells it what
// is called here as soon as that may be.
__device__ __noinline__ void compare_calls(const Collective& call, int peer, uint64_t operation,
                                           uint64_t compared, uint64_t last) {
  bool told = false;
  for (uint64_t done = compared;; done++) {
    if (!told && reached(done + CALLS_AHEAD, operation)) {
      tell_call(call, peer, operation);
      told = true;
    }
    if (reached(done, last) || !await_same(call.rank, peer, done + 1)) break;
  }
}

__device__ inline void tell_host(volatile void* to, uint64_t first, uint64_t second) {
  asm volatile("st.volatile.global.v2.u64 [%0], {%1, %2};" ::"l"(to), "l"(first), "l"(second)
               : "memory");
}

// Returns where the host is told of what runs.
__device__ inline volatile Run* place_of(const Rank& r, uint64_t telling) {
  return &reinterpret_cast<volatile Control*>(r.control)->runs[telling % RUNS];
}

// What a kernel runs: the number of a collective, or of messages, and the call.
struct Named {
  uint64_t number, call, what, count;
};

// Returns, to all lanes of a warp, whether the host is told of a collective or of messages.
__device__ inline bool is_told(uint64_t number, uint64_t next_telling_ns) {
  return __any_sync(~0u, number % TELL_EACH == 0 || now_ns() >= next_telling_ns);
}

// A warp tells the host that something has begun.
__device__ __noinline__ volatile Run* tell_begun(const Rank& r, const Named& of) {
  volatile Shared* own = common(r);
  uint64_t telling = own->tellings, now = now_ns();
  volatile Run* run = place_of(r, telling);
  int pair = threadIdx.x & 31;
  uint64_t first = pair == 0 ? of.number : pair == 1 ? of.call : of.count;
  uint64_t what = of.number << 32 | uint32_t(of.what);
  uint64_t second = pair == 0 ? now : pair == 1 ? what : of.number;
  if (pair < 3) tell_host(reinterpret_cast<volatile uint64_t*>(run) + 2 * pair, first, second);
  __syncwarp();
  if (pair == 0) {
    own->told = of.number;
    own->tellings = telling + 1;
    own->next_telling_ns = now + TELL_NS;
  }
  return run;
}

// A thread tells the host that what it was told of has ended.
__device__ __noinline__ void tell_ended(volatile Run* run, uint64_t number) {
  tell_host(&run->ended, number, now_ns());
}

// What a warp has begun.
struct Begin {
  uint64_t number = 0;
  volatile Run* run = nullptr;  // where the host is told of its end

  // A thread ends it, once its block has come together; after a fault it has not ended.
  __device__ void end(const Rank& r) const {
    if (run && !faulty(r)) tell_ended(run, number);
  }
};

// A warp of the first block of some messages counts them, and tells the host of them once in a
// while, by the first. After a fault nothing moves, so nothing has begun.
__device__ inline Begin begin_messages(const Rank& r, uint64_t call, const Message& first) {
  volatile Shared* own = common(r);
  uint64_t number = MESSAGES_BEGUN | (own->exchanges + 1);
  bool tells = is_told(number, own->next_telling_ns);
  if ((threadIdx.x & 31) == 0) own->exchanges = own->exchanges + 1;
  if (!tells || __any_sync(~0u, faulty(r))) return {};
  return {number, tell_begun(r, {number, call, first.what, first.bytes})};
}

// Looks for announcements before other reasons to wait are looked at, out of line.
constexpr int LOOKS = 16;

// The last warp of the first block: tells the peers what is called here, and compares what they
// call with what this rank called, except for the last `behind` collectives, which later ones
// compare: so nothing waits for the announcement where the data tell all. Where nothing is left
// behind, every peer has begun this operation, and ended the one before: what was written for that
// one may be overwritten in the next. What is announced ahead does not count yet, and is announced
// once more, of which the host is not told again.
__device__ inline Begin announce(const Collective& call, uint64_t behind, bool again = false) {
  const Rank& r = call.rank;
  volatile Shared* own = common(r);
  int peer = threadIdx.x & 31;
  uint32_t fault = faulty(r);
  uint64_t operation = own->operations + 1, compared = own->compared, last = operation - behind;
  uint64_t told = own->told, next_telling = own->next_telling_ns;
  bool same = called_the_same(r, operation, compared, last);
  // What is awaited is mostly under way. This operation's announcements are awaited elsewhere.
  for (int looks = 1; !same && behind != 0 && looks < LOOKS; looks++)
    same = called_the_same(r, operation, compared, last);
  if (__any_sync(~0u, fault != FAULT_NONE)) return {operation, nullptr};
  if (peer == 0) {
    own->called[operation % ANNOUNCEMENTS].what = call.descriptor_what;
    own->called[operation % ANNOUNCEMENTS].count = call.descriptor_count;
    own->begun = operation;
  }
  __syncwarp();
  volatile Run* run = nullptr;
  if (again) {
    if (told == operation) run = place_of(r, own->tellings - 1);
  } else if (is_told(operation, next_telling)) {
    run = tell_begun(r, {operation, call.call, call.descriptor_what, call.descriptor_count});
  }
  if (peer < r.nranks && peer != r.rank) {
    if (same) {
      tell_call(call, peer, operation);
    } else {
      compare_calls(call, peer, operation, compared, last);
    }
  }
  __syncwarp();
  if (peer == 0 && !reached(compared, last)) own->compared = last;
  return {operation, run};
}

__device__ inline void count_operation(const Rank& r, uint64_t operation) {
  const_cast<volatile Shared*>(common(r))->operations = operation;
}

// Announces an operation that waits for the announcements of all peers, and counts it.
__device__ inline Begin begin_together(const Collective& call, bool again = false) {
  Begin begin = announce(call, 0, again);
  if ((threadIdx.x & 31) == 0) count_operation(call.rank, begin.number);
  return begin;
}

__device__ inline bool is_watcher() { return threadIdx.x >= blockDim.x - 32; }

// Ends what the watchers of the first block began, once the block has come together.
__device__ inline void end_together(const Rank& r, const Begin& begin) {
  if (threadIdx.x == blockDim.x - 32) begin.end(r);
}

// Threads that move data.
__device__ inline int movers() { return blockDim.x - 32; }

// Brings all movers of a block together; the watchers do not hold them up. The compiler may copy
// inline assembly into the branches before it, where threads of a warp would meet different copies;
// it does not copy what brings a warp together.
__device__ inline void sync_movers() {
  __syncwarp();
  asm volatile("bar.sync 1, %0;" ::"r"(movers()) : "memory");
}

// The same; returns whether any of the movers says so, to all the same answer.
__device__ inline bool any_mover(bool says) {
  uint32_t any;
  __syncwarp();
  asm volatile(
      "{ .reg .pred p, q; setp.ne.u32 p, %1, 0; bar.red.or.pred q, 1, %2, p; selp.u32 %0, 1, 0, q; }"
      : "=r"(any)
      : "r"(uint32_t(says)), "r"(movers())
      : "memory");
  return any != 0;
}

// The user's scalar: the value in the call, or that at its address when the call runs.
__device__ __noinline__ uint64_t scale_of(const Collective& call) {
  if (call.scaled != SCALE_AT) return call.scale;
  uint64_t scale = 0;
  memcpy(&scale, reinterpret_cast<const char*>(call.scale), call.element_bytes);
  return scale;
}

// Marks a channel as running; returns not 0 if it was, for `refuse`: two operations of a
// communicator at once would mix up their data. Whoever looks at it waits for it.
__device__ inline uint32_t mark(uint32_t* busy) {
  return (threadIdx.x & 31) == 0 ? atomicExch(busy, 1) : 0;
}

// The same for an operation beside which no other one may run that marks the same word.
__device__ inline uint32_t mark_alone(uint32_t* busy, uint32_t own) {
  return (threadIdx.x & 31) == 0 ? atomicCAS(busy, 0, own) : 0;
}

// The same for operations of which several may run: returns those that were running. The compiler
// waits for what `atomicAdd` returns.
__device__ inline uint32_t mark_among(uint32_t* busy, uint32_t own) {
  return (threadIdx.x & 31) == 0 ? atomicAdd(busy, own) : 0;
}

__device__ inline void unmark_among(uint32_t* busy, uint32_t own) { atomicSub(busy, own); }

__device__ inline void refuse(const Rank& r, bool was_running) {
  if (was_running) fail(r, FAULT_OVERLAP, -1, -1);
}

template <typename Own>
__device__ inline void enter(const Rank& r, Own* own) {
  refuse(r, mark(&own->busy) != 0);
}

template <typename Own>
__device__ inline void leave(Own* own) { *const_cast<volatile uint32_t*>(&own->busy) = 0; }

}  // namespace oxccl
