// The kernel that runs before copy engines: it waits until the peers' blocks are ready to be taken,
// and compares their addresses with those from which the host has the engines take them. If they
// differ, the program that follows the engines moves everything itself.
#pragma once

#include "agree.cuh"

namespace oxccl {

__device__ inline void run_expect(const Program& program) {
  const Rank& r = program.call.rank;
  Counters* own = counters(r, 0);
  __shared__ Reach reach;
  if (__syncthreads_or(faulty(r))) return;
  if (is_watcher()) {
    enter(r, own);
    announce(program.call, 0);
  } else {
    int taken = agree(program, own, reach, AHEAD);
    int peer = threadIdx.x;
    uint64_t from = peer < r.nranks ? program.expected[peer] : 0;
    bool astray = taken == WAY_IN_PLACE && from != 0 && from != reach.inputs[peer];
    bool engine_mispredictions = any_mover(astray);
    if (peer == 0 && taken >= 0) {
      volatile Control* c = reinterpret_cast<volatile Control*>(r.control);
      bool moved = taken == WAY_IN_PLACE && !engine_mispredictions;
      common(r)->moved = moved;
      if (moved) c->by_engines = c->by_engines + 1;
      if (engine_mispredictions) c->engine_mispredictions = c->engine_mispredictions + 1;
    }
  }
  __syncthreads();
  if (threadIdx.x == 0) leave(own);
}

}  // namespace oxccl

OXCCL_KERNEL(oxccl_expect, (EXPECT_THREADS), oxccl::Program, oxccl::run_expect(argument))
