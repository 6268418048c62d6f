// One-shot with packets: every rank puts what a peer needs into that peer's slots, 8 bytes of data
// and two flags in one store, so that data and signal are one. It carries out the one-shot plans of
// all collectives for small blocks.
#pragma once

#include "arith.cuh"
#include "watch.cuh"

namespace oxccl {

// Numbers of `oxccl_plan::Collective`.
enum Kind { ALL_REDUCE, BROADCAST, REDUCE, ALL_GATHER, REDUCE_SCATTER, ALL_TO_ALL, GATHER, SCATTER };

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

// Whether a rank's data comes here.
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

// The block of the output where it goes; collectives that fold have one.
__device__ inline int block_from(const Collective& c, int from) {
  return c.kind == ALL_GATHER || c.kind == ALL_TO_ALL || c.kind == GATHER ? from : 0;
}

__device__ inline bool folds(const Collective& c) {
  return c.kind == ALL_REDUCE || c.kind == REDUCE || c.kind == REDUCE_SCATTER;
}

// Data of a packet.
union Eight {
  uint64_t all;
  uint32_t halves[2];
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

template <typename E>
struct PacketRun {
  const Collective& call;
  uint64_t number;  // of the packet operation on this channel
  int channel;
  uint64_t bytes;  // of a block
  uint64_t scale;

  __device__ uint32_t flag() const {
    return uint32_t(number) ^ uint32_t(number >> 32) * 0x9e3779b9u;
  }

  __device__ Packet* slots(int at, int from) const {
    return packets(call.rank, at, channel, number & 1, from);
  }

  // This rank's contribution at a line of a block of its input.
  __device__ Eight own(int block, uint64_t at) const {
    const char* from = reinterpret_cast<const char*>(call.input) + block * bytes + at;
    Eight e = load_eight(from, bytes - at);
    return call.scaled ? scale_eight<E>(e, scale) : e;
  }

  __device__ void send(int to, int line, Eight e) const {
    store_packet(slots(to, call.rank.rank) + line,
                 {e.halves[0], flag(), e.halves[1], ~flag()});
  }

  // What a peer sent; false when it will not come.
  __device__ bool receive(int from, int line, Eight& e, Wait& wait) const {
    const Packet* at = slots(call.rank.rank, from) + line;
    for (;;) {
      Packet p = load_packet(at);
      if (p.low_flag == flag() && p.high_flag == ~flag()) {
        e.halves[0] = p.low;
        e.halves[1] = p.high;
        return true;
      }
      if (wait.over(call.rank, from, 0)) return false;
    }
  }

  __device__ void fold_line(int line, uint64_t at) const {
    constexpr int N = 8 / sizeof(typename E::Bits);
    const Rank& r = call.rank;
    int block = call.kind == REDUCE_SCATTER ? r.rank : 0;
    Wait wait;
    typename E::Lane lanes[N];
    Eight mine = own(block, at);
    for (int from = 0; from < r.nranks; from++) {
      Eight e = mine;
      if (from != r.rank && !receive(from, line, e, wait)) return;
      typename E::Bits v[N];
      memcpy(v, &e, 8);
#pragma unroll
      for (int i = 0; i < N; i++) {
        typename E::Lane lane = E::widen(v[i]);
        lanes[i] = from == 0 ? lane : combine(call.op, lanes[i], lane);
      }
    }
    typename E::Bits v[N];
#pragma unroll
    for (int i = 0; i < N; i++)
      v[i] = E::round(call.op == AVG ? E::divide(lanes[i], r.nranks) : lanes[i]);
    Eight e;
    memcpy(&e, v, 8);
    store_eight(reinterpret_cast<char*>(call.output) + at, bytes - at, e);
  }

  // What does not fold: everything is sent before anything is waited for, or ranks that pass over
  // their peers in different orders would wait for each other.
  __device__ void copy_lines(uint64_t first, int lines) const {
    const Rank& r = call.rank;
    char* output = reinterpret_cast<char*>(call.output);
    for (int i = threadIdx.x; i < lines * r.nranks; i += movers()) {
      int peer = (r.rank + i / lines) % r.nranks, line = i % lines;
      uint64_t at = (first + line) * 8;
      int block = block_for(call, peer);
      if (block < 0) continue;
      Eight e = own(block, at);
      if (peer != r.rank) {
        send(peer, line, e);
      } else if (comes_from(call, peer)) {
        store_eight(output + block_from(call, peer) * bytes + at, bytes - at, e);
      }
    }
    // In place, a line may be written only when it was sent.
    sync_movers();
    for (int i = threadIdx.x; i < lines * (r.nranks - 1); i += movers()) {
      int peer = (r.rank + 1 + i / lines) % r.nranks, line = i % lines;
      uint64_t at = (first + line) * 8;
      Eight e;
      Wait wait;
      if (comes_from(call, peer) && receive(peer, line, e, wait))
        store_eight(output + block_from(call, peer) * bytes + at, bytes - at, e);
    }
  }

  // One thread per line.
  __device__ void fold_lines(uint64_t first, int lines) const {
    const Rank& r = call.rank;
    for (int i = threadIdx.x; i < lines * (r.nranks - 1); i += movers()) {
      int peer = (r.rank + 1 + i / lines) % r.nranks, line = i % lines;
      int block = block_for(call, peer);
      if (block >= 0) send(peer, line, own(block, (first + line) * 8));
    }
    if (!comes_from(call, r.rank)) return;
    // In place, a line may be written only when it was sent to all.
    sync_movers();
    for (int line = threadIdx.x; line < lines; line += movers())
      fold_line(line, (first + line) * 8);
  }
};

template <typename E>
__device__ inline void run_packets(const Collective& call) {
  const Rank& r = call.rank;
  Counters* own = counters(r, blockIdx.x);
  uint64_t number = own->packets + 1;
  if (__syncthreads_or(faulty(r))) return;
  if (is_watcher()) {
    enter(r, own);
    if (blockIdx.x == 0) announce(call);
  } else {
    uint64_t bytes = call.count * call.element_bytes;
    uint64_t all = (bytes + 7) / 8, share = (all + gridDim.x - 1) / gridDim.x;
    uint64_t first = blockIdx.x * share;
    int lines = first >= all ? 0 : int(all - first < share ? all - first : share);
    PacketRun<E> run{call, number, int(blockIdx.x), bytes, scale_of(call)};
    if (folds(call)) {
      run.fold_lines(first, lines);
    } else {
      run.copy_lines(first, lines);
    }
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    own->packets = number;
    leave(own);
  }
}

}  // namespace oxccl

#define OXCCL_PACKETS(NUMBER, ...)                                              \
  extern "C" __global__ void __launch_bounds__(BLOCK_THREADS)                   \
      oxccl_packets_##NUMBER(const __grid_constant__ oxccl::Collective call) {  \
    using namespace oxccl;                                                      \
    run_packets<__VA_ARGS__>(call);                                             \
  }
OXCCL_ELEMENTS(OXCCL_PACKETS)
