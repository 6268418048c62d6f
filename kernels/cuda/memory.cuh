// Words that ranks write to each other, and the layout of a rank's shared memory.
#pragma once

#include <stdint.h>

#include "abi.h"

namespace oxccl {

// 8 bytes of data and, beside each half of them, the number of the window, operation or agreement
// to which they belong: data and signal in one store. Each half is seen whole or not at all, the
// two halves in any order. More is not promised: PTX's memory consistency model treats an access to
// a vector as one access to each of its elements, in any order ("Vector Data-types"); an aligned
// element of up to 64 bits that is `.volatile` at both ends comes from one store ("Single-Copy
// Atomicity"). CUDA's conditions for system scope ("Atomicity" in the C++ memory model) hold within
// a GPU, between GPUs whose link has native atomics (NVLink), and for loads and stores of 8 bytes
// in mapped memory of the host. Between GPUs that reach each other by PCIe CUDA promises nothing:
// there all 8-byte words of this file rely, as NCCL's packets do, on aligned stores of 8 bytes not
// being split.
struct alignas(16) Packet {
  uint32_t low, low_flag, high, high_flag;
};

// The call that a peer announces.
struct Announcement {
  Packet count, what;
};

// The entry of a rank to an agreement: where peers find its buffers, and what it calls.
struct Entry {
  Packet input, output, count, what;
};

// Orders all accesses before it and after it, for all GPUs and the host. `__threadfence_system`
// also puts all threads' fences into one order, which costs microseconds and is needed nowhere
// here.
__device__ inline void fence() { asm volatile("fence.acq_rel.sys;" ::: "memory"); }

// Waits for what comes before this kernel in its stream: blocks may be there earlier. All kernels
// do so first.
__device__ inline void await_stream() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

__device__ inline uint64_t now_ns() {
  uint64_t t;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(t));
  return t;
}

// Returns what tells the times of this block where its kernel runs in a graph; null elsewhere.
__device__ inline CapturedBlock* captured(volatile Stamp* stamps) {
  const uintptr_t at = reinterpret_cast<uintptr_t>(stamps);
  return at & 1 ? reinterpret_cast<CapturedBlock*>(at - 1) + blockIdx.x : nullptr;
}

// One store, of which the host may still see the number before the time.
__device__ inline void store_time(BlockTime* to, uint64_t ns, uint64_t run) {
  asm volatile("st.volatile.global.v2.u64 [%0], {%1, %2};" ::"l"(to), "l"(ns), "l"(run) : "memory");
}

// Notes when a block begins. Without a profiler `stamps` is null, and as it is an argument of the
// kernel, nobody waits to see that. What profilers need lies behind the code that others run.
__device__ inline void stamp_begin(volatile Stamp* stamps) {
  if (__builtin_expect(stamps != nullptr, 0) && threadIdx.x == 0) {
    const uint64_t ns = now_ns();
    if (const CapturedBlock* block = captured(stamps)) {
      const uint64_t run = block->runs + 1;
      store_time(&reinterpret_cast<BlockRun*>(block->at)[run % KEPT_RUNS].begun, ns, run);
    } else {
      stamps[blockIdx.x].begun_ns = ns;
    }
  }
}

// Notes when all threads of a block have ended. The host takes an operation for ended once all its
// blocks have noted that.
__device__ inline void stamp_end(volatile Stamp* stamps) {
  if (__builtin_expect(!stamps, 1)) return;
  __syncthreads();
  if (threadIdx.x != 0) return;
  const uint64_t ns = now_ns();
  if (CapturedBlock* block = captured(stamps)) {
    const uint64_t run = ++block->runs;
    store_time(&reinterpret_cast<BlockRun*>(block->at)[run % KEPT_RUNS].ended, ns, run);
  } else {
    stamps[blockIdx.x].ended_ns = ns;
  }
}

// Defines a kernel of one argument, `argument`. Its body may not leave the kernel early, as each
// block notes its end.
#define OXCCL_KERNEL(NAME, BOUNDS, ARGUMENT, ...)                    \
  extern "C" __global__ void __launch_bounds__ BOUNDS NAME(          \
      const __grid_constant__ ARGUMENT argument,                     \
      volatile oxccl::Stamp* const stamps) {                         \
    oxccl::await_stream();                                           \
    oxccl::stamp_begin(stamps);                                      \
    {                                                                \
      __VA_ARGS__;                                                   \
    }                                                                \
    oxccl::stamp_end(stamps);                                        \
  }

__device__ inline uint4 load_volatile(const char* at) {
  uint4 v;
  asm volatile("ld.volatile.global.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(at)
               : "memory");
  return v;
}

__device__ inline uint64_t load_acquire(const uint64_t* at) {
  uint64_t value;
  asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(at) : "memory");
  return value;
}

// Returns whether a counter has reached a target; counters may wrap around.
__device__ inline bool reached(uint64_t count, uint64_t target) {
  return int64_t(count - target) >= 0;
}

// A thread that sees the value also sees what this thread's block did before its threads last met.
__device__ inline void store_release(uint64_t* at, uint64_t value) {
  asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(at), "l"(value) : "memory");
}

// Orders nothing.
__device__ inline void store_relaxed(uint64_t* at, uint64_t value) {
  asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(at), "l"(value) : "memory");
}

// Stores a packet as two elements, each with a number.
__device__ inline void store_halves(Packet* at, Packet p) {
  asm volatile(
      "{ .reg .b64 a, b; mov.b64 a, {%1,%2}; mov.b64 b, {%3,%4};"
      " st.volatile.global.v2.u64 [%0], {a,b}; }" ::"l"(at),
      "r"(p.low), "r"(p.low_flag), "r"(p.high), "r"(p.high_flag)
      : "memory");
}

__device__ inline Packet load_halves(const Packet* at) {
  Packet p;
  asm volatile(
      "{ .reg .b64 a, b; ld.volatile.global.v2.u64 {a,b}, [%4];"
      " mov.b64 {%0,%1}, a; mov.b64 {%2,%3}, b; }"
      : "=r"(p.low), "=r"(p.low_flag), "=r"(p.high), "=r"(p.high_flag)
      : "l"(at)
      : "memory");
  return p;
}

// Stores data with a number, and a bit of the sender. The second flag is the complement of the
// first, so that memory of zeros or of equal words never looks like a packet.
__device__ inline void store_packet(Packet* at, uint64_t number, uint64_t data, bool bit = false) {
  uint32_t flag = uint32_t(number);
  store_halves(at, {uint32_t(data), flag, uint32_t(data >> 32), (~flag & ~1u) | uint32_t(bit)});
}

// Returns whether a packet is that of a number, as `store_packet` wrote it.
__device__ inline bool is_of(const Packet& p, uint64_t number) {
  uint32_t flag = uint32_t(number);
  return p.low_flag == flag && (p.high_flag | 1) == (~flag | 1);
}

// Returns whether the packet of a number has come; if so, its data and the sender's bit.
__device__ inline bool load_packet(const Packet* at, uint64_t number, uint64_t& data, bool& bit) {
  Packet p = load_halves(at);
  data = p.low | uint64_t(p.high) << 32;
  bit = p.high_flag & 1;
  return is_of(p, number);
}

// Returns whether a packet is the one of a number with these data.
__device__ inline bool holds(const Packet& p, uint64_t number, uint64_t data) {
  return is_of(p, number) && p.low == uint32_t(data) && p.high == uint32_t(data >> 32);
}

__device__ inline bool load_packet(const Packet* at, uint64_t number, uint64_t& data) {
  bool bit;
  return load_packet(at, number, data, bit);
}

// The shared memory of a rank: signals by channel and rank; announcements by number and rank; for
// every lane, the arrivals of its slots by sender, and the credits by receiver; entries by channel,
// half and rank; users' signals by rank; then packets, lanes, stage.
constexpr uint64_t SIGNALS_AT = 0;
constexpr uint64_t ANNOUNCEMENTS_AT = SIGNALS_AT + sizeof(uint64_t) * MAX_CHANNELS * MAX_RANKS;
constexpr uint64_t ARRIVALS_AT =
    ANNOUNCEMENTS_AT + sizeof(Announcement) * ANNOUNCEMENTS * MAX_RANKS;
constexpr uint64_t CREDITS_AT = ARRIVALS_AT + sizeof(Arrival) * LANE_SLOTS * LANES * MAX_RANKS;
constexpr uint64_t ENTRIES_AT = CREDITS_AT + sizeof(uint64_t) * LANES * MAX_RANKS;
constexpr uint64_t USER_SIGNALS_AT = ENTRIES_AT + sizeof(Entry) * MAX_CHANNELS * 2 * MAX_RANKS;
static_assert(USER_SIGNALS_AT + sizeof(uint64_t) * USER_SIGNALS * MAX_RANKS <= WORDS_BYTES,
              "words fit");

__device__ inline uint64_t* signal_word(const Rank& r, int at, int channel, int from) {
  return reinterpret_cast<uint64_t*>(r.shared[at] + SIGNALS_AT) + channel * MAX_RANKS + from;
}

__device__ inline Announcement* announcement(const Rank& r, int at, uint64_t operation, int from) {
  return reinterpret_cast<Announcement*>(r.shared[at] + ANNOUNCEMENTS_AT) +
         (operation % ANNOUNCEMENTS) * MAX_RANKS + from;
}

__device__ inline const volatile Maps* maps(const Rank& r) {
  return reinterpret_cast<const volatile Maps*>(r.maps);
}

// Packets, per rank, that a channel has room for in a half.
__device__ inline uint64_t packet_room(const Rank& r, bool large) {
  return large ? r.large_packets : CHANNEL_PACKETS;
}

__device__ inline Packet* packets(const Rank& r, bool large, int at, int channel, int half,
                                  int from) {
  uint64_t base = large ? maps(r)->bases[at][ON_DEMAND_BUFFER] + STAGE_BYTES
                        : r.shared[at] + r.packets_at;
  uint64_t row = (channel * 2 + half) * uint64_t(r.nranks) + from;
  return reinterpret_cast<Packet*>(base) + row * packet_room(r, large);
}

__device__ inline Entry* entry(const Rank& r, int at, int channel, uint64_t number, int from) {
  return reinterpret_cast<Entry*>(r.shared[at] + ENTRIES_AT) +
         (channel * 2 + (number & 1)) * MAX_RANKS + from;
}

__device__ inline char* lane_slot(const Rank& r, int at, int from, int lane, int slot) {
  return reinterpret_cast<char*>(r.shared[at] + r.lanes_at) +
         ((uint64_t(from) * LANES + lane) * LANE_SLOTS + slot) * LANE_SLOT_BYTES;
}

__device__ inline Arrival* arrival(const Rank& r, int at, int from, int lane, int slot) {
  return reinterpret_cast<Arrival*>(r.shared[at] + ARRIVALS_AT) +
         (from * LANES + lane) * LANE_SLOTS + slot;
}

__device__ inline uint64_t* credit(const Rank& r, int at, int from, int lane) {
  return reinterpret_cast<uint64_t*>(r.shared[at] + CREDITS_AT) + from * LANES + lane;
}

// A lane to a rank as it is reached; null where all ranks are on this host.
__device__ inline const Peer* peer_of(const Rank& r, uint32_t rank, int lane = 0) {
  return r.peers ? reinterpret_cast<const Peer*>(r.peers) + rank * LANES + lane : nullptr;
}

__device__ inline NetWords* net_words(const Peer& peer) {
  return reinterpret_cast<NetWords*>(peer.words);
}

__device__ inline uint64_t* user_signal(const Rank& r, int at, int from, int signal) {
  return reinterpret_cast<uint64_t*>(r.shared[at] + USER_SIGNALS_AT) + from * USER_SIGNALS + signal;
}

__device__ inline Counters* counters(const Rank& r, int index) {
  return reinterpret_cast<Counters*>(r.counters) + index;
}

}  // namespace oxccl
