// Lines: the edges between GPUs whose link carries 128 bytes at once. A line is 128 bytes that 8
// threads store together: 120 bytes of data and a number, by which the reader knows that it came.
// So data need no fence, no barrier and no clearing, and arrive one way.
//
// An edge has slots of two rows of four lines, 1 KiB with 960 bytes of data, in the receiver's
// memory. Each warp of a kernel is a channel with slots and counters of its own on every edge: the
// number of a line counts the slots that the channel has used on that edge, and the receiver's word
// of credit counts those that it has taken. Counters lie in GPU memory and advance by what was
// carried: arguments hold nothing that changes, and any operation may follow any other.
//
// A program runs in four phases for each unit of its slices (`oxccl_plan::lines`). A warp that puts
// waits only for its receiver to take what the warp put before, and every warp takes all of a unit
// before it puts the next one, so one slot would suffice.
#pragma once

#include "interpret.cuh"

namespace oxccl {

static_assert(UNIT_BYTES == 2 * 32 * 16 && UNIT_DATA_BYTES == UNIT_BYTES / 128 * 120,
              "two rows of a warp's accesses");

// What a thread has of a unit: 16 bytes of each row. In the last thread of a line the upper half of
// both is the number on the way, and the data that belong there fill its lower half of the second
// row: so all accesses to the user's memory are of 16 aligned bytes.
struct Pair {
  uint4 first, second;
};

__device__ inline uint64_t load_number(const char* at) {
  uint64_t v;
  asm volatile("ld.volatile.global.u64 %0, [%1];" : "=l"(v) : "l"(at) : "memory");
  return v;
}

__device__ inline void store_volatile(char* at, uint4 v) {
  asm volatile("st.volatile.global.v4.u32 [%0], {%1,%2,%3,%4};" ::"l"(at), "r"(v.x), "r"(v.y),
               "r"(v.z), "r"(v.w)
               : "memory");
}

// Waits of a warp for a message give up when the peer has begun a collective instead, as `await`
// does; `message` is null in a collective.
__device__ inline bool began_another(const Rank& r, int peer, const Message& message,
                                     bool& announced_before) {
  uint64_t operation = common(r)->operations + 1;
  uint64_t count, what;
  if (!announced(r, peer, operation, count, what)) return false;
  // What the peer did before its announcement is visible after it: it is looked for once more.
  if (announced_before) {
    differ(r, peer, operation - 1, message.what, message.bytes, what, count);
    return true;
  }
  announced_before = true;
  fence();
  return false;
}

// The wait of a warp. What is slow to look at is looked at by its first thread, out of line: the
// state of that lies in memory, and is set at the first such look.
struct WarpWait {
  struct Slow {
    Wait wait;
    uint32_t looks = 0;
    bool announced = false;
  };
  uint32_t spins = 0;
  union {
    Slow slow;
    char none;
  };

  __device__ WarpWait() : none(0) {}

  // Returns whether to give up; for the whole warp, after every look that found nothing.
  __device__ bool over(const Rank& r, int peer, const Message* message) {
    if (++spins & 63) return false;
    bool first = spins == 64;
    if (!first) spins = 64;
    return look(r, peer, message, first, &slow);
  }

  __device__ __noinline__ static bool look(const Rank& r, int peer, const Message* message,
                                           bool first, Slow* slow) {
    if (first) *slow = Slow();
    bool over = false;
    if ((threadIdx.x & 31) == 0) {
      slow->wait.spins = 63;
      over = slow->wait.over(r, peer, -1);
      if (!over && message && slow->wait.looks != slow->looks)
        over = began_another(r, peer, *message, slow->announced);
      slow->looks = slow->wait.looks;
    }
    return __shfl_sync(~0u, over, 0);
  }
};

__device__ inline LineCounters* line_counters(const Rank& r, int channel, int peer) {
  return reinterpret_cast<LineCounters*>(r.line_counters) + channel * r.nranks + peer;
}

// The word in which a receiver counts the slots that it has taken, in the sender's memory.
__device__ inline uint64_t* line_credit(const Rank& r, int sender, int channel, int receiver) {
  return reinterpret_cast<uint64_t*>(r.shared[sender] + r.line_credits_at) +
         channel * r.nranks + receiver;
}

// A warp's ends of the channel's edges. The number of a line has a digest of the call in its upper
// half: what a peer puts for another call is never taken. Announcements tell calls that differ; a
// message that nobody receives, with the same collective behind it at both ranks, holds the edge up
// until the limit of the communicator. ONE: there are edges with one peer, whose counters all
// threads hold; else the thread `p` of the warp holds those of the edges to and from the rank at
// place `p`.
template <bool ONE>
struct LineEnds {
  const Rank& r;
  const Message* message;  // the one under way; null in a collective
  uint32_t digest;
  int channel, thread, second;  // where the thread's data of the second row lie in a unit
  bool ends_line;               // whether the thread is the last one of a line
  bool dead;                    // whether the communicator has failed
  uint64_t put, taken, room;    // slots that were put, that were taken, and that the peer has taken
  char *outgoing, *incoming;    // the slots at the one peer, and here

  // The ends of no channel.
  __device__ explicit LineEnds(const Rank& r) : r(r), message(nullptr) {}

  __device__ LineEnds(const Rank& r, uint32_t digest, int channel, int one)
      : r(r), message(nullptr), digest(digest), channel(channel), thread(threadIdx.x & 31) {
    int peer = ONE ? one : thread < r.nranks ? thread : 0;
    const volatile LineCounters* own = line_counters(r, channel, peer);
    put = own->put;
    taken = own->taken;
    room = *const_cast<const volatile uint64_t*>(line_credit(r, r.rank, channel, peer));
    dead = faulty(r) != FAULT_NONE;
    if (ONE) room = __shfl_sync(~0u, room, 0);
    dead = __shfl_sync(~0u, dead, 0);
    second = 512 + (thread - (thread >> 3)) * 16;
    ends_line = (thread & 7) == 7;
    if (ONE) {
      outgoing = slots_of(one, r.rank);
      incoming = slots_of(r.rank, one);
    }
  }

  __device__ bool holds(int peer) const { return ONE ? thread == 0 : thread == peer; }
  __device__ uint64_t of(uint64_t counter, int peer) const {
    return ONE ? counter : __shfl_sync(~0u, counter, peer);
  }

  // Keeps the counters for the next kernel.
  __device__ void leave() const {
    if (thread >= r.nranks || thread == r.rank) return;
    LineCounters* own = line_counters(r, channel, thread);
    own->put = put;
    own->taken = taken;
  }

  // A thread's place in the first slot of the channel from a rank to another.
  __device__ char* slots_of(int at, int from) const {
    uint64_t channels = uint64_t(from < at ? from : from - 1) * LINE_CHANNELS + channel;
    return reinterpret_cast<char*>(r.shared[at] + r.lines_at) +
           channels * r.line_slots * UNIT_BYTES + thread * 16;
  }

  __device__ char* slot(char* first, uint32_t number) const {
    return first + (number & (r.line_slots - 1)) * UNIT_BYTES;
  }

  // Loads or stores up to 16 bytes of a buffer of any alignment, as many as there are; in words if
  // `words`. All threads of a warp make the same steps, so that they stay together.
  __device__ static uint4 load_bytes(const char* at, int len, bool words) {
    uint64_t low = 0, high = 0;
#pragma unroll 1
    for (int i = 0; i < 16; i += words ? 4 : 1) {
      uint64_t v = 0;
      if (i < len)
        v = words ? *reinterpret_cast<const volatile uint32_t*>(at + i)
                  : *reinterpret_cast<const volatile unsigned char*>(at + i);
      low |= i < 8 ? v << (8 * i) : 0;
      high |= i < 8 ? 0 : v << (8 * (i - 8));
    }
    return {uint32_t(low), uint32_t(low >> 32), uint32_t(high), uint32_t(high >> 32)};
  }

  __device__ static void store_bytes(char* at, int len, bool words, uint4 v) {
    uint64_t low = v.x | uint64_t(v.y) << 32, high = v.z | uint64_t(v.w) << 32;
#pragma unroll 1
    for (int i = 0; i < 16; i += words ? 4 : 1) {
      uint64_t shifted = i < 8 ? low >> (8 * i) : high >> (8 * (i - 8));
      if (i >= len) continue;
      if (words) {
        *reinterpret_cast<volatile uint32_t*>(at + i) = uint32_t(shifted);
      } else {
        *reinterpret_cast<volatile char*>(at + i) = char(shifted);
      }
    }
  }

  // The bytes of a piece that begins at `from` of `len` bytes.
  __device__ static int piece(uint64_t len, int from) {
    return int(len < UNIT_DATA_BYTES ? len : UNIT_DATA_BYTES) - from;
  }

  // A slot that is not whole or not aligned in the user's memory, out of the way of the others:
  // little code is loaded sooner.
  __device__ __noinline__ static Pair load_part(const char* from, uint64_t len, int first,
                                                int second) {
    bool words = ((reinterpret_cast<uint64_t>(from) | len) & 3) == 0;
    return {load_bytes(from + first, piece(len, first), words),
            load_bytes(from + second, piece(len, second), words)};
  }

  __device__ __noinline__ static void store_part(char* to, uint64_t len, int first, int second,
                                                 Pair v) {
    bool words = ((reinterpret_cast<uint64_t>(to) | len) & 3) == 0;
    store_bytes(to + first, piece(len, first), words, v.first);
    store_bytes(to + second, piece(len, second), words, v.second);
  }

  // The place of a thread's data in the second row; in the last thread of a line it has none.
  __device__ int second_part() const { return ends_line ? UNIT_DATA_BYTES : second; }

  // Returns whether the threads of the warp are together: `__syncwarp` alone does not bring them
  // together where the compiler takes them for apart.
  __device__ static bool together() {
    uint32_t mask;
    asm volatile("activemask.b32 %0;" : "=r"(mask)::"memory");
    return mask == ~0u;
  }

  // Stores a slot's rows where the threads of a line cannot store together: the numbers last.
  __device__ __noinline__ static void store_apart(char* at, bool ends_line, Pair v) {
    uint64_t* rows[2] = {reinterpret_cast<uint64_t*>(at), reinterpret_cast<uint64_t*>(at + 512)};
    uint4 parts[2] = {v.first, v.second};
#pragma unroll
    for (int i = 0; i < 2; i++) {
      volatile uint64_t* row = rows[i];
      row[0] = parts[i].x | uint64_t(parts[i].y) << 32;
      if (!ends_line) row[1] = parts[i].z | uint64_t(parts[i].w) << 32;
    }
    fence();
    __syncwarp();
    fence();
#pragma unroll
    for (int i = 0; i < 2; i++) {
      volatile uint64_t* row = rows[i];
      if (ends_line) row[1] = parts[i].z | uint64_t(parts[i].w) << 32;
    }
  }

  // Loads a thread's data of the slots of a unit, of user memory that has `len` bytes left, as they
  // lie there. `pack` moves what would be in the place of the number; it waits for the load.
  template <int U>
  __device__ void load(const char* from, uint64_t len, int slots, Pair (&v)[U]) const {
    const char *first = from + thread * 16, *other = from + second;
    bool whole = aligned(reinterpret_cast<uint64_t>(from)) && len >= slots * UNIT_DATA_BYTES;
#pragma unroll
    for (int u = 0; u < U; u++) {
      uint64_t at = u * UNIT_DATA_BYTES;
      if (u >= slots) continue;
      if (whole) {
        v[u].first = __ldcg(reinterpret_cast<const uint4*>(first + at));
        if (!ends_line) v[u].second = __ldcg(reinterpret_cast<const uint4*>(other + at));
      } else {
        v[u] = load_part(from + at, len > at ? len - at : 0, thread * 16, second_part());
      }
    }
  }

  __device__ void pack(Pair& v) const {
    if (ends_line) v.second.x = v.first.z, v.second.y = v.first.w;
  }

  template <int U>
  __device__ void store(char* to, uint64_t len, int slots, const Pair (&v)[U]) const {
    char *first = to + thread * 16, *other = to + second;
    bool whole = aligned(reinterpret_cast<uint64_t>(to)) && len >= slots * UNIT_DATA_BYTES;
#pragma unroll
    for (int u = 0; u < U; u++) {
      uint64_t at = u * UNIT_DATA_BYTES;
      if (u >= slots) continue;
      Pair w = v[u];
      if (ends_line) w.first.z = w.second.x, w.first.w = w.second.y;
      if (whole) {
        *reinterpret_cast<uint4*>(first + at) = w.first;
        if (!ends_line) *reinterpret_cast<uint4*>(other + at) = w.second;
      } else {
        store_part(to + at, len > at ? len - at : 0, thread * 16, second_part(), w);
      }
    }
  }

  // Waits until a word of credit has reached a target, or never will; returns the word.
  __device__ __noinline__ static uint64_t wait_room(const Rank& r, const volatile uint64_t* word,
                                                    int peer, const Message* message,
                                                    uint64_t target) {
    WarpWait wait;
    for (;;) {
      uint64_t seen = __shfl_sync(~0u, *word, 0);
      if (reached(seen, target) || wait.over(r, peer, message)) return seen;
    }
  }

  // Waits until the peer has room for the slots of a unit, and puts them; false when it will not
  // have it. The threads of a line have to store together.
  template <int U>
  __device__ bool put_unit(int peer, int slots, const Pair (&v)[U]) {
    if (dead) return false;
    uint64_t before = of(put, peer), target = before + slots - r.line_slots;
    if (!reached(of(room, peer), target)) {
      uint64_t seen = wait_room(r, line_credit(r, r.rank, channel, peer), peer, message, target);
      if (ONE || thread == peer) room = seen;
      if (!reached(seen, target)) return false;
    }
    char* to = ONE ? outgoing : slots_of(peer, r.rank);
#pragma unroll
    for (int u = 0; u < U; u++) {
      if (u >= slots) continue;
      uint32_t number = uint32_t(before) + u + 1;
      Pair w = v[u];
      if (ends_line) {
        w.first.z = w.second.z = number;
        w.first.w = w.second.w = digest;
      }
      char* at = slot(to, number);
      __syncwarp();
      if (together()) {
        store_volatile(at, w.first);
        store_volatile(at + 512, w.second);
      } else {
        store_apart(at, ends_line, w);
      }
    }
    if (ONE || thread == peer) put += slots;
    return true;
  }

  // Not 0 in the last thread of a line that is not there.
  __device__ uint32_t lacks(uint4 v, uint32_t number) const {
    return (v.z ^ number) | (v.w ^ digest);
  }

  // Waits until the numbers of the next slots of each of G ranks are there, of those in `from` that
  // are not negative; false when they will not come.
  template <int G, int U>
  __device__ bool await_numbers(const int (&from)[G], const uint32_t (&number)[G], int slots) const {
    WarpWait wait;
    for (;;) {
      int missing = -1;
      if (ends_line) {
#pragma unroll
        for (int g = 0; g < G; g++) {
          if (from[g] < 0) continue;
          char* first = ONE ? incoming : slots_of(r.rank, from[g]);
          uint64_t lacking = 0;
#pragma unroll
          for (int u = 0; u < U; u++) {
            if (u >= slots) continue;
            const char* at = slot(first, number[g] + u) + 8;
            uint64_t wanted = (number[g] + u) | uint64_t(digest) << 32;
            lacking |= (load_number(at) ^ wanted) | (load_number(at + 512) ^ wanted);
          }
          if (lacking) missing = from[g];
        }
      }
      uint32_t who = __ballot_sync(~0u, missing >= 0);
      if (who == 0) return true;
      if (wait.over(r, G == 1 ? from[0] : __shfl_sync(~0u, missing, __ffs(who) - 1), message))
        return false;
    }
  }

  // Takes the next slots of each of G ranks, and gives them back; false when they will not come. A
  // line is stored at once, but a load that meets it may find its number and not yet all of its
  // data. So data count that were loaded after the numbers were seen; that their numbers are looked
  // at again has the warp wait for the data before the slots go back.
  template <int G, int U>
  __device__ bool take(const int (&from)[G], int slots, Pair (&v)[G][U]) {
    if (dead) return false;
    uint32_t number[G];
#pragma unroll
    for (int g = 0; g < G; g++)
      number[g] = uint32_t(of(taken, from[g] < 0 ? 0 : from[g])) + 1;
    bool all;
    do {
      if (!await_numbers<G, U>(from, number, slots)) return false;
      uint32_t lacking = 0;
#pragma unroll
      for (int g = 0; g < G; g++) {
        if (from[g] < 0) continue;
        char* first = ONE ? incoming : slots_of(r.rank, from[g]);
#pragma unroll
        for (int u = 0; u < U; u++) {
          if (u >= slots) continue;
          const char* at = slot(first, number[g] + u);
          v[g][u].first = load_volatile(at);
          v[g][u].second = load_volatile(at + 512);
        }
      }
#pragma unroll
      for (int g = 0; g < G; g++) {
        if (from[g] < 0) continue;
#pragma unroll
        for (int u = 0; u < U; u++)
          if (u < slots)
            lacking |= lacks(v[g][u].first, number[g] + u) | lacks(v[g][u].second, number[g] + u);
      }
      all = !__any_sync(~0u, ends_line && lacking != 0);
    } while (!all);
#pragma unroll
    for (int g = 0; g < G; g++) {
      if (from[g] < 0) continue;
      if (ONE || thread == from[g]) taken += slots;
      if (holds(from[g]))
        *const_cast<volatile uint64_t*>(line_credit(r, from[g], channel, r.rank)) = taken;
    }
    return true;
  }
};

// A warp's run of a program. U slots of a unit and G peers are under way at once; TWO: there is one
// peer.
template <typename E, bool FOLDS, bool TWO, int U, int G>
struct LineRun {
  const LineProgram& p;
  LineEnds<TWO> ends;
  uint64_t scale;

  using B = typename E::Bits;
  static constexpr int N = 16 / sizeof(B);

  __device__ const Rank& rank() const { return p.call.rank; }
  __device__ int nranks() const { return TWO ? 2 : rank().nranks; }
  __device__ const char* input() const { return reinterpret_cast<const char*>(p.call.input); }
  __device__ char* output() const { return reinterpret_cast<char*>(p.call.output); }

  // The peer that is `distance` ranks ahead; −1 beyond the last one.
  __device__ int peer(int distance) const {
    int n = nranks(), at = rank().rank + distance;
    if (distance >= n) return -1;
    return at < n ? at : at - n;
  }

  __device__ static uint64_t left(uint64_t bytes, uint64_t at) { return at < bytes ? bytes - at : 0; }

  // Loads a unit of the input, from `base` on, which has so many bytes in all.
  __device__ void load(const char* base, uint64_t bytes, uint64_t at, Pair (&v)[U]) const {
    ends.load(base + at, left(bytes, at), p.slots, v);
  }

  __device__ __noinline__ static Pair scale_pair(Pair v, uint64_t scale) {
    return {scale_line<E>(v.first, scale), scale_line<E>(v.second, scale)};
  }

  // Makes of what was loaded what is put or folded.
  __device__ void pack(Pair (&v)[U]) const {
#pragma unroll
    for (int u = 0; u < U; u++) {
      ends.pack(v[u]);
      if (FOLDS && p.call.scaled) v[u] = scale_pair(v[u], scale);
    }
  }

  __device__ void store(char* base, uint64_t bytes, uint64_t at, const Pair (&v)[U]) const {
    ends.store(base + at, left(bytes, at), p.slots, v);
  }

  __device__ bool put_unit(int to, const Pair (&v)[U]) { return ends.put_unit(to, p.slots, v); }

  __device__ bool put(uint64_t at) {
#pragma unroll 1
    for (int first = 1; first < nranks(); first += G) {
      Pair v[G][U];
      int to[G];
#pragma unroll
      for (int g = 0; g < G; g++) {
        to[g] = peer(first + g);
        if (to[g] >= 0 && p.peers[to[g]].put_at == NO_SLICE) to[g] = -1;
        if (to[g] < 0) continue;
        const LinePeer& with = p.peers[to[g]];
        load(input() + with.put_at, with.put_bytes, at, v[g]);
      }
#pragma unroll
      for (int g = 0; g < G; g++) {
        if (to[g] < 0) continue;
        pack(v[g]);
        if (!put_unit(to[g], v[g])) return false;
      }
    }
    return true;
  }

  // Reductions copy nothing.
  __device__ void copy(uint64_t at) const {
    if (FOLDS || p.copy_to == NO_SLICE) return;
    const char* from = input() + p.copy_from;
    char* to = output() + p.copy_to;
    if (from == to) return;
    Pair v[U];
    load(from, p.copy_bytes, at, v);
#pragma unroll
    for (int u = 0; u < U; u++) ends.pack(v[u]);
    store(to, p.copy_bytes, at, v);
  }

  // What a thread has folded so far of a slot.
  struct Sum {
    typename E::Lane lanes[2][N];
  };

  template <int OP>
  __device__ void combine_slot(Sum& sum, bool is_first, const Pair& v) const {
    B b[2][N];
    memcpy(b, &v, 32);
#pragma unroll
    for (int h = 0; h < 2; h++)
#pragma unroll
      for (int i = 0; i < N; i++) {
        typename E::Lane lane = E::widen(b[h][i]);
        sum.lanes[h][i] =
            is_first ? lane : combine(OP < 0 ? int(p.call.op) : OP, sum.lanes[h][i], lane);
      }
  }

  __device__ void round(const Sum& sum, bool divide, Pair& v) const {
    B b[2][N];
#pragma unroll
    for (int h = 0; h < 2; h++)
#pragma unroll
      for (int i = 0; i < N; i++)
        b[h][i] = E::round(divide ? E::divide(sum.lanes[h][i], nranks()) : sum.lanes[h][i]);
    memcpy(&v, b, 32);
  }

  // Folds two operands.
  template <int OP>
  __device__ Pair fold_pair(const Pair& a, const Pair& b) const {
    Sum sum;
    combine_slot<OP>(sum, true, a);
    combine_slot<OP>(sum, false, b);
    Pair v;
    round(sum, OP < 0 && p.finish && p.call.op == AVG, v);
    return v;
  }

  // The same for all but sums, which are rare.
  __device__ __noinline__ static Pair fold_pair_by(const LineProgram& p, Pair a, Pair b) {
    return LineRun{p, LineEnds<TWO>(p.call.rank), 0}.template fold_pair<-1>(a, b);
  }

  // Folds this rank's slots, which come in `result`, with those of the one peer. Folds of two
  // operands do not depend on their order.
  __device__ bool fold_two(Pair (&result)[U]) {
    Pair v[1][U];
    int from[1] = {1 - int(rank().rank)};
    if (!ends.take(from, p.slots, v)) return false;
    pack(result);
    bool sums = p.call.op == SUM;
#pragma unroll
    for (int u = 0; u < U; u++) {
      if (u >= p.slots) continue;
      result[u] = sums ? fold_pair<SUM>(result[u], v[0][u]) : fold_pair_by(p, result[u], v[0][u]);
    }
    return true;
  }

  // Folds a unit of all ranks, in rank order. OP is negative for one that the call tells.
  template <int OP>
  __device__ bool fold(uint64_t at, Pair (&result)[U]) {
    int n = nranks(), me = rank().rank;
    Sum sum[U];
    Pair own[U];
    load(input() + p.own_at, p.middle_bytes, at, own);
#pragma unroll 1
    for (int first = 0; first < n; first += G + 1) {
      Pair v[G + 1][U];
      int from[G + 1];
#pragma unroll
      for (int g = 0; g <= G; g++) from[g] = first + g < n && first + g != me ? first + g : -1;
      if (!ends.take(from, p.slots, v)) return false;
      if (first == 0) pack(own);
#pragma unroll
      for (int g = 0; g <= G; g++) {
        if (first + g >= n) continue;
#pragma unroll
        for (int u = 0; u < U; u++)
          combine_slot<OP>(sum[u], first + g == 0, first + g == me ? own[u] : v[g][u]);
      }
    }
#pragma unroll
    for (int u = 0; u < U; u++) round(sum[u], p.finish && p.call.op == AVG, result[u]);
    return true;
  }

  // Gets what the middle phase passes on and keeps.
  __device__ bool get_middle(uint64_t at, Pair (&result)[U]) {
    if constexpr (FOLDS && TWO) {
      load(input() + p.own_at, p.middle_bytes, at, result);
      return fold_two(result);
    } else if constexpr (FOLDS) {
      switch (p.call.op) {
        case SUM:
        case AVG: return fold<SUM>(at, result);
        default: return fold<-1>(at, result);
      }
    } else {
      Pair v[1][U];
      int from[1] = {int(p.middle_from)};
      if (!ends.take(from, p.slots, v)) return false;
#pragma unroll
      for (int u = 0; u < U; u++) result[u] = v[0][u];
      return true;
    }
  }

  __device__ bool middle(uint64_t at) {
    if (!p.has_middle || (TWO && !FOLDS)) return true;
    Pair result[U];
    if (!get_middle(at, result)) return false;
    if (!TWO && p.middle_to != 0) {
#pragma unroll 1
      for (int distance = 1; distance < nranks(); distance++) {
        int to = peer(distance);
        if ((p.middle_to >> to & 1) && !put_unit(to, result)) return false;
      }
    }
    if (p.result_at != NO_SLICE) store(output() + p.result_at, p.middle_bytes, at, result);
    return true;
  }

  __device__ bool take(uint64_t at) {
#pragma unroll 1
    for (int first = 1; first < nranks(); first += G) {
      Pair v[G][U];
      int from[G];
      bool any = false;
#pragma unroll
      for (int g = 0; g < G; g++) {
        from[g] = peer(first + g);
        if (from[g] >= 0 && p.peers[from[g]].take_at == NO_SLICE) from[g] = -1;
        any |= from[g] >= 0;
      }
      if (!any) continue;
      if (!ends.take(from, p.slots, v)) return false;
#pragma unroll
      for (int g = 0; g < G; g++) {
        if (from[g] < 0) continue;
        const LinePeer& with = p.peers[from[g]];
        store(output() + with.take_at, with.take_bytes, at, v[g]);
      }
    }
    return true;
  }

  __device__ uint64_t place(uint64_t unit) const { return unit * p.slots * UNIT_DATA_BYTES; }

  // Loads what the one peer gets of a unit.
  __device__ void load_next(uint64_t unit, Pair (&v)[U]) const {
    const LinePeer& with = p.peers[1 - rank().rank];
    if (unit < p.units && with.put_at != NO_SLICE)
      load(input() + with.put_at, with.put_bytes, place(unit), v);
  }

  // Puts what was loaded, and keeps a copy where this rank has one of the same slice.
  __device__ bool put_next(uint64_t unit, bool copies, Pair (&v)[U]) {
    int to = 1 - rank().rank;
    if (unit >= p.units || p.peers[to].put_at == NO_SLICE) return true;
    pack(v);
    if (!put_unit(to, v)) return false;
    if (!FOLDS && copies) store(output() + p.copy_to, p.copy_bytes, place(unit), v);
    return true;
  }

  // Between two ranks nothing is passed on, so reductions take nothing. A unit is loaded while the
  // one before the one before it is awaited.
  __device__ void run_two(uint64_t first, int64_t step) {
    const LinePeer& with = p.peers[1 - rank().rank];
    bool copies = !FOLDS && with.put_at != NO_SLICE && p.copy_to != NO_SLICE &&
                  p.copy_from == with.put_at;
    bool moves = input() + p.copy_from != output() + p.copy_to;
    Pair next[U];
#pragma unroll 1
    for (int64_t unit = int64_t(first) - 2 * step; unit < int64_t(p.units); unit += step) {
      if (unit + int64_t(step) >= int64_t(first) && !put_next(unit + step, copies && moves, next))
        return;
      load_next(unit + 2 * step, next);
      if (unit < int64_t(first)) continue;
      if (ends.dead) return;
      uint64_t at = place(unit);
      if (!copies) copy(at);
      if (!middle(at)) return;
      if constexpr (!FOLDS) {
        if (!take(at)) return;
      }
    }
    leave_one();
  }

  __device__ void leave_one() const {
    if (ends.thread != 0) return;
    LineCounters* own = line_counters(rank(), ends.channel, 1 - rank().rank);
    own->put = ends.put;
    own->taken = ends.taken;
  }

  // Where nothing is passed on, a unit is put before the one before it is taken: an edge then
  // carries nothing else that would have to come first.
  __device__ void run_more(uint64_t first, uint64_t step) {
    if (ends.dead) return;
    uint64_t ahead = p.middle_to == 0 ? step : 0;
    if (ahead && !put(place(first))) return;
    for (uint64_t unit = first; unit < p.units; unit += step) {
      uint64_t at = place(unit);
      if (unit + ahead < p.units && !put(place(unit + ahead))) return;
      // What is copied may be longer than what is exchanged.
      for (uint64_t more = at; more < p.copy_bytes; more += place(p.units)) copy(more);
      if (!middle(at) || !take(at)) return;
    }
    ends.leave();
  }

  __device__ void run(uint64_t first, uint64_t step) {
    if constexpr (TWO) {
      run_two(first, step);
    } else {
      run_more(first, step);
    }
  }
};

// Units go to warps in turn, first to one warp of each block. Which warps have a unit depends on
// facts that all ranks share.
template <typename E, bool FOLDS, bool TWO, int U, int G>
__device__ inline void run_lines(const LineProgram& program) {
  const Rank& r = program.call.rank;
  Counters* own = counters(r, blockIdx.x);
  if (is_watcher()) {
    // Its answer is looked at last: it takes as long as the announcement.
    bool was_running = mark(&own->busy);
    if (blockIdx.x == 0) {
      was_running |= mark_among(&common(r)->line_users, LINE_COLLECTIVE, ~0u);
      announce(program.call, IN_TIME);
    }
    refuse(r, was_running);
  } else {
    uint32_t warp = threadIdx.x / 32, warps = blockDim.x / 32 - 1;
    uint64_t first = warp * gridDim.x + blockIdx.x;
    if (first < program.units) {
      int channel = blockIdx.x * LINE_WARPS + warp;
      LineEnds<TWO> ends(r, program.digest, channel, TWO ? 1 - int(r.rank) : 0);
      LineRun<E, FOLDS, TWO, U, G>{program, ends, FOLDS ? scale_of(program.call) : 0}.run(
          first, uint64_t(warps) * gridDim.x);
    }
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    leave(own);
    if (blockIdx.x == 0) unmark_among(&common(r)->line_users, LINE_COLLECTIVE);
  }
}

}  // namespace oxccl

// For each element type a kernel that reduces between two ranks and one between more; what only
// moves, runs as bytes.
#define OXCCL_LINES(NUMBER, ...)                                                             \
  extern "C" __global__ void __launch_bounds__(BLOCK_THREADS, 1)                              \
      oxccl_lines_two_##NUMBER(const __grid_constant__ oxccl::LineProgram program) {         \
    using namespace oxccl;                                                                   \
    using Element = __VA_ARGS__;                                                             \
    run_lines<Element, true, true, sizeof(Element::Bits) == 1 ? 1 : 2, 1>(program);              \
  }                                                                                          \
  extern "C" __global__ void __launch_bounds__(BLOCK_THREADS, 1)                              \
      oxccl_lines_more_##NUMBER(const __grid_constant__ oxccl::LineProgram program) {        \
    using namespace oxccl;                                                                   \
    run_lines<__VA_ARGS__, true, false, 1, 3>(program);                                       \
  }
OXCCL_ELEMENTS(OXCCL_LINES)

extern "C" __global__ void __launch_bounds__(BLOCK_THREADS, 1)
    oxccl_lines_two(const __grid_constant__ oxccl::LineProgram program) {
  oxccl::run_lines<oxccl::Integer<uint8_t>, false, true, 2, 1>(program);
}

extern "C" __global__ void __launch_bounds__(BLOCK_THREADS, 1)
    oxccl_lines_more(const __grid_constant__ oxccl::LineProgram program) {
  oxccl::run_lines<oxccl::Integer<uint8_t>, false, false, 2, 3>(program);
}
