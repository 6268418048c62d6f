// Sends and receives of a group: a block per lane of a queue, so that none waits for its turn
// behind another.
#pragma once

#include "lanes.cuh"

namespace oxccl {

// A line of the user's memory.
__device__ inline uint4 load_data(const char* at) {
  return __ldcg(reinterpret_cast<const uint4*>(at));
}

// Copies with all movers of a block; `load` reads a line.
template <typename Load>
__device__ inline void copy_bytes(char* to, const char* from, uint64_t len, Load load) {
  uint64_t both = reinterpret_cast<uint64_t>(to) | reinterpret_cast<uint64_t>(from);
  uint64_t lines = (both & 15) == 0 ? len / 16 : 0;
  constexpr int AHEAD = 4;
  uint64_t step = movers(), i = threadIdx.x;
  uint4* dst = reinterpret_cast<uint4*>(to);
  for (; i + (AHEAD - 1) * step < lines; i += AHEAD * step) {
    uint4 v[AHEAD];
#pragma unroll
    for (int k = 0; k < AHEAD; k++) v[k] = load(from + (i + k * step) * 16);
#pragma unroll
    for (int k = 0; k < AHEAD; k++) dst[i + k * step] = v[k];
  }
  for (; i < lines; i += step) dst[i] = load(from + i * 16);
  for (uint64_t b = lines * 16 + threadIdx.x; b < len; b += step)
    to[b] = *reinterpret_cast<const volatile char*>(from + b);
}

// Carries a lane's part of a message, slot by slot; a message without bytes takes a slot, too.
__device__ inline bool carry(Lane& lane, const Message& m, bool sends, uint64_t call) {
  Label label{m.what, m.bytes, 0, OUTSIDE, call};
  uint64_t at = 0, last = m.bytes, room = lane.slot_bytes();
  int lanes = lane.between_hosts() ? lane.rank.net_lanes : lane.rank.lanes;
  if (m.bytes > SMALL_MESSAGE_BYTES && lanes > 1) {
    uint64_t lines = (m.bytes + 15) / 16, share = (lines + lanes - 1) / lanes * 16;
    at = lane.lane * share;
    if (lane.lane >= lanes || at >= m.bytes) return true;
    last = at + share < m.bytes ? at + share : m.bytes;
  } else if (lane.lane > 0) {
    return true;
  }
  do {
    uint64_t len = last - at < room ? last - at : room;
    char* data = reinterpret_cast<char*>(m.data) + at;
    if (sends) {
      char* slot = lane.begin_send(label, len);
      if (!slot) return false;
      copy_bytes(slot, data, len, load_data);
      lane.end_send(label, len);
    } else {
      const char* slot = lane.begin_receive(label, len);
      if (!slot) return false;
      copy_bytes(data, slot, len, load_slot);
      lane.end_receive();
    }
    at += len;
  } while (at < last);
  return true;
}

template <typename Messages>
__device__ inline void run_exchange(const Messages& all) {
  const Exchange& exchange = all.exchange;
  const Rank& r = exchange.rank;
  int index = blockIdx.x / exchange.blocks, lane = blockIdx.x % exchange.blocks;
  int queue = exchange.queues[index];
  bool sends = queue & 1;
  LaneCounters* own = lane_counters(r, queue, lane);
  Begin begin;
  if (__syncthreads_or(faulty(r))) return;
  if (is_watcher()) {
    enter(r, own);
    if (blockIdx.x == 0) begin = begin_messages(r, exchange.call, all.messages[0]);
  } else {
    __shared__ Packed packed;
    Lane run(r, packed, queue / 2, lane, own);
    uint64_t call = exchange.followed ? exchange.call : 0;
    for (int i = exchange.first[index]; i < exchange.first[index + 1]; i++)
      if (!carry(run, all.messages[i], sends, call)) break;
    sync_movers();
    if (threadIdx.x == 0) run.leave(own);
  }
  __syncthreads();
  end_together(r, begin);
  if (threadIdx.x == 0) leave(own);
}

}  // namespace oxccl

OXCCL_KERNEL(oxccl_few_messages, (EXCHANGE_THREADS), oxccl::FewMessages,
             oxccl::run_exchange(argument))
OXCCL_KERNEL(oxccl_many_messages, (EXCHANGE_THREADS), oxccl::ManyMessages,
             oxccl::run_exchange(argument))
