// Sends and receives of a group: a block per lane of a queue, so that none waits for its turn
// behind another. A lane is a bounded queue in the receiver's memory: the sender fills slots and
// counts arrivals, the receiver empties them and gives credits back.
#pragma once

#include "watch.cuh"

namespace oxccl {

__device__ inline void copy_bytes(char* to, const char* from, uint64_t len) {
  uint64_t both = reinterpret_cast<uint64_t>(to) | reinterpret_cast<uint64_t>(from);
  uint64_t lines = (both & 15) == 0 ? len / 16 : 0;
  constexpr int AHEAD = 4;
  uint64_t step = movers(), i = threadIdx.x;
  const uint4* src = reinterpret_cast<const uint4*>(from);
  uint4* dst = reinterpret_cast<uint4*>(to);
  for (; i + (AHEAD - 1) * step < lines; i += AHEAD * step) {
    uint4 v[AHEAD];
#pragma unroll
    for (int k = 0; k < AHEAD; k++) v[k] = __ldcg(src + i + k * step);
#pragma unroll
    for (int k = 0; k < AHEAD; k++) dst[i + k * step] = v[k];
  }
  for (; i < lines; i += step) dst[i] = __ldcg(src + i);
  for (uint64_t b = lines * 16 + threadIdx.x; b < len; b += step)
    to[b] = *reinterpret_cast<const volatile char*>(from + b);
}

struct Lane {
  const Rank& rank;
  int peer, lane;
  uint64_t number;  // slots used so far

  // One thread waits for all; false when what they wait for will not come.
  template <typename Ready>
  __device__ bool wait(const Message& m, Ready ready) const {
    return !any_mover(threadIdx.x == 0 && !await(rank, peer, m.what, m.bytes, ready));
  }

  __device__ bool send(const Message& m, const char* data, uint64_t len) {
    const uint64_t* credits = credit(rank, rank.rank, peer, lane);
    uint64_t used = number;
    if (!wait(m, [=] { return reached(load_acquire(credits) + LANE_SLOTS, used + 1); })) return false;
    int slot = number % LANE_SLOTS;
    copy_bytes(lane_slot(rank, peer, rank.rank, lane, slot), data, len);
    sync_movers();
    number += 1;
    if (threadIdx.x == 0) {
      volatile Arrival* there = arrival(rank, peer, rank.rank, lane, slot);
      there->bytes = m.bytes;
      there->what = m.what;
      store_release(const_cast<uint64_t*>(&there->number), number);
    }
    return true;
  }

  __device__ bool receive(const Message& m, char* data, uint64_t len) {
    int slot = number % LANE_SLOTS;
    const Arrival* here = arrival(rank, rank.rank, peer, lane, slot);
    number += 1;
    uint64_t awaited = number;
    if (!wait(m, [=] { return load_acquire(&here->number) == awaited; })) return false;
    const volatile Arrival* theirs = here;
    uint64_t bytes = theirs->bytes, what = theirs->what;
    if (any_mover(bytes != m.bytes || what != m.what)) {
      if (threadIdx.x == 0)
        differ(rank, peer, common(rank)->operations, m.what, m.bytes, what, bytes);
      return false;
    }
    copy_bytes(data, lane_slot(rank, rank.rank, peer, lane, slot), len);
    sync_movers();
    if (threadIdx.x == 0) store_release(credit(rank, peer, rank.rank, lane), number);
    return true;
  }

  // Carries this lane's part of a message, slot by slot; a message without bytes takes a slot, too.
  __device__ bool carry(const Message& m, bool sends) {
    uint64_t at = 0, last = m.bytes;
    if (m.bytes > SMALL_MESSAGE_BYTES) {
      uint64_t lines = (m.bytes + 15) / 16, share = (lines + rank.lanes - 1) / rank.lanes * 16;
      at = lane * share;
      if (at >= m.bytes) return true;
      last = at + share < m.bytes ? at + share : m.bytes;
    } else if (lane > 0) {
      return true;
    }
    do {
      uint64_t len = last - at < LANE_SLOT_BYTES ? last - at : LANE_SLOT_BYTES;
      char* data = reinterpret_cast<char*>(m.data) + at;
      if (!(sends ? send(m, data, len) : receive(m, data, len))) return false;
      at += len;
    } while (at < last);
    return true;
  }
};

template <typename Messages>
__device__ inline void run_exchange(const Messages& all) {
  const Exchange& exchange = all.exchange;
  const Rank& r = exchange.rank;
  int index = blockIdx.x / exchange.lanes, lane = blockIdx.x % exchange.lanes;
  int queue = exchange.queues[index], peer = queue / 2;
  bool sends = queue & 1;
  Counters* own = counters(r, MAX_CHANNELS + queue * LANES + lane);
  if (__syncthreads_or(faulty(r))) return;
  if (is_watcher()) {
    enter(r, own);
  } else {
    Lane run{r, peer, lane, own->messages};
    for (int i = exchange.first[index]; i < exchange.first[index + 1]; i++)
      if (!run.carry(all.messages[i], sends)) break;
    sync_movers();
    if (threadIdx.x == 0) own->messages = run.number;
  }
  __syncthreads();
  if (threadIdx.x == 0) leave(own);
}

}  // namespace oxccl

extern "C" __global__ void __launch_bounds__(EXCHANGE_THREADS)
    oxccl_few_messages(const __grid_constant__ oxccl::FewMessages messages) {
  oxccl::run_exchange(messages);
}

extern "C" __global__ void __launch_bounds__(EXCHANGE_THREADS)
    oxccl_many_messages(const __grid_constant__ oxccl::ManyMessages messages) {
  oxccl::run_exchange(messages);
}
