// Chains: what carries large reduces among more than two GPUs. A rank folds what comes from the one
// before it in the chain with its own operand, and passes it on to the next one; the last one keeps
// it. Each warp of a block has a channel, and carries its chunks all the way.
#pragma once

#include "flow.cuh"

namespace oxccl {

template <typename Fold>
__device__ inline void run_chain(const LineProgram& p, const Fold& fold, int channel,
                                 uint64_t first, uint64_t step) {
  const Rank& r = p.call.rank;
  int from = __ffs(p.middle_from) - 1, to = __ffs(p.puts | p.middle_to) - 1;
  bool takes = from >= 0, puts = to >= 0;
  int warp = threadIdx.x / 32;
  begin_carrying(p.call);
  // Of an end without a peer nothing is used.
  ChunkEnd<false> in(r, takes ? from : to, channel, warp);
  ChunkEnd<true> out(r, puts ? to : from, channel, warp);
  Span operand(reinterpret_cast<const char*>(p.flow.own), p.flow.to_bytes);
  Span kept(reinterpret_cast<const char*>(p.flow.to), puts ? 0 : p.flow.to_bytes);
  bool goes_on = (!takes || in.open(p.digest)) && (!puts || out.open(p.digest));
#pragma unroll 1
  for (uint64_t unit = first; goes_on && unit < p.units; unit += step) {
    uint64_t at = unit * CHUNK_BYTES;
    Chunk own;
    own.load(operand, at);
    if ((takes && !in.await()) || (puts && !out.await())) break;
    Chunk come;
    if (takes) in.fetch(come);
    fold.multiply(own.v);
    if (takes) {
      fold.fold(come.v, own.v);
    } else {
      come = own;
    }
    if (puts) {
      out.put(come, warp);
    } else {
      come.store(kept, at);
    }
    if (takes) in.give_back();
  }
  if (takes) in.leave();
  if (puts) out.leave();
  end_progress(warp);
}

template <typename Fold>
__device__ inline void run_chains(const LineProgram& p, const Fold& fold) {
  const Rank& r = p.call.rank;
  uint32_t receivers = p.puts | p.middle_to;
  int thread = threadIdx.x & 31;
  bool tells = thread < LINE_WARPS && receivers != 0 && thread * p.blocks + blockIdx.x < p.units;
  if (is_watcher() && thread < LINE_WARPS) begin_progress(thread, tells);
  __syncthreads();
  auto carry = [&](int, int channel, uint64_t first, uint64_t step) {
    run_chain(p, fold, channel, first, step);
  };
  Telling telling = {tells ? receivers : 0, int(blockIdx.x) * LINE_WARPS + thread};
  run_lines(p, carry, [&] { tell_arrivals(r, telling, 0); });
}

}  // namespace oxccl

// For each element type a kernel.
#define OXCCL_CHAIN(NUMBER, ...)                                                     \
  OXCCL_KERNEL(oxccl_chain_##NUMBER, (BLOCK_THREADS, 1), oxccl::LineProgram,         \
               using namespace oxccl;                                                \
               uint64_t scale = argument.call.scaled ? scale_of(argument.call) : 0;  \
               run_chains(argument, FoldTwo<__VA_ARGS__, false>{argument, scale}))
OXCCL_ELEMENTS(OXCCL_CHAIN)
