// One-shot with packets: every rank puts what a peer needs into that peer's slots, 8 bytes of data
// and two flags in one store, so that data and signal are one. It carries out the one-shot and push
// plans of all collectives for small blocks, and for larger ones those of the collectives in which
// every rank hears from every other one, which have more room for packets behind the large stage. A
// bit of the flags tells whether a rank has mapped the large stages; each block uses that room once
// all of its peers' blocks have said so in an operation before.
#pragma once

#include "arith.cuh"
#include "watch.cuh"

namespace oxccl {

// The block of this rank's input that a rank needs; -1 for none.
__device__ inline int block_for(const Collective& c, int to) {
  bool root = c.rank.rank == c.root;
  switch (c.kind) {
    case ALL_REDUCE:
    case ALL_GATHER: return 0;
    case BROADCAST: return root ? 0 : -1;
    case REDUCE:
    case GATHER: return to == c.root ? 0 : -1;
    case REDUCE_SCATTER:
    case ALL_TO_ALL: return to;
    default: return root ? to : -1;  // scatter
  }
}

// Returns whether data of a rank comes to this one.
__device__ inline bool comes_from(const Collective& c, int from) {
  bool root = c.rank.rank == c.root;
  switch (c.kind) {
    case BROADCAST:
    case SCATTER: return from == c.root;
    case REDUCE:
    case GATHER: return root;
    default: return true;
  }
}

// The block of the output to which a rank's data goes; collectives that fold have one.
__device__ inline int block_from(const Collective& c, int from) {
  return c.kind == ALL_GATHER || c.kind == ALL_TO_ALL || c.kind == GATHER ? from : 0;
}

__device__ inline bool folds(const Collective& c) {
  return c.kind == ALL_REDUCE || c.kind == REDUCE || c.kind == REDUCE_SCATTER;
}

// Returns whether every rank gets something of every other one.
__device__ inline bool hears_all(const Collective& c) {
  return c.kind == ALL_REDUCE || c.kind == ALL_GATHER || c.kind == REDUCE_SCATTER ||
         c.kind == ALL_TO_ALL;
}

// Data of a packet.
union Eight {
  uint64_t all;
  unsigned char bytes[8];
};

__device__ inline Eight load_eight(const char* at, uint64_t left) {
  Eight e;
  e.all = 0;
  if (left >= 8 && (reinterpret_cast<uint64_t>(at) & 7) == 0) {
    e.all = *reinterpret_cast<const volatile uint64_t*>(at);
  } else {
#pragma unroll
    for (int i = 0; i < 8; i++)
      if (i < left) e.bytes[i] = *reinterpret_cast<const volatile unsigned char*>(at + i);
  }
  return e;
}

__device__ inline void store_eight(char* at, uint64_t left, Eight e) {
  if (left >= 8 && (reinterpret_cast<uint64_t>(at) & 7) == 0) {
    *reinterpret_cast<uint64_t*>(at) = e.all;
  } else {
#pragma unroll
    for (int i = 0; i < 8; i++)
      if (i < left) at[i] = e.bytes[i];
  }
}

template <typename E>
__device__ inline Eight scale_eight(Eight e, uint64_t scale) {
  constexpr int N = 8 / sizeof(typename E::Bits);
  typename E::Bits v[N];
  memcpy(v, &e, 8);
#pragma unroll
  for (int i = 0; i < N; i++) v[i] = scaled<E>(v[i], scale);
  memcpy(&e, v, 8);
  return e;
}

// The number of windows after which the halves are cleared: flags begin anew after twice as many.
constexpr uint64_t CLEARED_EVERY = 1ull << 31;

// A rank's part of a window: the lines of a block that have room at a time. A thread has AHEAD of
// them under way, of RANKS ranks.
template <typename E, int AHEAD, int RANKS>
struct PacketRun {
  const Collective& call;
  bool large;       // whether the packets behind the large stage are used
  bool ready;       // whether this rank has mapped all large stages: told in all packets
  uint64_t number;  // of the window on this channel
  uint64_t bytes;   // of a block
  uint64_t scale;
  bool all_ready;  // of the packets that came

  __device__ Packet* slots(int at, int from) const {
    return packets(call.rank, large, at, blockIdx.x, number & 1, from);
  }

  // This rank's contribution at a line of a block of its input.
  __device__ Eight own(int block, uint64_t at) const {
    const char* from = reinterpret_cast<const char*>(call.input) + block * bytes + at;
    Eight e = load_eight(from, bytes - at);
    return call.scaled ? scale_eight<E>(e, scale) : e;
  }

  // Returns whether a packet has come.
  __device__ bool take(const Packet* at, Eight& e) {
    bool theirs;
    if (!load_packet(at, number, e.all, theirs)) return false;
    all_ready &= theirs;
    return true;
  }

  // Receives a thread's lines of RANKS ranks from `first` on, except this rank; false when they
  // will not come.
  __device__ bool receive(int first, int line, int lines, Eight (*e)[AHEAD], Wait& wait) {
    const Rank& r = call.rank;
    const Packet* at = slots(r.rank, first) + line;
    uint64_t row = packet_room(r, large);
    for (;;) {
      int missing = -1;
#pragma unroll
      for (int from = 0; from < RANKS; from++) {
        int peer = first + from;
        if (peer >= r.nranks || peer == r.rank || !comes_from(call, peer)) continue;
#pragma unroll
        for (int k = 0; k < AHEAD; k++)
          if (line + k * movers() < lines && !take(at + from * row + k * movers(), e[from][k]))
            missing = peer;
      }
      if (missing < 0) return true;
      if (wait.over(r, missing, NO_STEP)) return false;
    }
  }

  // Does something with a thread's lines of every rank whose data comes here, in rank order; `mine`
  // are its own. False when they will not come.
  template <typename Use>
  __device__ bool each(int line, int lines, const Eight* mine, Use use) {
    const Rank& r = call.rank;
    Wait wait;
    for (int first = 0; first < r.nranks; first += RANKS) {
      Eight e[RANKS][AHEAD];
      if (!receive(first, line, lines, e, wait)) return false;
#pragma unroll
      for (int from = 0; from < RANKS; from++) {
        int peer = first + from;
        if (peer >= r.nranks || !comes_from(call, peer)) continue;
        if (peer == r.rank) {
#pragma unroll
          for (int k = 0; k < AHEAD; k++) e[from][k] = mine[k];
        }
        use(peer, e[from]);
      }
    }
    return true;
  }

  __device__ void load(int block, uint64_t first, int line, int lines, Eight* e) const {
#pragma unroll
    for (int k = 0; k < AHEAD; k++) {
      int at = line + k * movers();
      if (at < lines) e[k] = own(block, (first + at) * 8);
    }
  }

  // Sends a thread's lines to all that need them.
  __device__ void send_lines(uint64_t first, int line, int lines) const {
    const Rank& r = call.rank;
    Eight e[AHEAD];
    int loaded = -1;
    for (int i = 1; i < r.nranks; i++) {
      int peer = (r.rank + i) % r.nranks, block = block_for(call, peer);
      if (block < 0) continue;
      if (block != loaded) load(block, first, line, lines, e);
      loaded = block;
      Packet* to = slots(peer, r.rank) + line;
#pragma unroll
      for (int k = 0; k < AHEAD; k++)
        if (line + k * movers() < lines)
          store_packet(to + k * movers(), number, e[k].all, ready);
    }
  }

  __device__ void store_lines(int block, uint64_t first, int line, int lines,
                              const Eight* e) const {
    char* to = reinterpret_cast<char*>(call.output) + block * bytes;
#pragma unroll
    for (int k = 0; k < AHEAD; k++) {
      uint64_t at = (first + line + k * movers()) * 8;
      if (line + k * movers() < lines) store_eight(to + at, bytes - at, e[k]);
    }
  }

  __device__ void fold_lines(uint64_t first, int line, int lines) {
    constexpr int N = 8 / sizeof(typename E::Bits);
    const Rank& r = call.rank;
    typename E::Lane lanes[AHEAD][N];
    Eight mine[AHEAD];
    load(call.kind == REDUCE_SCATTER ? r.rank : 0, first, line, lines, mine);
    bool all = each(line, lines, mine, [&](int from, const Eight* e) {
#pragma unroll
      for (int k = 0; k < AHEAD; k++) {
        typename E::Bits v[N];
        memcpy(v, &e[k], 8);
#pragma unroll
        for (int i = 0; i < N; i++) {
          typename E::Lane lane = E::widen(v[i]);
          lanes[k][i] = from == 0 ? lane : combine(call.op, lanes[k][i], lane);
        }
      }
    });
    if (!all) return;
#pragma unroll
    for (int k = 0; k < AHEAD; k++) {
      typename E::Bits v[N];
#pragma unroll
      for (int i = 0; i < N; i++)
        v[i] = E::round(call.op == AVG ? E::divide(lanes[k][i], r.nranks) : lanes[k][i]);
      memcpy(&mine[k], v, 8);
    }
    store_lines(0, first, line, lines, mine);
  }

  __device__ void receive_lines(uint64_t first, int line, int lines) {
    Eight mine[AHEAD];
    int own = block_for(call, call.rank.rank);
    if (own >= 0) load(own, first, line, lines, mine);
    each(line, lines, mine, [&](int from, const Eight* e) {
      store_lines(block_from(call, from), first, line, lines, e);
    });
  }

  // Everything is sent before anything is waited for, or ranks would wait for each other. A thread
  // receives the lines that it sent: in place, none is written before it was sent to all.
  __device__ void run(uint64_t first, int lines) {
    int step = AHEAD * movers();
    for (int line = threadIdx.x; line < lines; line += step) send_lines(first, line, lines);
    if (!folds(call)) {
      for (int line = threadIdx.x; line < lines; line += step) receive_lines(first, line, lines);
    } else if (comes_from(call, call.rank.rank)) {
      for (int line = threadIdx.x; line < lines; line += step) fold_lines(first, line, lines);
    }
  }

  // Clears the half of a window that has run: what lay there for long must not be taken for new
  // when flags begin anew. All of the window has been read, and peers write there again only when
  // they have heard of what comes after this, or that the next operation has begun.
  __device__ void clear_half() const {
    Packet* here = slots(call.rank.rank, 0);
    uint64_t all = packet_room(call.rank, large) * call.rank.nranks;
    for (uint64_t i = threadIdx.x; i < all; i += movers()) store_packet(here + i, number, 0);
    fence();
    sync_movers();
  }
};

// The windows of a block share two halves of the room. A half is written again when all peers have
// read it: since then they have sent the window in between, or begun an operation. So calls of
// several windows are those in which every rank hears from every other one. Only windows that ran
// are counted; otherwise a window of a block with a short share would be followed by one in the
// same half. Blocks of an index have the same share at all ranks. `runtime/plan/tests/packets.rs`
// is a model of this.
template <typename E, int AHEAD, int RANKS>
__device__ inline void run_windows(const Collective& call, Counters* own, bool ready) {
  const Rank& r = call.rank;
  uint64_t bytes = call.count * call.element_bytes;
  uint64_t all = (bytes + 7) / 8, share = (all + gridDim.x - 1) / gridDim.x;
  uint64_t first = blockIdx.x * share;
  uint64_t left = first >= all ? 0 : all - first < share ? all - first : share;
  bool large = own->large != 0;
  uint64_t room = packet_room(r, large);
  PacketRun<E, AHEAD, RANKS> run{call, large, ready, own->packets, bytes, scale_of(call), ready};
  for (uint64_t at = 0; at < left; at += room) {
    run.number += 1;
    run.run(first + at, int(left - at < room ? left - at : room));
    sync_movers();
    if (run.number % CLEARED_EVERY < 2) run.clear_half();
  }
  // All ranks' blocks of this index have heard the same.
  bool agreed = !large && left > 0 && hears_all(call) && !any_mover(!run.all_ready);
  if (threadIdx.x == 0) {
    own->packets = run.number;
    if (agreed) own->large = 1;
  }
}

template <typename E>
__device__ inline void run_packets(const Collective& call) {
  const Rank& r = call.rank;
  Counters* own = counters(r, blockIdx.x);
  // The maps may change meanwhile, so they are read once: all peers are told the same.
  __shared__ bool ready;
  if (threadIdx.x == 0) ready = maps(r)->ready[ON_DEMAND_BUFFER] != 0;
  Begin begin;
  if (__syncthreads_or(faulty(r))) return;
  if (is_watcher()) {
    enter(r, own);
    if (blockIdx.x == 0) begin = begin_together(call);
  } else {
    // Latency decides for small calls, and little code is loaded sooner.
    uint64_t lines = (call.count * call.element_bytes + 7) / 8;
    if (lines <= uint64_t(gridDim.x) * movers()) {
      run_windows<E, 1, 4>(call, own, ready);
    } else {
      run_windows<E, 4, 1>(call, own, ready);
    }
  }
  __syncthreads();
  end_together(r, begin);
  if (threadIdx.x == 0) leave(own);
}

}  // namespace oxccl

#define OXCCL_PACKETS(NUMBER, ...)                                              \
  OXCCL_KERNEL(oxccl_packets_##NUMBER, (BLOCK_THREADS), oxccl::Collective,      \
               using namespace oxccl; run_packets<__VA_ARGS__>(argument))
OXCCL_ELEMENTS(OXCCL_PACKETS)
