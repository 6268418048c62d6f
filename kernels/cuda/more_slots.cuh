// Programs of more than two ranks over slots of packets and lines, of which a warp has those of all
// peers: so there are more channels than where each edge has a warp (`more_packets.cuh`).
#pragma once

#include "more.cuh"

namespace oxccl {

// Where results are awaited, on channels of their own, headers lie on the others.
__device__ inline HeaderInstead header_of(const EdgeEnds& ends, int peer, int second) {
  return header_beside(ends.r, peer, ends.channel - second, second != 0);
}

// Slots of packets as units: a thread has 16 bytes of each.
struct InPackets {
  using Data = uint4;
  static constexpr uint32_t BYTES = SLOT_DATA_BYTES;

  __device__ static Data load(const EdgeEnds&, const Span& span, uint64_t at) {
    return Piece(span, at).load();
  }

  __device__ static void store(const EdgeEnds&, const Span& span, uint64_t at, const Data& v) {
    Piece(span, at).store(v);
  }

  // Makes of what was loaded what is put or folded.
  template <typename E, bool FOLDS>
  __device__ static void pack(const EdgeEnds&, const LineProgram& p, uint64_t scale, Data& v) {
    if (FOLDS && p.call.scaled) v = scale_pair<E>({v, v}, scale).first;
  }

  __device__ static void put(const EdgeEnds& ends, const EdgeEnds::Next& next, int to,
                             const Data& v) {
    store_packets(next.place(to), next.number_of(to), ends.digest, v);
  }

  // Gets the next slots of those of `peers` that follow `begin`; false when one will not come. The
  // ends are on the channel that many after the one on which headers of messages would lie.
  template <int N>
  __device__ static bool await(EdgeEnds& ends, uint32_t peers, int begin, Data (&v)[N],
                               int second) {
    auto beside = [&](int peer) { return header_of(ends, peer, second); };
    return await_packets(ends, peers, begin, v, beside);
  }
};

// Slots of lines as units: a thread has a pair of each.
struct InLines {
  using Data = Pair;
  static constexpr uint32_t BYTES = UNIT_DATA_BYTES;

  __device__ static Data load(const EdgeEnds& ends, const Span& span, uint64_t at) {
    Pair v[1];
    ends.load(span, at, 1, v);
    return v[0];
  }

  __device__ static void store(const EdgeEnds& ends, const Span& span, uint64_t at, const Data& v) {
    Pair all[1] = {v};
    ends.store(span, at, 1, all);
  }

  template <typename E, bool FOLDS>
  __device__ static void pack(const EdgeEnds& ends, const LineProgram& p, uint64_t scale, Data& v) {
    pack_operand<E, FOLDS>(ends, p, scale, v);
  }

  __device__ static void put(const EdgeEnds& ends, const EdgeEnds::Next& next, int to,
                             const Data& v) {
    ends.store_numbered(next.place(to), next.number_of(to), v, ends.together());
  }

  template <int N>
  __device__ static bool await(EdgeEnds& ends, uint32_t peers, int begin, Data (&v)[N],
                               int second) {
    auto awaits = [&](int i) { return (peers >> (begin + i) & 1) != 0; };
    EdgeEnds::Next next = ends.next(false);
    char* place[N];
#pragma unroll
    for (int i = 0; i < N; i++)
      if (awaits(i)) place[i] = next.place(begin + i);
    // The thread's line of the slot that it looks at: 8 threads look at each.
    constexpr int AT_ONCE = N < 4 ? N : 4;
    static_assert(N <= 4, "a thread for each line");
    int of = ends.thread / 8, line = (ends.thread & 7) * 128 + 120;
    bool looks_at = of < AT_ONCE && (peers >> (begin + of) & 1);
    int looked = looks_at ? begin + of : begin;
    const char* number_at = reinterpret_cast<const char*>(__shfl_sync(~0u, next.at, looked)) + line;
    uint64_t wanted = next.number_of(looked) | uint64_t(ends.digest) << 32;
    bool are_here = false;
#pragma unroll 1
    for (int looks = 0; looks < FAST_LOOKS && !are_here; looks++)
      are_here = __all_sync(~0u, !looks_at || load_number(number_at) == wanted);
#pragma unroll
    for (int i = 0; i < N; i++) {
      if (are_here || !awaits(i)) continue;
      HeaderInstead beside = header_of(ends, begin + i, second);
      if (!ends.await_lines(begin + i, 1, 0)) return false;
    }
#pragma unroll
    for (int i = 0; i < N; i++)
      if (awaits(i)) v[i] = {load_volatile(place[i]), load_volatile(place[i] + 512)};
    return true;
  }
};

// A warp's part of a program whose units are slots.
template <typename E, bool FOLDS, typename In>
struct SlotRun {
  using Data = typename In::Data;

  const LineProgram& p;
  uint64_t scale, first, step;
  int channel, index;  // the channel, and its number among those of the block

  __device__ const Rank& rank() const { return p.call.rank; }
  __device__ Flow reading() const {
    Flow flow;
    flow.reader = p.overlaps ? index : -1;
    return flow;
  }

  __device__ EdgeEnds ends_of(int channel, int puts_after = 0) const {
    return EdgeEnds(rank(), p.digest, channel, 0, warp_staging(), puts_after);
  }

  // Begins once what is loaded first is on its way; false if the communicator has failed.
  __device__ bool begin(EdgeEnds& ends) const {
    begin_carrying(p.call);
    ends.settle();
    return !ends.dead;
  }

  __device__ void pack(const EdgeEnds& ends, Data& v) const {
    In::template pack<E, FOLDS>(ends, p, scale, v);
  }

  __device__ static void count_puts(EdgeEnds& ends, uint32_t peers) {
    if (peers >> ends.thread & 1) ends.put += 1;
  }

  // The rank that is so many ranks ahead, if something is put there; else −1.
  __device__ int receiver(int distance) const {
    int n = rank().nranks, at = rank().rank + distance;
    at = at < n ? at : at - n;
    return distance < n && (p.puts >> at & 1) ? at : -1;
  }

  __device__ void load_puts(const EdgeEnds& ends, int distance, uint64_t at,
                            Data (&v)[RANKS]) const {
#pragma unroll
    for (int i = 0; i < RANKS; i++) {
      int to = receiver(distance + i);
      if (to < 0) continue;
      const LinePeer& with = p.peers[to];
      v[i] = In::load(ends, input_of(p, with.put_at, with.put_bytes), at);
    }
  }

  __device__ void put() const {
    EdgeEnds ends = ends_of(channel);
    Data v[RANKS];
    load_puts(ends, 1, first * In::BYTES, v);
    if (p.overlaps) begin_pair<true>(index);
    if (!begin(ends)) return;
    uint32_t count = 0;
#pragma unroll 1
    for (uint64_t unit = first; unit < p.units; unit += step) {
#pragma unroll 1
      for (int distance = 1; distance < int(rank().nranks); distance += RANKS) {
        if (unit != first || distance != 1) load_puts(ends, distance, unit * In::BYTES, v);
        if (distance == 1 && !ends.await_rooms(p.puts)) return;
        EdgeEnds::Next next = ends.next(true);
#pragma unroll
        for (int i = 0; i < RANKS; i++) {
          int to = receiver(distance + i);
          if (to < 0) continue;
          pack(ends, v[i]);
          In::put(ends, next, to, v[i]);
        }
      }
      count_puts(ends, p.puts);
      reading().tell_read(1, count);
    }
    ends.leave(-1, true, false);
  }

  // Gets what the middle phase keeps and passes on; `own` is this rank's operand.
  __device__ bool get_middle(EdgeEnds& ends, const Data& own, Data& result) const {
    if constexpr (FOLDS) {
      auto load = [&](int begin, Data (&v)[RANKS]) {
        if (!In::await(ends, p.middle_from, begin, v, 0)) return false;
#pragma unroll
        for (int i = 0; i < RANKS; i++)
          if (begin + i == int(rank().rank)) v[i] = own;
        return true;
      };
      return fold_all<E>(p, load, result);
    } else {
      Data v[1];
      if (!In::await(ends, p.middle_from, __ffs(p.middle_from) - 1, v, 0)) return false;
      result = v[0];
      return true;
    }
  }

  __device__ void middle() const {
    EdgeEnds ends = ends_of(channel, p.second);
    Span operand = input_of(p, p.own_at, p.middle_bytes);
    Data own = {};
    if (FOLDS) own = In::load(ends, operand, first * In::BYTES);
    if (p.overlaps) begin_pair<false>(index);
    if (!begin(ends)) return;
    uint32_t count = 0;
#pragma unroll 1
    for (uint64_t unit = first; unit < p.units; unit += step) {
      uint64_t at = unit * In::BYTES;
      if (FOLDS && unit != first) own = In::load(ends, operand, at);
      if (FOLDS) pack(ends, own);
      Data result;
      if (!get_middle(ends, own, result)) return;
      if (!ends.await_rooms(p.middle_to)) return;
      EdgeEnds::Next next = ends.next(true);
      Peers peers(rank(), p.middle_to);
#pragma unroll 1
      for (int to = peers.next(); to >= 0; to = peers.next()) In::put(ends, next, to, result);
      count_puts(ends, p.middle_to);
      reading().await_read(1, count);
      if (p.result_at != NO_SLICE) In::store(ends, result_of(p), at, result);
      ends.give_back_all(p.middle_from);
    }
    ends.leave(-1, p.middle_to != 0, true);
  }

  __device__ void take() const {
    EdgeEnds ends = ends_of(channel + p.second);
    if (p.overlaps) begin_pair<false>(index);
    if (p.takes == 0 || !begin(ends)) return;
    uint32_t count = 0;
#pragma unroll 1
    for (uint64_t unit = first; unit < p.units; unit += step) {
      uint64_t at = unit * In::BYTES;
#pragma unroll 1
      for (int begin = 0; begin < int(rank().nranks); begin += RANKS) {
        Data v[RANKS];
        if (!In::await(ends, p.takes, begin, v, int(p.second))) return;
        if (begin == 0) reading().await_read(1, count);
#pragma unroll
        for (int i = 0; i < RANKS; i++) {
          if (!(p.takes >> (begin + i) & 1)) continue;
          const LinePeer& with = p.peers[begin + i];
          In::store(ends, output_of(p, with.take_at, with.take_bytes), at, v[i]);
        }
      }
      ends.give_back_all(p.takes);
    }
    ends.leave(-1, false, true);
  }

  __device__ void run(int role) const {
    if (role == PUT && p.puts != 0) {
      put();
      if (p.overlaps) end_progress(index);
    } else if ((role == MIDDLE || p.roles == 1) && p.middle_from != 0) {
      middle();
    } else if (role + 1 == int(p.roles)) {
      take();
    }
  }
};

template <typename E, bool FOLDS, typename In>
__device__ inline void run_more_slots(const LineProgram& p) {
  if (blockIdx.x >= p.blocks) {
    copy_own(p);
    return;
  }
  auto carry = [&](int role, int, uint64_t first, uint64_t step) {
    uint64_t scale = FOLDS && p.call.scaled ? scale_of(p.call) : 0;
    int index = by_roles(p, threadIdx.x / 32);
    SlotRun<E, FOLDS, In>{p, scale, first, step, int(first), index}.run(role);
  };
  run_lines(p, carry, [] {});
  if (gridDim.x == p.blocks) copy_own(p);
}

// The same for a batch.
template <typename E, bool FOLDS, typename In>
__device__ inline void run_batch_of_slots(const LineBatch& batch) {
  auto carry = [](const LineProgram& p, int role, int channel, uint64_t first, uint64_t step) {
    uint64_t scale = FOLDS && p.call.scaled ? scale_of(p.call) : 0;
    int index = by_roles(p, threadIdx.x / 32);
    SlotRun<E, FOLDS, In>{p, scale, first, step, channel, index}.run(role);
  };
  run_batch(batch, carry, copy_part, [] {});
}

}  // namespace oxccl

// For each element type kernels that reduce; what only moves, runs as bytes.
#define OXCCL_MORE_SLOTS(NUMBER, ...)                                                           \
  OXCCL_KERNEL(oxccl_more_lines_##NUMBER, (BLOCK_THREADS, 1), oxccl::LineProgram,               \
               using namespace oxccl; run_more_slots<__VA_ARGS__, true, InLines>(argument))     \
  OXCCL_KERNEL(oxccl_batch_more_lines_##NUMBER, (BLOCK_THREADS, 1), oxccl::LineBatch,           \
               using namespace oxccl; run_batch_of_slots<__VA_ARGS__, true, InLines>(argument)) \
  OXCCL_KERNEL(oxccl_medium_packets_##NUMBER, (BLOCK_THREADS, 1), oxccl::LineProgram,           \
               using namespace oxccl; run_more_slots<__VA_ARGS__, true, InPackets>(argument))
OXCCL_ELEMENTS(OXCCL_MORE_SLOTS)
OXCCL_KERNEL(oxccl_more_lines, (BLOCK_THREADS, 1), oxccl::LineProgram, using namespace oxccl;
             run_more_slots<Integer<uint8_t>, false, InLines>(argument))
OXCCL_KERNEL(oxccl_batch_more_lines, (BLOCK_THREADS, 1), oxccl::LineBatch, using namespace oxccl;
             run_batch_of_slots<Integer<uint8_t>, false, InLines>(argument))
