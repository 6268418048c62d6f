// Sends and receives of a group over lines: a block for each lane of a queue, as in `exchange.cuh`.
// The first slot of a message, on the first channel, has its descriptor and its size.
#pragma once

#include "lines.cuh"

namespace oxccl {

static_assert(LINE_LANES * MESSAGE_WARPS <= LINE_CHANNELS, "a channel for each warp of a queue");

struct MessageRun {
  LineEnds<true> ends;
  int peer, lane, warp;

  // The digest of all headers; no collective has it.
  static constexpr uint32_t HEADER = 1u << 31;

  __device__ bool put_header(const Message& m) {
    ends.digest = HEADER;
    Pair v[1] = {};
    if (ends.thread == 0) v[0].first = {m.what, 0, uint32_t(m.bytes), uint32_t(m.bytes >> 32)};
    return ends.put_unit(peer, 1, v);
  }

  // Takes a header; false when it will not come, or is that of another message.
  __device__ bool take_header(const Message& m) {
    ends.digest = HEADER;
    Pair v[1][1];
    int from[1] = {peer};
    if (!ends.take(from, 1, v)) return false;
    uint32_t what = __shfl_sync(~0u, v[0][0].first.x, 0);
    uint32_t low = __shfl_sync(~0u, v[0][0].first.z, 0);
    uint64_t bytes = low | uint64_t(__shfl_sync(~0u, v[0][0].first.w, 0)) << 32;
    if (what == m.what && bytes == m.bytes) return true;
    if (ends.thread == 0)
      differ(ends.r, peer, common(ends.r)->operations, m.what, m.bytes, what, bytes);
    return false;
  }

  __device__ bool put(const Message& m, uint64_t at) {
    Pair v[MESSAGE_SLOTS];
    ends.load(reinterpret_cast<const char*>(m.data) + at, m.bytes - at, m.slots, v);
#pragma unroll
    for (int u = 0; u < MESSAGE_SLOTS; u++) ends.pack(v[u]);
    return ends.put_unit(peer, m.slots, v);
  }

  __device__ bool take(const Message& m, uint64_t at) {
    Pair v[1][MESSAGE_SLOTS];
    int from[1] = {peer};
    if (!ends.take(from, m.slots, v)) return false;
    ends.store(reinterpret_cast<char*>(m.data) + at, m.bytes - at, m.slots, v[0]);
    return true;
  }

  // Carries this warp's part of a message; false when it cannot be carried.
  __device__ bool carry(const Message& m, bool sends) {
    int lanes = m.bytes > SMALL_MESSAGE_BYTES ? ends.r.line_lanes : 1;
    if (lane >= lanes) return true;
    ends.message = &m;
    uint64_t first = warp * lanes + lane, step = uint64_t(MESSAGE_WARPS) * lanes;
    if (first == 0 && !(sends ? put_header(m) : take_header(m))) return false;
    ends.digest = m.digest;
    uint64_t unit = m.slots * UNIT_DATA_BYTES;
    for (uint64_t at = first * unit; at < m.bytes; at += step * unit)
      if (!(sends ? put(m, at) : take(m, at))) return false;
    return true;
  }
};

template <typename Messages>
__device__ inline void run_messages(const Messages& all) {
  const Exchange& exchange = all.exchange;
  const Rank& r = exchange.rank;
  int index = blockIdx.x / exchange.lanes, lane = blockIdx.x % exchange.lanes;
  int queue = exchange.queues[index], peer = queue / 2;
  bool sends = queue & 1;
  LineCounters* first = line_counters(r, lane * MESSAGE_WARPS, peer);
  uint32_t* busy = sends ? &first->putting : &first->taking;
  if (is_watcher()) {
    bool was_running = mark(busy);
    refuse(r, was_running | mark_among(&common(r)->line_users, 1, LINE_COLLECTIVE));
  } else {
    int warp = threadIdx.x / 32;
    MessageRun run{LineEnds<true>(r, 0, lane * MESSAGE_WARPS + warp, peer), peer, lane, warp};
    for (int i = exchange.first[index]; i < exchange.first[index + 1]; i++)
      if (!run.carry(all.messages[i], sends)) break;
    LineCounters* own = line_counters(r, run.ends.channel, peer);
    if (run.ends.thread == 0 && sends) own->put = run.ends.put;
    if (run.ends.thread == 0 && !sends) own->taken = run.ends.taken;
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    *const_cast<volatile uint32_t*>(busy) = 0;
    unmark_among(&common(r)->line_users, 1);
  }
}

}  // namespace oxccl

extern "C" __global__ void __launch_bounds__(MESSAGE_THREADS, 2)
    oxccl_few_messages_in_lines(const __grid_constant__ oxccl::FewMessages messages) {
  oxccl::run_messages(messages);
}

extern "C" __global__ void __launch_bounds__(MESSAGE_THREADS, 2)
    oxccl_many_messages_in_lines(const __grid_constant__ oxccl::ManyMessages messages) {
  oxccl::run_messages(messages);
}
