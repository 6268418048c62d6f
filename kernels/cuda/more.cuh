// Programs of more than two ranks. Each warp of a channel has one role: it puts what the peers get
// of the input; it folds what they put, or passes it on; or it takes the results that they pass on.
// Results have channels of their own, so that no role waits for another one of the same rank. A
// unit of a channel is one of every peer: where a slice has ended, empty ones follow, so that all
// of a channel's edges count alike.
#pragma once

#include "flow.cuh"

namespace oxccl {
// The roles of the warps of a channel, but in packets. Where nothing is passed on, one warp folds
// and takes; where a rank only takes, in chunks, all of them do.
constexpr int PUT = 0, MIDDLE = 1, TAKE = 2;

// The ranks of a set, those after this rank first, so that not all begin with the same one.
struct Peers {
  uint32_t after, before;

  __device__ Peers(const Rank& r, uint32_t peers) {
    uint32_t behind = (2u << r.rank) - 1;
    after = peers & ~behind;
    before = peers & behind;
  }

  // Returns the next one; negative when there is none.
  __device__ int next() {
    uint32_t& left = after != 0 ? after : before;
    int peer = __ffs(left) - 1;
    left &= left - 1;
    return peer;
  }
};

__device__ inline Span input_of(const LineProgram& p, uint64_t at, uint64_t bytes) {
  return {reinterpret_cast<const char*>(p.call.input) + at, bytes};
}

__device__ inline Span output_of(const LineProgram& p, uint64_t at, uint64_t bytes) {
  return {reinterpret_cast<char*>(p.call.output) + at, bytes};
}

// The place of what the middle phase keeps of its result, a span of nothing if it keeps none.
__device__ inline Span result_of(const LineProgram& p) {
  return output_of(p, p.result_at, p.result_at == NO_SLICE ? 0 : p.middle_bytes);
}

// Ranks whose data are under way at once.
constexpr int RANKS = 4;

// A fold of what all ranks have, in rank order; `V` is what a thread has of each: a pair, or 16
// bytes.
template <typename E, typename V>
struct Fold {
  const LineProgram& p;
  Sum<E, sizeof(V) / 16> sum;

  // Folds what the ranks from `begin` on have.
  __device__ void combine(int begin, const V (&v)[RANKS]) {
    switch (p.call.op) {
      case PROD: return combine_all<PROD>(begin, v);
      case MAX: return combine_all<MAX>(begin, v);
      case MIN: return combine_all<MIN>(begin, v);
      default: return combine_all<SUM>(begin, v);
    }
  }

  __device__ V result() const {
    V v;
    sum.round(p.finish && p.call.op == AVG, p.call.rank.nranks, v);
    return v;
  }

 private:
  template <int OP>
  __device__ void combine_all(int begin, const V (&v)[RANKS]) {
#pragma unroll
    for (int i = 0; i < RANKS; i++)
      if (begin + i < int(p.call.rank.nranks))
        sum.template combine_slot<OP>(begin + i == 0, v[i]);
  }
};

using EdgeEnds = LineEnds<false>;

// Looks at all peers at once before one after the other is awaited.
constexpr int FAST_LOOKS = 64;

// Folds what `load` gets of the ranks from one on; false when it says that some never come.
template <typename E, typename V, typename Load>
__device__ inline bool fold_all(const LineProgram& p, Load load, V& result) {
  Fold<E, V> fold{p};
#pragma unroll 1
  for (int begin = 0; begin < int(p.call.rank.nranks); begin += RANKS) {
    V v[RANKS];
    if (!load(begin, v)) return false;
    fold.combine(begin, v);
  }
  result = fold.result();
  return true;
}

// Gets the next slots of those of `peers` that follow `begin`; false when one will not come. What
// `beside` returns for a peer lives as long as that one is waited for.
template <int N, typename Beside>
__device__ inline bool await_packets(EdgeEnds& ends, uint32_t peers, int begin, uint4 (&v)[N],
                                     Beside beside) {
  auto awaits = [&](int i) { return (peers >> (begin + i) & 1) != 0; };
  EdgeEnds::Next next = ends.next(false);
  const char* place[N];
  uint32_t number[N];
#pragma unroll
  for (int i = 0; i < N; i++)
    if (awaits(i)) place[i] = next.place(begin + i), number[i] = next.number_of(begin + i);
#pragma unroll 1
  for (int looks = 0; looks < FAST_LOOKS; looks++) {
    bool here = true;
#pragma unroll
    for (int i = 0; i < N; i++) {
      if (!awaits(i)) continue;
      Packets packets(place[i], number[i], ends.digest);
      v[i] = packets.data;
      here &= packets.here;
    }
    if (__all_sync(~0u, here)) return true;
  }
#pragma unroll
  for (int i = 0; i < N; i++) {
    if (!awaits(i)) continue;
    [[maybe_unused]] auto header = beside(begin + i);
    Packets packets = wait_packets(ends.r, begin + i, place[i], number[i], ends.digest);
    if (!__all_sync(~0u, packets.here)) return false;
    v[i] = packets.data;
  }
  return true;
}

}  // namespace oxccl
