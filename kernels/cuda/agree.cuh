// The agreement on whether an operation uses the ranks' user memory, and the large stage: each rank
// knows this only of itself, and all have to decide alike. Every block tells its peers' blocks of
// the same index where its rank's buffers are found, and waits for what they tell. All see the same
// words, so all come to the same answer, which need not be that of the rank's other blocks. The
// agreement also shows that every rank has entered, so it stands for the program's first signal.
#pragma once

#include "watch.cuh"

namespace oxccl {

// The addresses of the peers' memory, as this block uses it.
struct Reach {
  uint64_t inputs[MAX_RANKS], outputs[MAX_RANKS], stages[MAX_RANKS];
  uint64_t stage_slot_bytes;
};

// A buffer in one word: flags, the number of a mapped buffer, an offset there or an address.
constexpr uint64_t USABLE = 1ull << 63, MAPPED = 1ull << 62, LARGE = 1ull << 61;
constexpr int BUFFER_AT = 52;
static_assert(BUFFERS <= 256, "a buffer's number has 8 bits");

__device__ inline uint64_t word_of(const Rank& r, const Place& place) {
  switch (place.reach) {
    case REACH_NEEDLESS: return USABLE;
    case REACH_ADDRESS: return USABLE | place.at;
    case REACH_BUFFER:
      if (maps(r)->ready[place.buffer] != place.generation) return 0;
      return USABLE | MAPPED | uint64_t(place.buffer) << BUFFER_AT | place.at;
    default: return 0;
  }
}

// Finds the address of a peer's buffer; false when the buffer is not mapped any more, as the peer
// has given up since it told of it.
__device__ inline bool find(const Rank& r, int peer, uint64_t word, uint64_t& address) {
  address = word & ((1ull << BUFFER_AT) - 1);
  if (!(word & MAPPED)) return true;
  uint64_t base = maps(r)->bases[peer][word >> BUFFER_AT & 0xff];
  address += base;
  return base != 0;
}

__device__ inline void use_small_stage(const Rank& r, Reach& reach) {
  if (threadIdx.x < r.nranks) reach.stages[threadIdx.x] = r.shared[threadIdx.x] + r.stage_at;
  if (threadIdx.x == 0) reach.stage_slot_bytes = SMALL_STAGE_SLOT_BYTES;
}

__device__ inline void use_large_stage(const Rank& r, Reach& reach) {
  if (threadIdx.x < r.nranks)
    reach.stages[threadIdx.x] = maps(r)->bases[threadIdx.x][ON_DEMAND_BUFFER];
  if (threadIdx.x == 0) reach.stage_slot_bytes = STAGE_SLOT_BYTES;
}

// Sends this rank's entry to a peer, and receives the peer's; false when that one does not come, or
// the peer calls something else.
__device__ inline bool exchange_entries(const Program& p, int peer, uint64_t number,
                                        uint64_t& input, uint64_t& output) {
  const Rank& r = p.call.rank;
  Entry* there = entry(r, peer, blockIdx.x, number, r.rank);
  store_packet(&there->input, number, input);
  store_packet(&there->output, number, output);
  store_packet(&there->count, number, p.call.descriptor_count);
  store_packet(&there->what, number, p.call.descriptor_what);
  const Entry* here = entry(r, r.rank, blockIdx.x, number, peer);
  Wait wait;
  for (;;) {
    uint64_t count, what;
    bool all = load_packet(&here->input, number, input);
    all &= load_packet(&here->output, number, output);
    all &= load_packet(&here->count, number, count);
    all &= load_packet(&here->what, number, what);
    if (all) {
      bool same = count == p.call.descriptor_count && what == p.call.descriptor_what;
      if (!same)
        differ(r, peer, common(r)->operations, p.call.descriptor_what, p.call.descriptor_count,
               what, count);
      return same;
    }
    if (wait.over(r, peer, NO_STEP)) return false;
  }
}

// Finds what a block tells of its rank's buffers: what was told ahead, if something was.
__device__ inline void offer(const Program& p, Time time, uint64_t& input, uint64_t& output) {
  const Rank& r = p.call.rank;
  Shared* s = common(r);
  if (time == IN_TIME && p.engines && blockIdx.x == 0) {
    input = s->told_input;
    output = s->told_output;
    return;
  }
  input = word_of(r, p.input);
  output = word_of(r, p.output);
  if (maps(r)->ready[ON_DEMAND_BUFFER] != 0) input |= LARGE;
  // The host may change the maps meanwhile, so one thread's answer counts: all peers are told the
  // same.
  input = __shfl_sync(~0u, input, 0);
  output = __shfl_sync(~0u, output, 0);
  if (time == AHEAD && threadIdx.x == 0) {
    s->told_input = input;
    s->told_output = output;
  }
}

// Returns the way that all ranks take, and fills `reach` for it; -1 when there will be none. For
// all movers.
__device__ inline int agree(const Program& p, Counters* own, Reach& reach, Time time) {
  const Rank& r = p.call.rank;
  if (!p.agrees) {
    use_small_stage(r, reach);
    sync_movers();
    return WAY_STAGED;
  }
  __shared__ uint64_t inputs[MAX_RANKS], outputs[MAX_RANKS];
  int peer = threadIdx.x;
  uint64_t number = own->agreements + 1;
  bool over = false;
  if (peer < 32) {
    uint64_t input, output;
    offer(p, time, input, output);
    if (peer < r.nranks) {
      // A peer that reads the entry also sees what the stream did before.
      fence();
      if (peer != r.rank) over = !exchange_entries(p, peer, number, input, output);
      fence();
      inputs[peer] = input;
      outputs[peer] = output;
    }
  }
  if (any_mover(over)) return -1;
  uint64_t all = ~0ull;
  for (int i = 0; i < r.nranks; i++) all &= inputs[i] & (outputs[i] | ~USABLE);
  if (all & USABLE) {
    bool lost = false;
    if (peer < r.nranks && peer != r.rank) {
      lost = !find(r, peer, inputs[peer], reach.inputs[peer]) ||
             !find(r, peer, outputs[peer], reach.outputs[peer]);
      if (lost) fail(r, FAULT_ABORTED, peer, -1);
    }
    if (any_mover(lost)) return -1;
  } else if (all & LARGE) {
    use_large_stage(r, reach);
  } else {
    use_small_stage(r, reach);
  }
  if (threadIdx.x == 0 && time == IN_TIME) {
    own->agreements = number;
    if (blockIdx.x == 0 && (all & USABLE)) {
      common(r)->in_place += 1;
      reinterpret_cast<volatile Control*>(r.control)->in_place = common(r)->in_place;
    }
  }
  sync_movers();
  return all & USABLE ? WAY_IN_PLACE : WAY_STAGED;
}

}  // namespace oxccl
