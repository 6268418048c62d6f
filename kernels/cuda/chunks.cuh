// Chunks: what carries large slices and messages between two GPUs. A chunk is 4 KiB of data without
// numbers, so that the link carries nothing else. One warp of a block tells the receiver how many
// chunks have arrived on each channel, behind a fence: so the warps that put wait for no fence.
//
// A channel of chunks has counters and a word of credit as a channel of lines has. All that chunks
// need is memory of its own, which is made when an operation first needs it. What a call puts is
// opened by a word with its digest and the number of its first chunk: what a peer puts for another
// call is never taken.
#pragma once

#include "small.cuh"

namespace oxccl {

// A thread's pairs of a chunk: 16 bytes of each row of 512.
constexpr int CHUNK_PAIRS = CHUNK_BYTES / 1024;
// Warps of a block that put.
constexpr int PUTTERS = LINE_WARPS / 2;

static_assert(MESSAGE_WARPS == PUTTERS, "a place for each warp of a block of messages");

// What the warps of a block that put have read and put so far, for its other warps.
struct Progress {
  uint32_t count[LINE_WARPS];  // slots or chunks
  uint32_t over[LINE_WARPS];   // not 0 if the warp puts nothing more
  // The chunks that were put on the channel of a warp with one peer before the first that is
  // counted.
  uint64_t before[LINE_WARPS];
};

// A word of shared memory, between warps of a block.
__device__ inline uint32_t shared_acquire(const uint32_t& word) {
  uint32_t value, at = uint32_t(__cvta_generic_to_shared(&word));
  asm volatile("ld.acquire.cta.shared.u32 %0, [%1];" : "=r"(value) : "r"(at) : "memory");
  return value;
}

__device__ inline void shared_release(uint32_t& word, uint32_t value) {
  uint32_t at = uint32_t(__cvta_generic_to_shared(&word));
  asm volatile("st.release.cta.shared.u32 [%0], %1;" ::"r"(at), "r"(value) : "memory");
}

__device__ inline Progress& progress() {
  __shared__ Progress all;
  return all;
}

// To be called by some threads of a block before all of its threads meet: those of the warps that
// put.
__device__ inline void begin_progress(int warp, bool puts) {
  progress().count[warp] = 0;
  progress().over[warp] = !puts;
}

// Begins the progress of a pair of warps alone: both call this, and the one that takes waits for
// the one that puts.
template <bool PUTS>
__device__ inline void begin_pair(int pair) {
  if constexpr (PUTS) {
    if ((threadIdx.x & 31) == 0) begin_progress(pair, true);
    __syncwarp();
    asm volatile("bar.arrive %0, 64;" ::"r"(2 + pair) : "memory");
  } else {
    __syncwarp();
    asm volatile("bar.sync %0, 64;" ::"r"(2 + pair) : "memory");
  }
}

// To be called by a warp that puts nothing more, whatever the reason.
__device__ inline void end_progress(int warp) {
  __syncwarp();
  if ((threadIdx.x & 31) == 0) shared_release(progress().over[warp], 1);
}

__device__ inline ChunkWords* chunk_words(const Rank& r, int at, int channel, int from) {
  return reinterpret_cast<ChunkWords*>(r.chunks[at]) + channel * r.nranks + from;
}

// Of the counters of chunks only `put` and `taken` are used.
__device__ inline LineCounters* chunk_counters(const Rank& r, int channel, int peer) {
  return reinterpret_cast<LineCounters*>(r.chunks[r.rank] + r.chunk_counters_at) +
         channel * r.nranks + peer;
}

// The word in which a receiver counts the chunks that it has taken, in the sender's memory.
__device__ inline volatile uint64_t* chunk_credit(const Rank& r, int sender, int channel,
                                                  int receiver) {
  return reinterpret_cast<volatile uint64_t*>(r.chunks[sender] + r.chunk_credits_at) +
         channel * r.nranks + receiver;
}

// The word that opens the chunks from the next one on, after so many, on a channel from a rank to
// another.
__device__ inline uint64_t* opening_word(const Rank& r, int at, int from, int channel,
                                         uint64_t count) {
  return &chunk_words(r, at, channel, from)->opened[count % CHUNK_SLOTS];
}

// The value of that word, for a call with this digest.
__device__ inline uint64_t opening_value(uint32_t digest, uint64_t count) {
  return uint64_t(digest) << 32 | uint32_t(count + 1);
}

// The slots of a channel of chunks from a rank to another.
__device__ inline char* chunk_ring(const Rank& r, int at, int from, int channel) {
  uint64_t channels = uint64_t(from < at ? from : from - 1) * CHUNK_CHANNELS + channel;
  return reinterpret_cast<char*>(r.chunks[at] + r.chunk_slots_at) +
         channels * r.chunk_slots * CHUNK_BYTES;
}

// A thread's data of a chunk, or of a part of it: PAIRS KiB.
template <int PAIRS>
struct Rows {
  static constexpr uint32_t BYTES = PAIRS * 1024;
  Pair v[PAIRS];

  // Calls a function for each row with the thread's 16 bytes and their offset from the first one.
  template <typename Row>
  __device__ void each_row(Row row) {
#pragma unroll
    for (int i = 0; i < PAIRS; i++) {
      uint32_t at = i * 1024 + (threadIdx.x & 31) * 16;
      row(v[i].first, at);
      row(v[i].second, at + 512);
    }
  }

  // The bytes of a span from there on.
  __device__ static uint64_t left(const Span& span, uint64_t from) {
    return from < span.bytes ? span.bytes - from : 0;
  }

  // Loads what lies at `from` in a span.
  __device__ void load(const Span& span, uint64_t from) {
    const char* base = span.at + from;
    if (span.has(from, BYTES)) {
      each_row([&](uint4& row, uint32_t at) { row = LineEnds<true>::load_once(base + at); });
    } else {
      *this = load_part(base, left(span, from));
    }
  }

  __device__ void store(const Span& span, uint64_t from) {
    char* base = span.at + from;
    if (span.has(from, BYTES)) {
      each_row([&](uint4& row, uint32_t at) { *reinterpret_cast<uint4*>(base + at) = row; });
    } else {
      store_part(base, left(span, from), *this);
    }
  }

  // Loads memory that is aligned to T alone; all loads are under way at once.
  template <typename T>
  __device__ void load_parts(const char* base) {
    constexpr int N = 16 / sizeof(T);
    each_row([&](uint4& row, uint32_t at) {
      T parts[N];
#pragma unroll
      for (int i = 0; i < N; i++) parts[i] = reinterpret_cast<const volatile T*>(base + at)[i];
      memcpy(&row, parts, 16);
    });
  }

  template <typename T>
  __device__ void store_parts(char* base) {
    constexpr int N = 16 / sizeof(T);
    each_row([&](uint4& row, uint32_t at) {
      T parts[N];
      memcpy(parts, &row, 16);
#pragma unroll
      for (int i = 0; i < N; i++) reinterpret_cast<volatile T*>(base + at)[i] = parts[i];
    });
  }

  // Loads what is not whole, or not aligned to 16 bytes.
  __device__ __noinline__ static Rows load_part(const char* base, uint64_t bytes) {
    Rows rows;
    uint64_t place = reinterpret_cast<uint64_t>(base);
    if (bytes < BYTES) {
      rows.each_row([&](uint4& row, uint32_t at) {
        row = load_line(base + at, at < bytes ? bytes - at : 0, (place & 15) == 0);
      });
    } else if ((place & 3) == 0) {
      rows.load_parts<uint32_t>(base);
    } else if ((place & 1) == 0) {
      rows.load_parts<uint16_t>(base);
    } else {
      rows.load_parts<uint8_t>(base);
    }
    return rows;
  }

  __device__ __noinline__ static void store_part(char* base, uint64_t bytes, Rows rows) {
    uint64_t place = reinterpret_cast<uint64_t>(base);
    if (bytes < BYTES) {
      rows.each_row([&](uint4& row, uint32_t at) {
        store_line(base + at, at < bytes ? bytes - at : 0, (place & 15) == 0, row);
      });
    } else if ((place & 3) == 0) {
      rows.store_parts<uint32_t>(base);
    } else if ((place & 1) == 0) {
      rows.store_parts<uint16_t>(base);
    } else {
      rows.store_parts<uint8_t>(base);
    }
  }
};

using Chunk = Rows<CHUNK_PAIRS>;

// A warp's end of a channel of chunks in one direction.
template <bool PUTS>
struct ChunkEnd {
  const Rank& r;
  int peer, channel, thread;
  bool dead;       // whether the communicator has failed
  uint64_t count;  // chunks that were put, or taken
  uint64_t known;  // chunks that the peer has taken, or put, as far as this is known
  char* ring;      // the slots at the peer, or here
  const uint64_t* word;  // which tells what is known
  volatile uint64_t* credit;  // the word of this rank at the peer

  // `warp` is the number of the warp in the block's progress.
  __device__ ChunkEnd(const Rank& r, int peer, int channel, int warp)
      : r(r), peer(peer), channel(channel), thread(threadIdx.x & 31) {
    int at = PUTS ? peer : r.rank, from = PUTS ? r.rank : peer;
    const volatile LineCounters* own = chunk_counters(r, channel, peer);
    count = PUTS ? own->put : own->taken;
    dead = __shfl_sync(~0u, faulty(r) != FAULT_NONE, 0);
    if (PUTS && thread == 0) progress().before[warp] = count - progress().count[warp];
    ring = chunk_ring(r, at, from, channel);
    word = PUTS ? const_cast<uint64_t*>(chunk_credit(r, r.rank, channel, peer))
                : &chunk_words(r, r.rank, channel, peer)->arrived;
    credit = chunk_credit(r, peer, channel, r.rank);
    look();
  }

  // Takes in what the word says now, for all threads of the warp.
  __device__ void look() {
    known = __shfl_sync(~0u, load_acquire(word), 0);
    __syncwarp();
  }

  // Keeps the counter for the next kernel.
  __device__ void leave() const {
    LineCounters* own = chunk_counters(r, channel, peer);
    if (thread == 0) (PUTS ? own->put : own->taken) = count;
    __syncwarp();
  }

  // Waits until the peer has room for the next chunk, or has put it; false when it never will.
  __device__ bool await() {
    uint64_t target = PUTS ? count + 1 - r.chunk_slots : count + 1;
    if (reached(known, target)) return true;
#pragma unroll 1
    for (int i = 0; i < 64; i++) {
      look();
      if (reached(known, target)) return true;
    }
    known = wait(r, word, peer, target, false);
    dead |= !reached(known, target);
    return !dead;
  }

  __device__ __noinline__ static uint64_t wait(const Rank& r, const uint64_t* word, int peer,
                                               uint64_t target, bool exactly) {
    WarpWait wait;
    for (;;) {
      uint64_t seen = __shfl_sync(~0u, load_acquire(word), 0);
      if (exactly ? seen == target : reached(seen, target)) return seen;
      if (wait.over(r, peer)) return seen;
    }
  }

  // Opens what this call puts or takes, from the next chunk on; false when the peer never will.
  __device__ bool open(uint32_t digest) {
    if (dead || (PUTS && !await())) return false;
    int at = PUTS ? peer : r.rank, from = PUTS ? r.rank : peer;
    uint64_t* opened = opening_word(r, at, from, channel, count);
    uint64_t value = opening_value(digest, count);
    if (PUTS) {
      if (thread == 0) *const_cast<volatile uint64_t*>(opened) = value;
    } else {
      HeaderInstead beside = header_beside(r, peer, channel);
      dead = wait(r, opened, peer, value, true) != value;
    }
    return !dead;
  }

  // The slot of the next chunk.
  __device__ char* slot() const { return ring + (count & (r.chunk_slots - 1)) * CHUNK_BYTES; }

  // Puts the next chunk, for which there is room.
  __device__ void put(Chunk& chunk, int warp) {
    char* to = slot();
    chunk.each_row([&](uint4& row, uint32_t at) { store_volatile(to + at, row); });
    count += 1;
    __syncwarp();
    if (thread == 0) shared_release(progress().count[warp], progress().count[warp] + 1);
  }

  // Fetches the next chunk, which has arrived.
  __device__ void fetch(Chunk& chunk) const {
    const char* from = slot();
    chunk.each_row([&](uint4& row, uint32_t at) { row = load_volatile(from + at); });
  }

  // Gives the next chunk back, which was stored before.
  __device__ void give_back() {
    __syncwarp();
    count += 1;
    if (thread == 0) *credit = count;
  }
};

// A warp that puts, for which the last warp of a block tells the peers what has arrived: thread `w`
// of that one has the warp whose progress is the `w`-th.
struct Telling {
  uint32_t peers;  // a bit for each rank to which that warp puts
  int channel;     // on which it does
};

// Tells the peers what the other warps have put, those of the block from `first` on, until they put
// nothing more. `before` returns the chunks that were put on a warp's channel to a peer before the
// first that is counted.
template <typename Before>
__device__ inline void tell_arrivals(const Rank& r, const Telling& telling, int first,
                                     Before before) {
  int warp = first + (threadIdx.x & 31);
  bool tells = telling.peers != 0;
  uint32_t told = 0;
  for (;;) {
    bool over = !tells || shared_acquire(progress().over[warp]) != 0;
    uint32_t count = tells ? shared_acquire(progress().count[warp]) : 0;
    bool more = count != told;
    if (!__any_sync(~0u, more)) {
      if (__all_sync(~0u, over)) return;
      __nanosleep(20);
      continue;
    }
    fence();
    for (uint32_t left = more ? telling.peers : 0; left != 0; left &= left - 1) {
      int peer = __ffs(left) - 1;
      volatile ChunkWords* words = chunk_words(r, peer, telling.channel, r.rank);
      words->arrived = before(warp, peer) + count;
    }
    told = count;
  }
}

// The same for warps that put to one peer each.
__device__ inline void tell_arrivals(const Rank& r, const Telling& telling, int first) {
  tell_arrivals(r, telling, first, [](int warp, int) { return progress().before[warp]; });
}

}  // namespace oxccl
