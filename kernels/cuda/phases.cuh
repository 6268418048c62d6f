// Programs of more than two ranks over lines: a warp does all phases of a unit.
#pragma once

#include "lines.cuh"

namespace oxccl {

// A warp's run of a program of more than two ranks: U slots of a unit are under way at once, to and
// from G peers.
template <typename E, bool FOLDS, int U, int G>
struct LineRun {
  const LineProgram& p;
  LineEnds<false> ends;
  uint64_t scale;

  __device__ const Rank& rank() const { return p.call.rank; }
  __device__ int nranks() const { return rank().nranks; }
  __device__ Span input(uint64_t at, uint64_t bytes) const {
    return {reinterpret_cast<const char*>(p.call.input) + at, bytes};
  }
  __device__ Span output(uint64_t at, uint64_t bytes) const {
    return {reinterpret_cast<char*>(p.call.output) + at, bytes};
  }

  // The peer that is `distance` ranks ahead; −1 beyond the last one.
  __device__ int peer(int distance) const {
    int n = nranks(), at = rank().rank + distance;
    if (distance >= n) return -1;
    return at < n ? at : at - n;
  }

  // Makes of what was loaded what is put or folded.
  __device__ void pack(Pair (&v)[U]) const {
#pragma unroll
    for (int u = 0; u < U; u++) pack_operand<E, FOLDS>(ends, p, scale, v[u]);
  }

  __device__ bool put_unit(int to, const Pair (&v)[U]) { return ends.put_unit(to, p.slots, v); }

  __device__ bool put(uint64_t at) {
#pragma unroll 1
    for (int first = 1; first < nranks(); first += G) {
      Pair v[G][U];
      int to[G];
#pragma unroll
      for (int g = 0; g < G; g++) {
        to[g] = peer(first + g);
        if (to[g] >= 0 && p.peers[to[g]].put_at == NO_SLICE) to[g] = -1;
        if (to[g] < 0) continue;
        const LinePeer& with = p.peers[to[g]];
        ends.load(input(with.put_at, with.put_bytes), at, p.slots, v[g]);
      }
#pragma unroll
      for (int g = 0; g < G; g++) {
        if (to[g] < 0) continue;
        pack(v[g]);
        if (!put_unit(to[g], v[g])) return false;
      }
    }
    return true;
  }

  // Reductions copy nothing.
  __device__ void copy(uint64_t at) const {
    if (FOLDS || p.copy_to == NO_SLICE) return;
    Span from = input(p.copy_from, p.copy_bytes), to = output(p.copy_to, p.copy_bytes);
    if (from.at == to.at) return;
    Pair v[U];
    ends.load(from, at, p.slots, v);
#pragma unroll
    for (int u = 0; u < U; u++) ends.pack(v[u]);
    ends.store(to, at, p.slots, v);
  }

  // Fetches the next slots of ranks, but for negative ones; false when they will not come.
  template <int H>
  __device__ bool fetch(const int (&from)[H], Pair (&v)[H][U]) {
    if (ends.dead) return false;
    uint64_t seen[H];
#pragma unroll
    for (int h = 0; h < H; h++)
      if (from[h] >= 0) seen[h] = ends.look(from[h], p.slots, 0);
#pragma unroll
    for (int h = 0; h < H; h++)
      if (from[h] >= 0 && !ends.await_lines(from[h], p.slots, seen[h])) return false;
#pragma unroll
    for (int h = 0; h < H; h++)
      if (from[h] >= 0) ends.fetch(from[h], p.slots, v[h]);
    return true;
  }

  // Gives back what was fetched and is there.
  template <int H>
  __device__ void give_back(const int (&from)[H]) {
#pragma unroll
    for (int h = 0; h < H; h++)
      if (from[h] >= 0) ends.give_back(from[h], p.slots);
  }

  // Folds a unit of all ranks, in rank order.
  template <int OP>
  __device__ bool fold(uint64_t at, Pair (&result)[U]) {
    int n = nranks(), me = rank().rank;
    Sum<E> sum[U];
    Pair own[U];
    ends.load(input(p.own_at, p.middle_bytes), at, p.slots, own);
#pragma unroll 1
    for (int first = 0; first < n; first += G + 1) {
      Pair v[G + 1][U];
      int from[G + 1];
#pragma unroll
      for (int g = 0; g <= G; g++) from[g] = first + g < n && first + g != me ? first + g : -1;
      if (!fetch(from, v)) return false;
      if (first == 0) pack(own);
#pragma unroll
      for (int g = 0; g <= G; g++) {
        if (first + g >= n) continue;
#pragma unroll
        for (int u = 0; u < U; u++)
          sum[u].template combine_slot<OP>(first + g == 0, first + g == me ? own[u] : v[g][u]);
      }
#pragma unroll
      for (int g = 0; g <= G; g++)
        if (from[g] >= 0) ends.give_back(from[g], p.slots + ends.come(p.slots, v[g]));
    }
#pragma unroll
    for (int u = 0; u < U; u++) sum[u].round(p.finish && p.call.op == AVG, n, result[u]);
    return true;
  }

  // Gets what the middle phase passes on and keeps.
  __device__ bool get_middle(uint64_t at, Pair (&result)[U]) {
    if constexpr (FOLDS) {
      switch (p.call.op) {
        case PROD: return fold<PROD>(at, result);
        case MAX: return fold<MAX>(at, result);
        case MIN: return fold<MIN>(at, result);
        default: return fold<SUM>(at, result);
      }
    } else {
      Pair v[1][U];
      int from[1] = {int(p.middle_from)};
      if (!fetch(from, v)) return false;
#pragma unroll
      for (int u = 0; u < U; u++) result[u] = v[0][u];
      return true;
    }
  }

  __device__ bool middle(uint64_t at) {
    if (!p.has_middle) return true;
    Pair result[U];
    if (!get_middle(at, result)) return false;
    if (p.middle_to != 0) {
#pragma unroll 1
      for (int distance = 1; distance < nranks(); distance++) {
        int to = peer(distance);
        if ((p.middle_to >> to & 1) && !put_unit(to, result)) return false;
      }
    }
    if (p.result_at != NO_SLICE)
      ends.store(output(p.result_at, p.middle_bytes), at, p.slots, result);
    if (!FOLDS) ends.give_back(p.middle_from, p.slots);
    return true;
  }

  __device__ bool take(uint64_t at) {
#pragma unroll 1
    for (int first = 1; first < nranks(); first += G) {
      Pair v[G][U];
      int from[G];
      bool any = false;
#pragma unroll
      for (int g = 0; g < G; g++) {
        from[g] = peer(first + g);
        if (from[g] >= 0 && p.peers[from[g]].take_at == NO_SLICE) from[g] = -1;
        any |= from[g] >= 0;
      }
      if (!any) continue;
      if (!fetch(from, v)) return false;
#pragma unroll
      for (int g = 0; g < G; g++) {
        if (from[g] < 0) continue;
        const LinePeer& with = p.peers[from[g]];
        ends.store(output(with.take_at, with.take_bytes), at, p.slots, v[g]);
      }
      give_back(from);
    }
    return true;
  }

  __device__ uint64_t place(uint64_t unit) const { return unit * p.slots * UNIT_DATA_BYTES; }

  // Where nothing is passed on, a unit is put before the one before it is taken: an edge then
  // carries nothing else that would have to come first.
  __device__ void run(uint64_t first, uint64_t step) {
    if (ends.dead) return;
    uint64_t ahead = p.middle_to == 0 ? step : 0;
    if (ahead && !put(place(first))) return;
    for (uint64_t unit = first; unit < p.units; unit += step) {
      uint64_t at = place(unit);
      if (unit + ahead < p.units && !put(place(unit + ahead))) return;
      // What is copied may be longer than what is exchanged.
      for (uint64_t more = at; more < p.copy_bytes; more += place(p.units)) copy(more);
      if (!middle(at) || !take(at)) return;
    }
    ends.leave();
  }
};

template <typename E, bool FOLDS, int U, int G>
__device__ inline void run_more(const LineProgram& program) {
  run_lines<1>(program, [&](int, int channel, uint64_t first, uint64_t step) {
    begin_carrying(program.call);
    char* staging = warp_staging();
    LineEnds<false> ends(program.call.rank, program.digest, channel, 0, staging);
    ends.settle();
    uint64_t scale = FOLDS ? scale_of(program.call) : 0;
    LineRun<E, FOLDS, U, G>{program, ends, scale}.run(first, step);
  }, [] {});
}

}  // namespace oxccl

// For each element type a kernel that reduces; what only moves, runs as bytes.
#define OXCCL_LINES(NUMBER, ...)                                                 \
  OXCCL_KERNEL(oxccl_lines_more_##NUMBER, (BLOCK_THREADS, 1), oxccl::LineProgram, \
               using namespace oxccl; run_more<__VA_ARGS__, true, 1, 3>(argument))
OXCCL_ELEMENTS(OXCCL_LINES)
OXCCL_KERNEL(oxccl_lines_more, (BLOCK_THREADS, 1), oxccl::LineProgram,
             oxccl::run_more<oxccl::Integer<uint8_t>, false, 2, 3>(argument))
