// Packets in slots of lines: what carries small slices and messages between two GPUs. Who sees the
// numbers of a packet has its data, where the data of a line are loaded once its number was seen:
// so packets arrive a look earlier, and take twice the room.
//
// A slot has two packets of each thread. Beside the first half of the data is the number of the slot,
// beside the second one that number plus the digest of the call.
#pragma once

#include "lines.cuh"

namespace oxccl {

// A thread's 16 bytes of a slot that begins at `from` in a span.
__device__ inline uint4 load_sixteen(const Span& span, uint64_t from) {
  uint64_t at = from + (threadIdx.x & 31) * 16;
  uint64_t left = at < span.bytes ? span.bytes - at : 0;
  return load_line(span.at + at, left, aligned(reinterpret_cast<uint64_t>(span.at)));
}

__device__ inline void store_sixteen(const Span& span, uint64_t from, uint4 v) {
  uint64_t at = from + (threadIdx.x & 31) * 16;
  uint64_t left = at < span.bytes ? span.bytes - at : 0;
  store_line(span.at + at, left, aligned(reinterpret_cast<uint64_t>(span.at)), v);
}

// Puts the next slot, for which the peer has room.
__device__ inline void put_packets(LineEnds<true>& ends, uint4 v) {
  uint32_t number = uint32_t(ends.put) + 1, check = number + ends.digest;
  char* at = ends.slot(ends.outgoing, number);
  store_halves(reinterpret_cast<Packet*>(at), {v.x, number, v.y, check});
  store_halves(reinterpret_cast<Packet*>(at + 512), {v.z, number, v.w, check});
  ends.put += 1;
}

// A thread's packets of a slot.
struct Packets {
  uint4 data;
  bool here;

  __device__ Packets(const char* at, uint32_t number, uint32_t digest) {
    Packet first = load_halves(reinterpret_cast<const Packet*>(at));
    Packet second = load_halves(reinterpret_cast<const Packet*>(at + 512));
    data = {first.low, first.high, second.low, second.high};
    auto fits = [&](const Packet& p) {
      return p.low_flag == number && p.high_flag == number + digest;
    };
    here = fits(first) && fits(second);
  }
};

// Waits for the packets of a slot, which `here` tells apart from those that never come.
__device__ __noinline__ Packets wait_packets(const Rank& r, int peer, const char* at,
                                             uint32_t number, uint32_t digest) {
  WarpWait wait;
  for (;;) {
    Packets packets(at, number, digest);
    packets.here = __all_sync(~0u, packets.here);
    if (packets.here || wait.over(r, peer)) return packets;
  }
}

// Takes a thread's data of the next slot; false when they never come.
__device__ inline bool take_packets(LineEnds<true>& ends, int peer, uint4& v) {
  uint32_t number = uint32_t(ends.taken) + 1;
  const char* at = ends.slot(ends.incoming, number);
  Packets packets(at, number, ends.digest);
  if (!__all_sync(~0u, packets.here)) packets = wait_packets(ends.r, peer, at, number, ends.digest);
  ends.dead |= !__all_sync(~0u, packets.here);
  v = packets.data;
  return !ends.dead;
}

}  // namespace oxccl
