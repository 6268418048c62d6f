// Words that ranks write at each other, and the places of a rank's shared memory.
#pragma once

#include <stdint.h>

#include "abi.h"

namespace oxccl {

struct alignas(16) Packet {
  uint32_t low, low_flag, high, high_flag;
};

// What a peer called: it fits two 16-byte stores, each of which carries the number.
struct alignas(16) Announcement {
  uint64_t operation;
  uint64_t count;
  uint64_t again;
  uint64_t what;
};

// What a rank brings to an agreement: where peers find its buffers, and what it calls. Every pair
// carries the number.
struct alignas(16) Entry {
  uint64_t number, input;
  uint64_t number_again, output;
  uint64_t number_third, count;
  uint64_t number_fourth, what;
};

// The end of a lane's slot: a part of such a message has arrived there.
struct alignas(16) Arrival {
  uint64_t number;
  uint64_t bytes;
  uint64_t what;
};

// Orders what is before it and what is after it, for all GPUs and the host. `__threadfence_system`
// also puts all threads' fences into one order, which costs microseconds and is needed nowhere here.
__device__ inline void fence() { asm volatile("fence.acq_rel.sys;" ::: "memory"); }

__device__ inline uint64_t load_acquire(const uint64_t* at) {
  uint64_t value;
  asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(at) : "memory");
  return value;
}

// Whether a counter has come so far; counters may wrap around.
__device__ inline bool reached(uint64_t count, uint64_t target) {
  return int64_t(count - target) >= 0;
}

// What the thread's block did before they last met is there for who sees the value.
__device__ inline void store_release(uint64_t* at, uint64_t value) {
  asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(at), "l"(value) : "memory");
}

__device__ inline void store_packet(Packet* at, Packet p) {
  asm volatile("st.volatile.global.v4.u32 [%0], {%1,%2,%3,%4};" ::"l"(at), "r"(p.low),
               "r"(p.low_flag), "r"(p.high), "r"(p.high_flag)
               : "memory");
}

__device__ inline Packet load_packet(const Packet* at) {
  Packet p;
  asm volatile("ld.volatile.global.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(p.low), "=r"(p.low_flag), "=r"(p.high), "=r"(p.high_flag)
               : "l"(at)
               : "memory");
  return p;
}

__device__ inline void store_pair(void* at, uint64_t a, uint64_t b) {
  asm volatile("st.volatile.global.v2.u64 [%0], {%1,%2};" ::"l"(at), "l"(a), "l"(b) : "memory");
}

__device__ inline void load_pair(const void* at, uint64_t& a, uint64_t& b) {
  asm volatile("ld.volatile.global.v2.u64 {%0,%1}, [%2];" : "=l"(a), "=l"(b) : "l"(at) : "memory");
}

// Shared memory of a rank: signals by channel and rank, announcements by number and rank, then of
// every lane by sender the slots' arrivals, by receiver the credits; entries by channel, half and
// rank; users' signals by rank; then packets, lanes, stage.
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

__device__ inline Packet* packets(const Rank& r, bool large, int at, int channel, int half,
                                  int from) {
  uint64_t base = large ? maps(r)->bases[at][STAGE_BUFFER] + STAGE_BYTES
                        : r.shared[at] + r.packets_at;
  uint64_t row = (channel * 2 + half) * uint64_t(r.nranks) + from;
  return reinterpret_cast<Packet*>(base) + row * (large ? r.large_packets : CHANNEL_PACKETS);
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

__device__ inline uint64_t* user_signal(const Rank& r, int at, int from, int signal) {
  return reinterpret_cast<uint64_t*>(r.shared[at] + USER_SIGNALS_AT) + from * USER_SIGNALS + signal;
}

__device__ inline Counters* counters(const Rank& r, int index) {
  return reinterpret_cast<Counters*>(r.counters) + index;
}

}  // namespace oxccl
