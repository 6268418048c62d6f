// Packets in slots of lines: what carries small slices and messages. Who sees the numbers of a
// packet has its data, where the data of a line are loaded once its number was seen: so packets
// arrive a look earlier, and take twice the room.
//
// A slot has two packets of each thread. Beside the first half of the data is the number of the
// slot, beside the second one that number plus the digest of the call.
#pragma once

#include "lines.cuh"

namespace oxccl {

// Up to 16 bytes of user memory of any alignment; all accesses are under way at once.
struct Piece {
  char* at;
  uint32_t bytes;

  // A thread's 16 bytes of a slot that begins at `from` in a span, as far as they are there.
  __device__ Piece(const Span& span, uint64_t from) {
    uint64_t place = from + (threadIdx.x & 31) * 16;
    uint64_t left = place < span.bytes ? span.bytes - place : 0;
    at = span.at + place;
    bytes = left < 16 ? left : 16;
  }

  __device__ bool is_whole() const {
    return bytes == 16 && aligned(reinterpret_cast<uint64_t>(at));
  }

  // Loads of whole words stand in line: a call, or threads that go on alone, would cost more.
  __device__ uint4 load() const {
    uint4 v = {};
    auto word = [&](int i) { return reinterpret_cast<const volatile uint32_t*>(at)[i]; };
    if (is_whole()) {
      v = LineEnds<true>::load_once(at);
    } else if (has_words()) {
      if (bytes > 0) v.x = word(0);
      if (bytes > 4) v.y = word(1);
      if (bytes > 8) v.z = word(2);
      if (bytes > 12) v.w = word(3);
    } else {
      v = load_bytes(at, bytes);
    }
    __syncwarp();
    return v;
  }

  __device__ void store(uint4 v) const {
    if (is_whole()) {
      *reinterpret_cast<uint4*>(at) = v;
    } else if (has_words()) {
      uint32_t words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
      for (int i = 0; i < 4; i++)
        if (i * 4 < bytes) reinterpret_cast<volatile uint32_t*>(at)[i] = words[i];
    } else {
      store_bytes(at, bytes, v);
    }
    __syncwarp();
  }

 private:
  __device__ bool has_words() const {
    return ((reinterpret_cast<uint64_t>(at) | bytes) & 3) == 0;
  }

  __device__ __noinline__ static uint4 load_bytes(const char* at, uint32_t bytes) {
    uint32_t words[4] = {};
#pragma unroll
    for (int i = 0; i < 16; i++)
      if (i < bytes)
        words[i / 4] |= uint32_t(reinterpret_cast<const volatile uint8_t*>(at)[i]) << i % 4 * 8;
    return {words[0], words[1], words[2], words[3]};
  }

  __device__ __noinline__ static void store_bytes(char* at, uint32_t bytes, uint4 v) {
    uint32_t words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (int i = 0; i < 16; i++)
      if (i < bytes) reinterpret_cast<volatile char*>(at)[i] = char(words[i / 4] >> i % 4 * 8);
  }
};

// Stores a thread's packets of a slot.
__device__ inline void store_packets(char* at, uint32_t number, uint32_t digest, uint4 v) {
  uint32_t check = number + digest;
  store_halves(reinterpret_cast<Packet*>(at), {v.x, number, v.y, check});
  store_halves(reinterpret_cast<Packet*>(at + 512), {v.z, number, v.w, check});
}

// Puts the next slot, for which the peer has room.
__device__ inline void put_packets(LineEnds<true>& ends, uint4 v) {
  uint32_t number = uint32_t(ends.put) + 1;
  store_packets(ends.slot(ends.outgoing, number), number, ends.digest, v);
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
  HeaderInstead instead(at, number);
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
