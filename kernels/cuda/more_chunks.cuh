// Programs of more than two ranks over chunks.
#pragma once

#include "more.cuh"

namespace oxccl {

// By warp and peer, the chunks that were put before those of this call.
__device__ inline uint64_t (&chunks_before())[LINE_WARPS][MAX_RANKS] {
  __shared__ uint64_t all[LINE_WARPS][MAX_RANKS];
  return all;
}

// A warp's ends of a channel of chunks in one direction, to or from several peers: the thread `p`
// has those with the rank `p`, and threads without a peer have what that of the first one has.
template <bool PUTS>
struct ChunkEnds {
  const Rank& r;
  uint32_t peers;  // a bit for each
  int channel, headers_on;  // the channel, and that of lines on which headers would lie
  int thread, peer;
  bool dead;              // whether the communicator has failed
  uint64_t count, known;  // as in `ChunkEnd`
  char* ring;

  __device__ ChunkEnds(const Rank& r, int channel, uint32_t peers, int headers_on)
      : r(r),
        peers(peers),
        channel(channel),
        headers_on(headers_on),
        thread(threadIdx.x & 31) {
    peer = holds() ? thread : __ffs(peers) - 1;
    int at = PUTS ? peer : r.rank, from = PUTS ? r.rank : peer;
    const volatile LineCounters* own = chunk_counters(r, channel, peer);
    count = PUTS ? own->put : own->taken;
    dead = __shfl_sync(~0u, faulty(r) != FAULT_NONE, 0);
    if (PUTS && holds()) chunks_before()[threadIdx.x / 32][peer] = count;
    ring = chunk_ring(r, at, from, channel);
    known = load_acquire(word());
    __syncwarp();
  }

  // Tells what the peer has taken, or put.
  __device__ const uint64_t* word() const {
    return PUTS ? const_cast<uint64_t*>(chunk_credit(r, r.rank, channel, peer))
                : &chunk_words(r, r.rank, channel, peer)->arrived;
  }

  __device__ bool holds() const { return peers >> thread & 1; }

  __device__ void leave() const {
    LineCounters* own = chunk_counters(r, channel, peer);
    if (holds()) (PUTS ? own->put : own->taken) = count;
    __syncwarp();
  }

  // Waits until all peers have room for their next chunks, or have put them; false when they never
  // will.
  __device__ bool await() {
    uint64_t target = PUTS ? count + 1 - r.chunk_slots : count + 1;
#pragma unroll 1
    for (int i = 0; i < 64; i++) {
      bool all = __all_sync(~0u, reached(known, target));
      // What one thread has acquired, all may read.
      __syncwarp();
      if (all) return true;
      known = load_acquire(word());
    }
    return settle(wait(*this, word(), target, false), target);
  }

  // Takes in what the words of the peers say.
  __device__ bool settle(uint64_t seen, uint64_t target) {
    known = seen;
    dead = !__all_sync(~0u, reached(known, target));
    __syncwarp();
    return !dead;
  }

  // Waits until words have reached the targets of their threads, or are equal to them, one peer
  // after the other; returns them. Some have not when they never will.
  __device__ __noinline__ static uint64_t wait(ChunkEnds ends, const uint64_t* at, uint64_t target,
                                               bool exactly) {
    for (;;) {
      uint64_t seen = load_acquire(at);
      auto is_there = [&](uint64_t word, uint64_t wanted) {
        return exactly ? word == wanted : reached(word, wanted);
      };
      uint32_t late = __ballot_sync(~0u, !is_there(seen, target));
      if (late == 0) return seen;
      int of = __ffs(late) - 1, whom = __shfl_sync(~0u, ends.peer, of);
      uint64_t wanted = __shfl_sync(~0u, target, of);
      uint64_t place = __shfl_sync(~0u, reinterpret_cast<uint64_t>(at), of);
      HeaderInstead beside = header_beside(ends.r, whom, ends.headers_on);
      const uint64_t* one = reinterpret_cast<const uint64_t*>(place);
      uint64_t last = ChunkEnd<PUTS>::wait(ends.r, one, whom, wanted, exactly);
      if (!is_there(last, wanted)) return seen;
    }
  }

  // Opens what this call puts or takes, from the next chunks on; false when the peers never will.
  __device__ bool open(uint32_t digest) {
    if (dead || (PUTS && !await())) return false;
    int at = PUTS ? peer : r.rank, from = PUTS ? r.rank : peer;
    uint64_t* opened = opening_word(r, at, from, channel, count);
    uint64_t value = opening_value(digest, count);
    if (PUTS) {
      if (holds()) *const_cast<volatile uint64_t*>(opened) = value;
    } else {
      dead = !__all_sync(~0u, wait(*this, opened, value, true) == value);
    }
    return !dead;
  }

  // The slot of the next chunk to or from a peer.
  __device__ char* slot(int with) const {
    uint64_t own = reinterpret_cast<uint64_t>(ring) + (count & (r.chunk_slots - 1)) * CHUNK_BYTES;
    return reinterpret_cast<char*>(__shfl_sync(~0u, own, with));
  }

  // Stores rows at a place in the next slot to a peer.
  template <int PAIRS>
  __device__ void put(int to, uint32_t at, Rows<PAIRS>& rows) const {
    char* base = slot(to) + at;
    rows.each_row([&](uint4& row, uint32_t at) { store_volatile(base + at, row); });
  }

  template <int PAIRS>
  __device__ void fetch(int from, uint32_t at, Pair (&v)[PAIRS]) const {
    const char* base = slot(from) + at + thread * 16;
#pragma unroll
    for (int u = 0; u < PAIRS; u++)
      v[u] = {load_volatile(base + u * 1024), load_volatile(base + u * 1024 + 512)};
  }

  // Counts the chunks that were put, for the warp that tells the peers.
  __device__ void advance() {
    count += 1;
    __syncwarp();
    uint32_t& told = progress().count[threadIdx.x / 32];
    if (thread == 0) shared_release(told, told + 1);
  }

  // Gives the chunks back, which were stored before.
  __device__ void give_back() {
    __syncwarp();
    count += 1;
    if (holds()) *chunk_credit(r, peer, channel, r.rank) = count;
  }
};

// A warp's part of a program in chunks.
template <typename E, bool FOLDS>
struct ChunkRun {
  const LineProgram& p;
  uint64_t scale, first, step;
  int channel;

  __device__ const Rank& rank() const { return p.call.rank; }

  // Puts a chunk to each peer; what is the same for several is loaded once.
  __device__ void put_unit(const ChunkEnds<true>& ends, uint64_t at) const {
    Chunk chunk;
    uint64_t loaded = NO_SLICE;
    Peers peers(rank(), p.puts);
#pragma unroll 1
    for (int to = peers.next(); to >= 0; to = peers.next()) {
      const LinePeer& with = p.peers[to];
      if (at >= with.put_bytes) continue;
      if (with.put_at != loaded) {
        loaded = with.put_at;
        chunk.load(input_of(p, loaded, with.put_bytes), at);
        multiply(chunk.v);
      }
      ends.put(to, 0, chunk);
    }
  }

  __device__ void put() const {
    ChunkEnds<true> ends(rank(), channel, p.puts, channel);
    if (ends.open(p.digest)) {
#pragma unroll 1
      for (uint64_t unit = first; unit < p.units && ends.await(); unit += step) {
        put_unit(ends, unit * CHUNK_BYTES);
        ends.advance();
      }
    }
    ends.leave();
  }

  template <int N>
  __device__ void multiply(Pair (&v)[N]) const {
    if constexpr (FOLDS) {
      if (!p.call.scaled) return;
#pragma unroll
      for (int i = 0; i < N; i++) v[i] = scale_pair<E>(v[i], scale);
    }
  }

  __device__ void store_taken(int from, uint64_t at, Chunk& chunk) const {
    const LinePeer& with = p.peers[from];
    if (at < with.take_bytes) chunk.store(output_of(p, with.take_at, with.take_bytes), at);
  }

  // Takes from some peers.
  __device__ void take(uint32_t from, int reader) const {
    ChunkEnds<false> ends(rank(), channel + p.second, from, channel);
    uint32_t count = 0;
    if (ends.open(p.digest)) {
#pragma unroll 1
      for (uint64_t unit = first; unit < p.units && ends.await(); unit += step) {
        uint64_t at = unit * CHUNK_BYTES;
        await_reader(reader, ++count);
        Peers peers(rank(), from);
#pragma unroll 1
        for (int one = peers.next(); one >= 0; one = peers.next()) {
          int other = peers.next();
          Chunk first, second;
          ends.fetch(one, 0, first.v);
          if (other >= 0) ends.fetch(other, 0, second.v);
          store_taken(one, at, first);
          if (other >= 0) store_taken(other, at, second);
        }
        ends.give_back();
      }
    }
    ends.leave();
  }

  // Waits until the warp that puts what is stored over has read so many chunks.
  __device__ void await_reader(int reader, uint32_t count) const {
    Flow flow;
    flow.reader = p.overlaps ? reader : -1;
    flow.await_read(0, count);
  }

  // What a warp folds at once, or passes on.
  using Part = Rows<FOLDS ? 1 : CHUNK_PAIRS>;

  // Folds, or passes on, a part of a chunk.
  __device__ void middle_part(const ChunkEnds<false>& in, const ChunkEnds<true>& out, uint64_t at,
                              uint32_t part) const {
    Part result;
    if constexpr (FOLDS) {
      auto load = [&](int begin, Pair (&v)[RANKS]) {
#pragma unroll
        for (int i = 0; i < RANKS; i++) {
          Part rows;
          if (begin + i == int(rank().rank)) {
            rows.load(input_of(p, p.own_at, p.middle_bytes), at + part);
            multiply(rows.v);
          } else if (begin + i < int(rank().nranks)) {
            in.fetch(begin + i, part, rows.v);
          }
          v[i] = rows.v[0];
        }
        return true;
      };
      fold_all<E>(p, load, result.v[0]);
    } else {
      in.fetch(__ffs(p.middle_from) - 1, part, result.v);
    }
    Peers peers(rank(), p.middle_to);
#pragma unroll 1
    for (int to = peers.next(); to >= 0; to = peers.next()) out.put(to, part, result);
    if (p.result_at != NO_SLICE) result.store(result_of(p), at + part);
  }

  // Returns whether the next chunk is folded by `fold_whole`.
  __device__ bool is_whole(uint64_t at) const {
    bool keeps = p.result_at != NO_SLICE;
    return FOLDS && rank().nranks <= RANKS && !p.call.scaled &&
           input_of(p, p.own_at, p.middle_bytes).has(at, CHUNK_BYTES) &&
           (!keeps || result_of(p).has(at, CHUNK_BYTES));
  }

  // Folds a chunk that is whole and aligned everywhere. While a part of it is put, the next one is
  // under way.
  __device__ void fold_whole(const ChunkEnds<false>& in, const ChunkEnds<true>& out,
                             uint64_t at) const {
    int n = rank().nranks, me = rank().rank, thread = in.thread;
    const char* from[RANKS];
    char* to[RANKS];
#pragma unroll
    for (int i = 0; i < RANKS; i++) {
      int ahead = me + 1 + i < n ? me + 1 + i : me + 1 + i - n;
      const char* slot = in.slot(i);
      char* outgoing = out.slot(ahead);
      from[i] = i == me ? reinterpret_cast<const char*>(p.call.input) + p.own_at + at : slot;
      if (i >= n || !(p.middle_to >> ahead & 1)) outgoing = nullptr;
      if (i == n - 1 && p.result_at != NO_SLICE) outgoing = result_of(p).at + at;
      to[i] = outgoing;
    }
    Pair v[RANKS];
    auto load = [&](uint32_t part) {
#pragma unroll
      for (int i = 0; i < RANKS; i++) {
        const char* place = from[i] + thread * 16 + part;
        if (i < n) v[i] = {load_volatile(place), load_volatile(place + 512)};
      }
    };
    load(0);
#pragma unroll 1
    for (uint32_t part = 0; part < CHUNK_BYTES; part += Part::BYTES) {
      Fold<E, Pair> fold{p};
      fold.combine(0, v);
      Pair result = fold.result();
      if (part + Part::BYTES < CHUNK_BYTES) load(part + Part::BYTES);
#pragma unroll
      for (int i = 0; i < RANKS; i++) {
        if (!to[i]) continue;
        store_volatile(to[i] + thread * 16 + part, result.first);
        store_volatile(to[i] + thread * 16 + part + 512, result.second);
      }
    }
  }

  __device__ void middle(int reader) const {
    ChunkEnds<false> in(rank(), channel, p.middle_from, channel);
    // Of a channel to nobody nothing is used.
    uint32_t to = p.middle_to ? p.middle_to : p.middle_from;
    ChunkEnds<true> out(rank(), channel + p.second, to, channel);
    uint32_t count = 0;
    if (in.open(p.digest) && (p.middle_to == 0 || out.open(p.digest))) {
#pragma unroll 1
      for (uint64_t unit = first; unit < p.units && in.await(); unit += step) {
        if (p.middle_to != 0 && !out.await()) break;
        await_reader(reader, ++count);
        uint64_t at = unit * CHUNK_BYTES;
        if (is_whole(at)) {
          fold_whole(in, out, at);
        } else {
#pragma unroll 1
          for (uint32_t part = 0; part < CHUNK_BYTES; part += Part::BYTES)
            middle_part(in, out, at, part);
        }
        in.give_back();
        if (p.middle_to != 0) out.advance();
      }
    }
    in.leave();
    if (p.middle_to != 0) out.leave();
  }

  // Where a rank only takes, the warps of a channel share its peers; returns those of one.
  __device__ uint32_t share_of(int role) const {
    uint32_t share = 0, index = 0;
    for (uint32_t left = p.takes; left != 0; left &= left - 1, index++)
      if (index % p.roles == uint32_t(role)) share |= left & -left;
    return share;
  }

  // `reader` is the warp that puts on this channel.
  __device__ void run(int role, int reader) const {
    begin_carrying(p.call);
    if (p.puts == 0 && p.middle_from == 0) {
      uint32_t from = share_of(role);
      if (from != 0) take(from, reader);
    } else if (role == PUT) {
      if (p.puts != 0) put();
    } else if (role == MIDDLE && p.middle_from != 0) {
      middle(reader);
    } else if (p.takes != 0 && role + 1 == int(p.roles)) {
      take(p.takes, reader);
    }
    end_progress(threadIdx.x / 32);
  }
};

// The channel of a block of chunks that has a warp, and the warp's role.
struct ChunkPlace {
  uint32_t index;  // of the channel in its block
  int role, channel;
  bool is_there;  // there are warps for no whole channel

  __device__ ChunkPlace(const LineProgram& p, uint32_t warp) {
    uint32_t roles = p.roles, channels = LINE_WARPS / roles;
    index = warp / roles;
    role = warp % roles;
    channel = blockIdx.x * channels + index;
    is_there = index < channels;
  }

  // Returns what is told for the warp, if its channel has units of a program.
  __device__ Telling telling(const LineProgram& p, bool has_units) const {
    uint32_t peers = role == PUT ? p.puts : role == MIDDLE ? p.middle_to : 0;
    bool works = is_there && has_units;
    return {works ? peers : 0, int(role == PUT ? channel : channel + p.second)};
  }
};

// Begins the progress of a block of chunks; what is told of it is the thread's.
__device__ inline void begin_chunks(const Telling& telling) {
  int thread = threadIdx.x & 31;
  if (is_watcher() && thread < LINE_WARPS) begin_progress(thread, telling.peers != 0);
  __syncthreads();
}

__device__ inline void tell_chunks(const Rank& r, const Telling& telling) {
  tell_arrivals(r, telling, 0, [](int warp, int peer) { return chunks_before()[warp][peer]; });
}

template <typename E, bool FOLDS>
__device__ inline void run_more_chunks(const LineProgram& p) {
  if (blockIdx.x >= p.blocks) {
    copy_own(p);
    return;
  }
  ChunkPlace place(p, threadIdx.x & 31);
  Telling telling = place.telling(p, LinePlace::number(p, place.index) < p.units);
  begin_chunks(telling);
  auto carry = [&](int role, int channel, uint64_t first, uint64_t step) {
    uint64_t scale = FOLDS && p.call.scaled ? scale_of(p.call) : 0;
    ChunkRun<E, FOLDS>{p, scale, first, step, channel}.run(role, threadIdx.x / 32 - role);
  };
  run_lines(p, carry, [&] { tell_chunks(p.call.rank, telling); });
  if (gridDim.x == p.blocks) copy_own(p);
}

// The same for a batch.
template <typename E, bool FOLDS>
__device__ inline void run_batch_of_chunks(const LineBatch& batch) {
  const LineProgram& head = batch.programs[0];
  ChunkPlace place(head, threadIdx.x & 31);
  BatchPart part(batch, LinePlace::number(head, place.index));
  Telling telling = place.telling(part.program ? *part.program : head, part.has_units());
  begin_chunks(telling);
  auto carry = [](const LineProgram& p, int role, int, uint64_t first, uint64_t step) {
    uint64_t scale = FOLDS && p.call.scaled ? scale_of(p.call) : 0;
    int warp = threadIdx.x / 32, channel = ChunkPlace(p, warp).channel;
    ChunkRun<E, FOLDS>{p, scale, first, step, channel}.run(role, warp - role);
  };
  run_batch(batch, carry, copy_part, [&] { tell_chunks(head.call.rank, telling); });
}

}  // namespace oxccl

// For each element type kernels that reduce; what only moves, runs as bytes.
#define OXCCL_MORE_CHUNKS(NUMBER, ...)                                                          \
  OXCCL_KERNEL(oxccl_more_chunks_##NUMBER, (BLOCK_THREADS, 1), oxccl::LineProgram,              \
               using namespace oxccl; run_more_chunks<__VA_ARGS__, true>(argument))             \
  OXCCL_KERNEL(oxccl_batch_more_chunks_##NUMBER, (BLOCK_THREADS, 1), oxccl::LineBatch,          \
               using namespace oxccl; run_batch_of_chunks<__VA_ARGS__, true>(argument))
OXCCL_ELEMENTS(OXCCL_MORE_CHUNKS)
OXCCL_KERNEL(oxccl_more_chunks, (BLOCK_THREADS, 1), oxccl::LineProgram, using namespace oxccl;
             run_more_chunks<Integer<uint8_t>, false>(argument))
OXCCL_KERNEL(oxccl_batch_more_chunks, (BLOCK_THREADS, 1), oxccl::LineBatch, using namespace oxccl;
             run_batch_of_chunks<Integer<uint8_t>, false>(argument))
