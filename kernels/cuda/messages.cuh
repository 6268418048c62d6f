// Sends and receives of a group over lines and chunks, in lanes of queues as in `exchange.cuh`. A
// line slot before each message, on the first channel, has its descriptor and its size: who waits
// for the data of another message finds there what has come. Each half of a block carries lanes of
// its own, so that two of them take no more room of the GPU than a block of a collective does.
#pragma once

#include "flow.cuh"

namespace oxccl {

static_assert(LINE_LANES * MESSAGE_WARPS <= LINE_CHANNELS / 2, "a channel for each warp of a queue");

// The half of the block to which the thread belongs.
__device__ inline int half_of_block() { return threadIdx.x / MESSAGE_THREADS; }

__device__ inline void sync_half() {
  __syncwarp();
  asm volatile("bar.sync %0, %1;" ::"r"(1 + half_of_block()), "n"(MESSAGE_THREADS) : "memory");
}

struct MessageRun {
  LineEnds<true> ends;
  int peer, lane, warp;

  __device__ bool put_header(const Message& m) {
    ends.digest = HEADER;
    Pair v[1] = {};
    if (ends.thread == 0) v[0].first = {m.what, 0, uint32_t(m.bytes), uint32_t(m.bytes >> 32)};
    return ends.put_unit(peer, 1, v);
  }

  // Takes the header of a message; false when it will not come, or is that of another message.
  // Data tell by themselves to which message they belong: where some follow, nothing waits for the
  // header, which is given back with them.
  __device__ bool take_header(const Message& m) {
    ends.digest = HEADER;
    uint32_t number = uint32_t(ends.taken) + 1;
    expect_header(ends.slot(ends.incoming, number), number);
    if (m.bytes == 0) {
      if (!ends.await_lines(peer, 1, ends.look(peer, 1, 0))) return false;
      bool other = ends.thread == 0 && is_other_header(ends.r, peer);
      if (__any_sync(~0u, other)) return false;
      ends.give_back(peer, 1);
    } else {
      ends.taken += 1;
    }
    return true;
  }

  // Carries this warp's part of a message; false when it cannot be carried.
  template <bool SENDS>
  __device__ bool carry_one(const Message& m) {
    if (lane >= m.lanes) return true;
    if (ends.thread == 0) carries() = {true, OUTSIDE, m.what, m.bytes, nullptr, 0};
    uint64_t first = warp * m.lanes + lane, step = uint64_t(MESSAGE_WARPS) * m.lanes;
    Flow flow;
    (SENDS ? flow.put : flow.to) = {reinterpret_cast<const char*>(m.data), m.bytes};
    flow.slots = m.slots;
    uint64_t unit = flow.unit_bytes(), units = unit ? (m.bytes + unit - 1) / unit : 0;
    flow.begin(first, step, units);
    bool packets = m.slots == SLOT_OF_PACKETS;
    First loaded;
    if (packets) {
      loaded.load_packets(flow);
    } else {
      loaded.load_line(ends, flow);
    }
    ends.settle();
    if (first == 0 && !(SENDS ? put_header(m) : take_header(m))) return false;
    ends.digest = m.digest;
    if (m.slots == 0) return carry_chunks<SENDS>(m, flow, first, step);
    if (first >= units) return true;
    return packets ? carry_packets<SENDS>(ends, peer, flow, loaded, NoFold())
                   : carry_units<SENDS>(ends, peer, flow, loaded, NoFold());
  }

  template <bool SENDS>
  __device__ bool carry_chunks(const Message& m, const Flow& flow, uint64_t first, uint64_t step) {
    int of_block = threadIdx.x / 32;
    ChunkEnd<SENDS> end(ends.r, peer, lane * MESSAGE_WARPS + warp, of_block);
    if constexpr (SENDS) {
      put_chunks(end, m.digest, flow.put, of_block, first, step, NoFold());
    } else {
      take_chunks(end, m.digest, flow, first, step, NoFold());
      ends.give_back(peer, 0);
    }
    end.leave();
    return !end.dead;
  }

  // Carries the messages of a queue, as far as they can be carried.
  template <bool SENDS>
  __device__ void run(const Message* messages, int from, int to) {
    for (int i = from; i < to; i++)
      if (!carry_one<SENDS>(messages[i])) break;
    ends.leave(peer, SENDS, !SENDS);
  }
};

// Carries a lane of a queue.
template <typename Messages>
__device__ inline void run_lane(const Messages& all, int index, int lane) {
  const Exchange& exchange = all.exchange;
  const Rank& r = exchange.rank;
  int peer = exchange.queues[index] / 2, channel = lane * MESSAGE_WARPS;
  bool sends = exchange.queues[index] & 1;
  bool tells = sends && r.chunk_slots_at != 0;
  int thread = threadIdx.x % MESSAGE_THREADS, first_warp = threadIdx.x / 32 - thread / 32;
  if (thread < MESSAGE_WARPS) begin_progress(first_warp + thread, true);
  Telling telling = telling_of(tells, peer, channel);
  Begin begin;
  sync_half();
  if (thread / 32 == MESSAGE_WARPS) {
    LineCounters* first = line_counters(r, channel, peer);
    uint32_t* busy = sends ? &first->putting : &first->taking;
    uint32_t running = mark(busy), users = mark_among(&common(r)->line_users, 1);
    if (index == 0 && lane == 0) begin = begin_messages(r, exchange.call, all.messages[0]);
    refuse(r, running != 0 || (users & LINE_COLLECTIVE) != 0);
    if (tells) tell_arrivals(r, telling, first_warp);
  } else {
    int warp = thread / 32;
    LineEnds<true> ends(r, 0, channel + warp, peer, warp_staging());
    MessageRun run{ends, peer, lane, warp};
    int from = exchange.first[index], to = exchange.first[index + 1];
    if (sends) {
      run.run<true>(all.messages, from, to);
      end_progress(threadIdx.x / 32);
    } else {
      run.run<false>(all.messages, from, to);
    }
  }
  sync_half();
  if (thread % 32 == 0) begin.end(r);
  if (thread == 0) {
    LineCounters* first = line_counters(r, channel, peer);
    *const_cast<volatile uint32_t*>(sends ? &first->putting : &first->taking) = 0;
    unmark_among(&common(r)->line_users, 1);
  }
}

// A half of a block carries one lane of its queue after the other. At both ends of a queue there
// may be different numbers of halves: of the lanes that are not carried yet both carry the first.
template <typename Messages>
__device__ inline void run_messages(const Messages& all) {
  const Exchange& exchange = all.exchange;
  uint32_t half = blockIdx.x * (blockDim.x / MESSAGE_THREADS) + half_of_block();
  uint32_t index = half / exchange.blocks;
  if (index >= exchange.count) return;
#pragma unroll 1
  for (uint32_t lane = half % exchange.blocks; lane < exchange.lanes; lane += exchange.blocks)
    run_lane(all, index, lane);
}

}  // namespace oxccl

OXCCL_KERNEL(oxccl_few_messages_in_lines, (BLOCK_THREADS, 1), oxccl::FewMessages,
             oxccl::run_messages(argument))
OXCCL_KERNEL(oxccl_many_messages_in_lines, (BLOCK_THREADS, 1), oxccl::ManyMessages,
             oxccl::run_messages(argument))
