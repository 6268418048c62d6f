// Collectives of a group side by side in one kernel: each has channels of its own.
#pragma once

#include "chunks.cuh"

namespace oxccl {

// The part of a channel in a batch: its program, and its units, if there are that many.
struct BatchPart {
  const LineProgram* program;  // null if the channel has none
  uint64_t first, step;

  __device__ bool has_units() const { return program && first < program->units; }

  // Finds the part of the channel with a number among all.
  __device__ BatchPart(const LineBatch& batch, uint32_t number)
      : program(nullptr), first(0), step(0) {
    uint32_t begin = 0;
#pragma unroll 1
    for (uint32_t i = 0; i < batch.count; i++) {
      uint32_t end = batch.first[i + 1];
      if (number >= begin && number < end) {
        program = &batch.programs[i];
        first = number - begin;
        step = end - begin;
      }
      begin = end;
    }
  }
};

// The programs of a batch, side by side. `run` moves the units of a channel, whose number among all
// it gets, in one of some roles; `copy` copies a warp's part of this rank's own slice; and the last
// warp of each block calls `watch` besides.
template <typename Run, typename Copy, typename Watch>
__device__ inline void run_batch(const LineBatch& batch, Run run, Copy copy, Watch watch) {
  const LineProgram& head = batch.programs[0];
  auto carry = [&] {
    LinePlace place(head);
    uint32_t number = LinePlace::number(head, place.index);
    BatchPart part(batch, number);
    if (!part.program) return;
    const LineProgram& p = *part.program;
    if (part.has_units()) run(p, place.role, int(number), part.first, part.step);
    copy(p, part.first * p.roles + place.role, part.step * p.roles);
  };
  run_blocks(head, carry, watch);
}

}  // namespace oxccl
