// The flow of packets, lines or chunks between this rank and one peer: messages, programs of two
// ranks, and edges of those of more. A warp puts or takes: a unit then has all of its registers.
#pragma once

#include "batch.cuh"

namespace oxccl {

// What a warp carries in one direction, in units. Spans of nothing are null.
struct Flow {
  Span put;         // what the peer gets
  Span to;          // where what comes is stored, folded or as it is
  Span own;         // what is folded with what comes
  uint32_t slots;   // of lines in a unit; 0 for chunks, or SLOT_OF_PACKETS
  uint32_t slot;    // the slot of the unit that is carried next
  uint64_t at;      // the place of that unit
  uint64_t stride;  // bytes from a unit of the channel to its next one
  uint64_t end;     // where all spans have ended
  // The first of the warps of the block, as many as `readers`, that put what is stored over;
  // negative if none does.
  int reader = -1;
  int readers = 1;

  // Bytes of a unit; 0 for chunks.
  __device__ uint64_t unit_bytes() const {
    return slots == SLOT_OF_PACKETS ? SLOT_DATA_BYTES : slots * UNIT_DATA_BYTES;
  }

  // Begins with a unit of the channel; the next ones follow in steps.
  __device__ void begin(uint64_t first, uint64_t step, uint64_t units) {
    uint64_t unit = unit_bytes();
    slot = 0;
    at = first * unit;
    stride = kept(step * unit);
    end = kept(units * unit);
  }

  __device__ bool is_aligned() const {
    auto bits = [](const Span& span) { return reinterpret_cast<uint64_t>(span.at); };
    return aligned(bits(put) | bits(to) | bits(own));
  }

  // Returns where the units end that are whole in all spans.
  __device__ uint64_t whole_end() const {
    uint64_t least = end;
    const Span* all[] = {&put, &to, &own};
#pragma unroll
    for (int i = 0; i < 3; i++)
      if (all[i]->at && all[i]->bytes < least) least = all[i]->bytes;
    uint32_t unit = slots * UNIT_DATA_BYTES;
    return least < unit ? 0 : least - unit + 1;
  }

  __device__ uint64_t place() const { return at + slot * UNIT_DATA_BYTES; }

  __device__ void step() {
    if (++slot < slots) return;
    slot = 0;
    at += stride;
  }

  // Tells that this warp has read so many slots more.
  __device__ void tell_read(uint32_t slots, uint32_t& count) const {
    count += slots;
    if (reader < 0) return;
    __syncwarp();
    if ((threadIdx.x & 31) == 0) shared_release(progress().count[reader], count);
  }

  // Waits until all readers have read so many slots or chunks more.
  __device__ void await_read(uint32_t slots, uint32_t& count) const {
    count += slots;
    if (reader < 0) return;
    int thread = threadIdx.x & 31, warp = reader + (thread < readers ? thread : 0);
    while (!__all_sync(~0u, int32_t(shared_acquire(progress().count[warp]) - count) >= 0 ||
                                shared_acquire(progress().over[warp]) != 0)) {
    }
    __syncwarp();
  }
};

// What comes is stored as it is.
struct NoFold {
  static constexpr bool FOLDS = false;
  __device__ void pack(const LineEnds<true>& ends, Pair& v) const { ends.pack(v); }
  __device__ bool multiplies() const { return false; }
  template <int U>
  __device__ void multiply(Pair (&)[U]) const {}
  __device__ void multiply(uint4&) const {}
};

// Half of a sum, as `divide` rounds it.
template <typename E>
__device__ inline typename E::Lane halved(typename E::Lane lane) {
  if constexpr (std::is_same<typename E::Lane, float>::value) {
    return __fmul_rn(lane, 0.5f);
  } else if constexpr (std::is_same<typename E::Lane, double>::value) {
    return __dmul_rn(lane, 0.5);
  } else {
    return E::divide(lane, 2);
  }
}

// Reductions of this rank's operand and the one that comes, of two ranks or in a chain of more.
// Folds of two operands do not depend on their order.
template <typename E, bool OF_TWO = true>
struct FoldTwo {
  static constexpr bool FOLDS = true;
  const LineProgram& p;
  uint64_t scale;

  __device__ void pack(const LineEnds<true>& ends, Pair& v) const {
    pack_operand<E, true>(ends, p, scale, v);
  }

  // Folds this rank's operands into what has come.
  template <int U>
  __device__ void fold(Pair (&come)[U], const Pair (&own)[U]) const {
    switch (p.call.op) {
      case PROD: return fold_all<PROD>(come, own);
      case MAX: return fold_all<MAX>(come, own);
      case MIN: return fold_all<MIN>(come, own);
      default: return fold_all<SUM>(come, own);
    }
  }

  __device__ bool multiplies() const { return p.call.scaled; }

  // Multiplies operands by the user's scalar where asked.
  template <int U>
  __device__ void multiply(Pair (&v)[U]) const {
    if (!p.call.scaled) return;
#pragma unroll
    for (int u = 0; u < U; u++) v[u] = scale_pair<E>(v[u], scale);
  }

  __device__ void multiply(uint4& v) const {
    if (p.call.scaled) v = scale_pair<E>({v, v}, scale).first;
  }

  __device__ uint4 fold_sixteen(uint4 a, uint4 b) const {
    Pair come[1] = {{a, {}}}, own[1] = {{b, {}}};
    fold(come, own);
    return come[0].first;
  }

 private:
  template <int OP, int U>
  __device__ void fold_all(Pair (&come)[U], const Pair (&own)[U]) const {
    bool divides = OP == SUM && p.call.op == AVG && p.finish;
    constexpr bool PACKED = E::PACKED >> OP & 1;
    // What is seldom called must not be much code.
    constexpr bool IN_LINE = OP == SUM || sizeof(typename E::Bits) > 1;
#pragma unroll
    for (int u = 0; u < U; u++) {
      if (PACKED && !divides) {
        fold_words<OP>(come[u].first, own[u].first);
        fold_words<OP>(come[u].second, own[u].second);
      } else if (IN_LINE) {
        come[u] = fold_pair<OP>(come[u], own[u], divides ? p.call.rank.nranks : 1);
      } else {
        come[u] = fold_apart<OP>(come[u], own[u]);
      }
    }
  }

  template <int OP>
  __device__ static void fold_words(uint4& a, const uint4& b) {
    if constexpr (E::PACKED >> OP & 1) {
      a.x = E::template fold_word<OP>(a.x, b.x);
      a.y = E::template fold_word<OP>(a.y, b.y);
      a.z = E::template fold_word<OP>(a.z, b.z);
      a.w = E::template fold_word<OP>(a.w, b.w);
    }
  }

  template <int OP>
  __device__ static Pair fold_pair(const Pair& a, const Pair& b, int divisor) {
    Sum<E> sum;
    sum.template combine_slot<OP>(true, a);
    sum.template combine_slot<OP>(false, b);
    bool divides = OP == SUM && divisor != 1;
    if (OF_TWO && divides) {
#pragma unroll
      for (int h = 0; h < 2; h++)
#pragma unroll
        for (int i = 0; i < Sum<E>::N; i++) sum.lanes[h][i] = halved<E>(sum.lanes[h][i]);
    }
    Pair v;
    sum.round(!OF_TWO && divides, divisor, v);
    return v;
  }

  template <int OP>
  __device__ __noinline__ static Pair fold_apart(Pair a, Pair b) {
    return fold_pair<OP>(a, b, 1);
  }
};

// A thread's data of a unit of U slots, in memory that is aligned and whole, or of a slot whose end
// may be missing.
template <int U>
struct Unit {
  Pair v[U];

  __device__ void load(const LineEnds<true>& ends, const Span& span, uint64_t at) {
    const char *first = span.at + at + ends.thread * 16, *other = span.at + at + ends.second;
#pragma unroll
    for (int u = 0; u < U; u++)
      ends.load_rows(first + u * UNIT_DATA_BYTES, other + u * UNIT_DATA_BYTES, v[u]);
  }

  __device__ void load_part(const LineEnds<true>& ends, const Span& span, uint64_t at) {
    const char *first = span.at + at + ends.thread * 16, *other = span.at + at + ends.second;
    int len = ends.piece(span, at), left = len - ends.thread * 16;
    int other_left = ends.ends_line ? 0 : len - ends.second;
    if (len % 16 == 0) {
      if (left > 0) v[0].first = LineEnds<true>::load_once(first);
      if (other_left > 0) v[0].second = LineEnds<true>::load_once(other);
    } else {
      v[0].first = load_piece(first, left, len);
      v[0].second = load_piece(other, other_left, len);
    }
  }

  // To be called where what was loaded is used: it waits for that.
  __device__ void pack(const LineEnds<true>& ends) {
#pragma unroll
    for (int u = 0; u < U; u++) ends.pack(v[u]);
  }

  __device__ void store(const LineEnds<true>& ends, const Span& span, uint64_t at) const {
    char *first = span.at + at + ends.thread * 16, *other = span.at + at + ends.second;
#pragma unroll
    for (int u = 0; u < U; u++)
      ends.store_rows(first + u * UNIT_DATA_BYTES, other + u * UNIT_DATA_BYTES, v[u]);
  }

  __device__ void store_part(const LineEnds<true>& ends, const Span& span, uint64_t at) const {
    char *first = span.at + at + ends.thread * 16, *other = span.at + at + ends.second;
    int len = ends.piece(span, at), left = len - ends.thread * 16;
    int other_left = ends.ends_line ? 0 : len - ends.second;
    Pair w = ends.unpacked(v[0]);
    if (len % 16 == 0) {
      if (left > 0) *reinterpret_cast<uint4*>(first) = w.first;
      if (other_left > 0) *reinterpret_cast<uint4*>(other) = w.second;
    } else {
      store_piece(first, left, len, w.first);
      store_piece(other, other_left, len, w.second);
    }
  }

  // Loads or stores up to 16 bytes, as many as there are of `len` in all. All threads of the warp
  // make the same steps, so that they stay together.
  __device__ __noinline__ static uint4 load_piece(const char* at, int left, int len) {
    uint32_t words[4] = {};
#pragma unroll
    for (int i = 0; i < 4; i++)
      if (left >= i * 4 + 4) words[i] = reinterpret_cast<const volatile uint32_t*>(at)[i];
    if (len % 4 != 0) {
#pragma unroll
      for (int i = 0; i < 4; i++)
#pragma unroll
        for (int b = 0; b < 3; b++)
          if (left < i * 4 + 4 && left > i * 4 + b)
            words[i] |= uint32_t(reinterpret_cast<const volatile uint8_t*>(at)[i * 4 + b]) << b * 8;
    }
    return {words[0], words[1], words[2], words[3]};
  }

  __device__ __noinline__ static void store_piece(char* at, int left, int len, uint4 v) {
    uint32_t words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (int i = 0; i < 4; i++)
      if (left >= i * 4 + 4) reinterpret_cast<volatile uint32_t*>(at)[i] = words[i];
    if (len % 4 == 0) return;
#pragma unroll
    for (int i = 0; i < 4; i++)
#pragma unroll
      for (int b = 0; b < 3; b++)
        if (left < i * 4 + 4 && left > i * 4 + b)
          reinterpret_cast<volatile char*>(at)[i * 4 + b] = char(words[i] >> b * 8);
  }
};

// Puts the units of a channel that are whole, each of U slots, until the threads of the warp are
// not together or the peer does not go on. The next unit is loaded meanwhile.
template <int U, typename Fold>
__device__ inline void put_whole(LineEnds<true>& ends, int peer, Flow& f, uint32_t& count,
                                 const Fold& fold) {
  uint64_t end = kept(f.whole_end()), room = ends.room;
  if (f.slot != 0 || f.at >= end) return;
  Unit<U> next;
  next.load(ends, f.put, f.at);
#pragma unroll 1
  for (; f.at < end; f.at += f.stride) {
    next.pack(ends);
    fold.multiply(next.v);
    ends.grant(room);
    if (!ends.await_room(peer, U) || !ends.together()) return;
#pragma unroll
    for (int u = 0; u < U; u++) ends.put_slot(u, next.v[u]);
    ends.put += U;
    f.tell_read(U, count);
    room = ends.load_room();
    if (f.at + f.stride < end) next.load(ends, f.put, f.at + f.stride);
  }
}

// What is put first, which is loaded while nothing is known of the channel yet.
struct First {
  Unit<1> unit;
  bool is_loaded = false;

  __device__ void load_line(const LineEnds<true>& ends, const Flow& f) {
    is_loaded = f.put.at && f.slots == 1 && f.is_aligned();
    if (is_loaded) unit.load_part(ends, f.put, f.at);
  }

  // Loads what is put, or folded with what comes.
  __device__ void load_packets(const Flow& f) {
    if (f.put.at) {
      unit.v[0].first = Piece(f.put, f.at).load();
    } else if (f.own.at) {
      unit.v[0].first = Piece(f.own, f.at).load();
    }
  }
};

// Puts what remains, slot by slot, until the threads of the warp are not together.
__device__ inline void put_slots(LineEnds<true>& ends, int peer, Flow& f, uint32_t& count,
                                 First& loaded) {
  Unit<1> unit = loaded.unit;
#pragma unroll 1
  for (bool is_loaded = loaded.is_loaded; f.at < f.end; f.step()) {
    if (!is_loaded) unit.load_part(ends, f.put, f.place());
    is_loaded = false;
    if (!ends.await_room(peer, 1) || !ends.together()) return;
    unit.pack(ends);
    ends.put_slot(0, unit.v[0]);
    ends.put += 1;
    f.tell_read(1, count);
  }
}

// Takes the units of a channel that are whole, each of U slots, while the peer goes on. What has
// come is loaded together with this rank's operands.
template <int U, typename Fold>
__device__ inline void take_whole(LineEnds<true>& ends, int peer, Flow& f, uint32_t& count,
                                  const Fold& fold) {
  uint64_t end = kept(f.whole_end());
  if (f.slot != 0 || f.at >= end) return;
  if (!ends.await_lines(peer, U, ends.look(peer, U, 0))) return;
  for (;;) {
    Unit<U> come, own;
    ends.fetch(peer, U, come.v);
    if constexpr (Fold::FOLDS) own.load(ends, f.own, f.at);
    uint64_t seen = ends.look(peer, U, U);
    if constexpr (Fold::FOLDS) {
      own.pack(ends);
      fold.multiply(own.v);
      fold.fold(come.v, own.v);
    }
    f.await_read(U, count);
    come.store(ends, f.to, f.at);
    ends.give_back(peer, U);
    f.at += f.stride;
    if (f.at >= end || !ends.await_lines(peer, U, seen)) return;
  }
}

// Takes what remains, slot by slot, while the peer goes on.
template <typename Fold>
__device__ inline void take_slots(LineEnds<true>& ends, int peer, Flow& f, uint32_t& count,
                                  const Fold& fold) {
#pragma unroll 1
  for (; f.at < f.end; f.step()) {
    Unit<1> come, own;
    if constexpr (Fold::FOLDS) own.load_part(ends, f.own, f.place());
    if (!ends.await_lines(peer, 1, ends.look(peer, 1, 0))) return;
    ends.fetch(peer, 1, come.v);
    if constexpr (Fold::FOLDS) {
      own.pack(ends);
      fold.multiply(own.v);
      fold.fold(come.v, own.v);
    }
    f.await_read(1, count);
    come.store_part(ends, f.to, f.place());
    ends.give_back(peer, 1);
  }
}

// What carrying changes.
struct Carried {
  uint64_t put, taken;
  uint32_t dead;
};

// Carries what remains, of any alignment, slot by slot.
template <bool PUTS, typename Fold>
__device__ __noinline__ Carried carry_rest(LineEnds<true> ends, int peer, Flow f, uint32_t count,
                                           Fold fold) {
#pragma unroll 1
  for (; f.at < f.end && !ends.dead; f.step()) {
    uint64_t at = f.place();
    Pair v[1];
    if (PUTS) {
      ends.load(f.put, at, 1, v);
      fold.pack(ends, v[0]);
      ends.put_unit(peer, 1, v);
      f.tell_read(1, count);
    } else {
      if (!ends.await_lines(peer, 1, ends.look(peer, 1, 0))) break;
      ends.fetch(peer, 1, v);
      if constexpr (Fold::FOLDS) {
        Pair own[1];
        ends.load(f.own, at, 1, own);
        fold.pack(ends, own[0]);
        fold.fold(v, own);
      }
      f.await_read(1, count);
      ends.store(f.to, at, 1, v);
      ends.give_back(peer, 1);
    }
  }
  return {ends.put, ends.taken, ends.dead};
}

// Carries slots of packets; false when they cannot be carried. What the next one needs of the
// user's memory is loaded meanwhile. A slot goes back as soon as it was read, which is when it is
// known to have come: the end of the kernel waits for that store.
template <bool PUTS, typename Fold>
__device__ inline bool carry_packets(LineEnds<true>& ends, int peer, const Flow& f,
                                     const First& loaded, const Fold& fold) {
  const Span& from = PUTS ? f.put : f.own;
  uint32_t count = 0;
  uint4 next = loaded.unit.v[0].first;
  if (ends.dead) return false;
#pragma unroll 1
  for (uint64_t at = f.at; at < f.end; at += f.stride) {
    uint4 own = next;
    bool loads = PUTS || Fold::FOLDS;
    if (loads && at + f.stride < f.end) next = Piece(from, at + f.stride).load();
    if (loads) fold.multiply(own);
    if constexpr (PUTS) {
      if (!ends.await_room(peer, 1)) return false;
      put_packets(ends, own);
      f.tell_read(1, count);
    } else {
      uint4 come;
      if (!take_packets(ends, peer, come)) return false;
      ends.give_back(peer, 1);
      if constexpr (Fold::FOLDS) come = fold.fold_sixteen(come, own);
      f.await_read(1, count);
      Piece(f.to, at).store(come);
    }
  }
  return true;
}

// Carries the units of a channel in one direction; false when they cannot be carried.
template <bool PUTS, typename Fold>
__device__ inline bool carry_units(LineEnds<true>& ends, int peer, Flow& f, First& loaded,
                                   const Fold& fold) {
  uint32_t count = 0;
  if (ends.dead) return false;
  if (f.is_aligned()) {
    if constexpr (PUTS) {
      if (f.slots == 2) put_whole<2>(ends, peer, f, count, fold);
      if (f.slots == 4) put_whole<4>(ends, peer, f, count, fold);
      // Threads that have multiplied need not be together.
      if (!ends.dead && !fold.multiplies()) put_slots(ends, peer, f, count, loaded);
    } else {
      if (f.slots == 2) take_whole<2>(ends, peer, f, count, fold);
      if (f.slots == 4) take_whole<4>(ends, peer, f, count, fold);
      if (!ends.dead) take_slots(ends, peer, f, count, fold);
    }
  }
  if (ends.dead || f.at >= f.end) return !ends.dead;
  Carried carried = carry_rest<PUTS>(ends, peer, f, count, fold);
  ends.put = carried.put;
  ends.taken = carried.taken;
  ends.dead = carried.dead;
  return !ends.dead;
}

// Puts a warp's chunks of a span, from the first one on in steps. The next one is loaded meanwhile.
template <typename Fold>
__device__ inline void put_chunks(ChunkEnd<true>& end, uint32_t digest, const Span& span, int warp,
                                  uint64_t first, uint64_t step, const Fold& fold) {
  uint64_t at = first * CHUNK_BYTES, stride = kept(step * CHUNK_BYTES);
  if (at >= span.bytes) return;
  Chunk next;
  next.load(span, at);
  if (!end.open(digest)) return;
#pragma unroll 1
  for (;;) {
    fold.multiply(next.v);
    if (!end.await()) return;
    end.put(next, warp);
    at += stride;
    if (at >= span.bytes) return;
    next.load(span, at);
  }
}

// Takes a warp's chunks, and folds them with this rank's operands.
template <typename Fold>
__device__ inline void take_chunks(ChunkEnd<false>& end, uint32_t digest, const Flow& f,
                                   uint64_t first, uint64_t step, const Fold& fold) {
  uint64_t at = first * CHUNK_BYTES, stride = kept(step * CHUNK_BYTES);
  uint32_t count = 0;
  if (at >= f.to.bytes || !end.open(digest)) return;
#pragma unroll 1
  for (; at < f.to.bytes; at += stride) {
    Chunk come, own;
    if constexpr (Fold::FOLDS) own.load(f.own, at);
    if (!end.await()) return;
    end.fetch(come);
    if constexpr (Fold::FOLDS) {
      fold.multiply(own.v);
      fold.fold(come.v, own.v);
    }
    f.await_read(1, count);
    come.store(f.to, at);
    end.give_back();
  }
}

// Returns what a rank of two puts or takes.
__device__ inline Flow flow_of(const LineProgram& p, bool puts) {
  auto span = [](uint64_t at, uint64_t bytes) {
    return Span(reinterpret_cast<const char*>(at), bytes);
  };
  Flow f;
  f.slots = p.slots;
  f.reader = p.overlaps ? int(threadIdx.x / 64) : -1;
  if (puts) {
    f.put = span(p.flow.put, p.flow.put_bytes);
  } else {
    f.to = span(p.flow.to, p.flow.to_bytes);
    f.own = span(p.flow.own, p.flow.to_bytes);
  }
  return f;
}

// Carries a warp's part of a program in one direction. The time of a small one is that of trips to
// memory and of code that is fetched, so that all that it needs is on its way before anything else
// is done.
template <bool SMALL, bool PUTS, typename Fold>
__device__ inline void run_part(const LineProgram& p, Fold& fold, uint64_t first, uint64_t step) {
  int peer = 1 - int(p.call.rank.rank), pair = threadIdx.x / 64;
  int channel = blockIdx.x * PUTTERS + pair;
  Flow flow = flow_of(p, PUTS);
  if (!(PUTS ? flow.put.at : flow.to.at)) return;
  First loaded;
  if constexpr (SMALL) {
    flow.begin(first, step, p.units);
    loaded.load_packets(flow);
    LineEnds<true> ends(p.call.rank, p.digest, channel, peer, nullptr);
    begin_carrying(p.call);
    if (flow.reader >= 0) begin_pair<PUTS>(pair);
    ends.settle();
    if (carry_packets<PUTS>(ends, peer, flow, loaded, fold)) ends.leave(peer, PUTS, !PUTS);
    return;
  }
  begin_carrying(p.call);
  if (p.slots == 0) {
    ChunkEnd<PUTS> end(p.call.rank, peer, channel, pair);
    if constexpr (PUTS) {
      put_chunks(end, p.digest, flow.put, pair, first, step, fold);
    } else {
      take_chunks(end, p.digest, flow, first, step, fold);
    }
    end.leave();
  } else {
    LineEnds<true> ends(p.call.rank, p.digest, channel, peer, warp_staging());
    flow.begin(first, step, p.units);
    loaded.load_line(ends, flow);
    ends.settle();
    if (carry_units<PUTS>(ends, peer, flow, loaded, fold)) ends.leave(peer, PUTS, !PUTS);
  }
}

// Copies this rank's own slice, or a warp's part of it: from the first chunk, or slot, on in steps.
__device__ __noinline__ void copy_part(const LineProgram& p, uint64_t first, uint64_t stride) {
  const char* input = reinterpret_cast<const char*>(p.call.input) + p.copy_from;
  char* output = reinterpret_cast<char*>(p.call.output) + p.copy_to;
  if (p.copy_to == NO_SLICE || input == output || faulty(p.call.rank) != FAULT_NONE) return;
  Span from(input, p.copy_bytes), to(output, p.copy_bytes);
  uint64_t whole = p.copy_bytes / CHUNK_BYTES * CHUNK_BYTES;
#pragma unroll 1
  for (uint64_t at = first * CHUNK_BYTES; at < whole; at += stride * CHUNK_BYTES) {
    Chunk chunk;
    chunk.load(from, at);
    chunk.store(to, at);
  }
  // A warp loads a slot's data at once, and a part of a chunk row by row.
  constexpr uint64_t SLOT = SLOT_DATA_BYTES;
#pragma unroll 1
  for (uint64_t at = whole + first * SLOT; at < p.copy_bytes; at += stride * SLOT)
    Piece(to, at).store(Piece(from, at).load());
}

// Copies this rank's own slice, by blocks that do nothing else; where there are none of those, by
// the others when they have done their part.
__device__ inline void copy_own(const LineProgram& p) {
  uint32_t before = gridDim.x > p.blocks ? p.blocks : 0, warps = blockDim.x / 32;
  uint64_t first = (blockIdx.x - before) * warps + threadIdx.x / 32;
  copy_part(p, first, uint64_t(gridDim.x - before) * warps);
}

// Returns what is told for warps that all put to one peer, on the channels from `first` on; nothing
// if not `tells`.
__device__ inline Telling telling_of(bool tells, int peer, int first) {
  int warp = threadIdx.x & 31;
  return {tells && warp < PUTTERS ? 1u << peer : 0, first + warp};
}

// Of each two warps one puts, and the other takes and folds. Small calls have kernels of their own:
// the less code there is, the less of it is fetched at their beginning.
template <bool SMALL, typename Fold>
__device__ inline void run_two(const LineProgram& p, Fold fold) {
  if (blockIdx.x >= p.blocks) {
    copy_own(p);
    return;
  }
  const Rank& r = p.call.rank;
  int peer = 1 - int(r.rank), first = blockIdx.x * PUTTERS;
  bool chunks = !SMALL && p.slots == 0;
  Telling telling = telling_of(chunks, peer, first);
  if (!SMALL) {
    if (threadIdx.x < PUTTERS)
      begin_progress(threadIdx.x, threadIdx.x * p.blocks + blockIdx.x < p.units);
    __syncthreads();
  }
  auto carry = [&](int role, int, uint64_t first, uint64_t step) {
    if (role != 0) return run_part<SMALL, false>(p, fold, first, step);
    run_part<SMALL, true>(p, fold, first, step);
    end_progress(threadIdx.x / 64);
  };
  run_lines(p, carry, [&] {
    if (chunks) tell_arrivals(r, telling, 0);
  });
  if (gridDim.x == p.blocks) copy_own(p);
}

// Makes the fold of a program.
template <typename E>
struct FoldOf {
  __device__ FoldTwo<E> operator()(const LineProgram& p) const {
    return {p, p.call.scaled ? scale_of(p.call) : 0};
  }
};

struct NoFoldOf {
  __device__ NoFold operator()(const LineProgram&) const { return {}; }
};

// The same for a batch; `fold_of` makes the folds of its programs.
template <bool SMALL, typename FoldOf>
__device__ inline void run_batch_of_two(const LineBatch& batch, FoldOf fold_of) {
  const LineProgram& head = batch.programs[0];
  const Rank& r = head.call.rank;
  bool chunks = !SMALL && head.slots == 0;
  Telling telling = telling_of(chunks, 1 - int(r.rank), blockIdx.x * PUTTERS);
  if (!SMALL) {
    if (threadIdx.x < PUTTERS) {
      BatchPart part(batch, LinePlace::number(head, threadIdx.x));
      begin_progress(threadIdx.x, part.has_units());
    }
    __syncthreads();
  }
  auto carry = [&](const LineProgram& p, int role, int, uint64_t first, uint64_t step) {
    auto fold = fold_of(p);
    if (role != 0) return run_part<SMALL, false>(p, fold, first, step);
    run_part<SMALL, true>(p, fold, first, step);
    end_progress(threadIdx.x / 64);
  };
  run_batch(batch, carry, copy_part, [&] {
    if (chunks) tell_arrivals(r, telling, 0);
  });
}

}  // namespace oxccl

// For each element type kernels that reduce; what only moves, runs as bytes.
#define OXCCL_OF_TWO(NAME, SMALL, ...)                                                          \
  OXCCL_KERNEL(oxccl_##NAME, (BLOCK_THREADS, 1), oxccl::LineProgram, using namespace oxccl;     \
               run_two<SMALL>(argument, FoldOf<__VA_ARGS__>()(argument)))                       \
  OXCCL_KERNEL(oxccl_batch_##NAME, (BLOCK_THREADS, 1), oxccl::LineBatch, using namespace oxccl; \
               run_batch_of_two<SMALL>(argument, FoldOf<__VA_ARGS__>()))
#define OXCCL_LINES_OF_TWO(NUMBER, ...)                                                         \
  OXCCL_OF_TWO(lines_two_##NUMBER, false, __VA_ARGS__)                                          \
  OXCCL_OF_TWO(packets_two_##NUMBER, true, __VA_ARGS__)
OXCCL_ELEMENTS(OXCCL_LINES_OF_TWO)
#define OXCCL_MOVES_OF_TWO(NAME, SMALL)                                                         \
  OXCCL_KERNEL(oxccl_##NAME, (BLOCK_THREADS, 1), oxccl::LineProgram,                            \
               oxccl::run_two<SMALL>(argument, oxccl::NoFold()))                                \
  OXCCL_KERNEL(oxccl_batch_##NAME, (BLOCK_THREADS, 1), oxccl::LineBatch,                        \
               oxccl::run_batch_of_two<SMALL>(argument, oxccl::NoFoldOf()))
OXCCL_MOVES_OF_TWO(lines_two, false)
OXCCL_MOVES_OF_TWO(packets_two, true)
