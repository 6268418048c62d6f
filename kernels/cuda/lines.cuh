// Lines: the edges between GPUs whose link carries 128 bytes at once. A line is 128 bytes that 8
// threads store together: 120 bytes of data and a number, by which the reader knows that it came.
// So data need no fence, no barrier and no clearing, and arrive one way.
//
// An edge has slots of two rows of four lines, 1 KiB with 960 bytes of data, in the receiver's
// memory. A channel has slots and counters of its own on every edge: the number of a line counts
// the slots that the channel has used on that edge, and the receiver's word of credit counts those
// that it has taken. Counters lie in GPU memory and advance by what was carried: arguments hold
// nothing that changes, and any operation may follow any other.
//
// A program runs in four phases for each unit of its slices (`oxccl_plan::lines`). Each warp of a
// channel has one of them: of two ranks (`flow.cuh`) one puts and one takes, of more (`more.cuh`)
// one may fold, or pass on, besides.
#pragma once

#include <type_traits>

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

// Keeps the compiler from computing a value anew wherever it is used, which takes longer than the
// register is worth.
template <typename T>
__device__ inline T kept(T value) {
  static_assert(sizeof(T) == 4 || sizeof(T) == 8, "a register or two");
  if constexpr (sizeof(T) == 4) {
    asm volatile("" : "+r"(value));
  } else {
    asm volatile("" : "+l"(value));
  }
  return value;
}

// A stretch of the user's memory; none if it is null.
struct Span {
  char* at;
  uint64_t bytes;

  __device__ Span() : at(nullptr), bytes(0) {}
  __device__ Span(const void* at, uint64_t bytes)
      : at(static_cast<char*>(const_cast<void*>(at))), bytes(bytes) {}

  // Returns whether so many bytes from a place on are there and aligned to 16.
  __device__ bool has(uint64_t from, uint32_t len) const {
    return from + len <= bytes && aligned(reinterpret_cast<uint64_t>(at));
  }
};

// What a warp carries: a message, or the collective that its peers are to announce next. Only the
// first thread of the warp uses it.
struct Carries {
  bool is_known;  // whether what a peer announces is compared with it
  int8_t step;    // of its waits
  uint32_t what;
  uint64_t count;
  const char* header;      // the slot with the header of the message that comes; null for none
  uint64_t header_number;  // of the line of that header
};

__device__ inline Carries& carries() {
  __shared__ Carries all[BLOCK_THREADS / 32];
  return all[threadIdx.x / 32];
}

// Waits of a warp give up when the peer has begun another collective than this one, or than the one
// after this message, as `await` does, and when one before differed that is not compared yet.
__device__ inline bool began_another(const Rank& r, int peer, bool& announced_before) {
  const Carries& own = carries();
  if (!own.is_known) return false;
  const volatile Shared* here = common(r);
  uint64_t operations = here->operations;
  for (uint64_t number = here->compared + 1; reached(operations + 1, number); number++) {
    const volatile Called& before = here->called[number % ANNOUNCEMENTS];
    bool is_before = reached(operations, number);
    uint64_t own_what = is_before ? before.what : own.what;
    uint64_t own_count = is_before ? before.count : own.count;
    uint64_t count, what;
    if (!announced(r, peer, number, count, what)) continue;
    if (what == own_what && count == own_count) continue;
    // What the peer did before its announcement is visible after it: it is looked for once more.
    if (announced_before) {
      differ(r, peer, number - 1, own_what, own_count, what, count);
      return true;
    }
    announced_before = true;
    fence();
    return false;
  }
  return false;
}

// The digest of all headers of messages; no collective has it.
constexpr uint32_t HEADER = 1u << 31;

// Tells the waits of this warp where a header may lie: in the slot of a number.
__device__ inline void expect_header(const char* slot, uint32_t number) {
  if ((threadIdx.x & 31) != 0) return;
  carries().header = slot;
  carries().header_number = number | uint64_t(HEADER) << 32;
}

// The same for a slot in which something else is awaited, unless a header is expected elsewhere: so
// a message that nobody receives is told to who waits for a collective.
struct HeaderInstead {
  bool is_here;

  __device__ HeaderInstead(const char* slot, uint32_t number, bool is_there = true)
      : is_here(is_there && (threadIdx.x & 31) == 0 && !carries().header) {
    if (is_here) expect_header(slot, number);
  }
  __device__ ~HeaderInstead() {
    if (is_here) carries().header = nullptr;
  }
};

// Returns whether a header that has come is that of another message.
__device__ inline bool is_other_header(const Rank& r, int peer) {
  const Carries& own = carries();
  uint4 v = load_volatile(own.header);
  uint64_t bytes = v.z | uint64_t(v.w) << 32;
  if (v.x == own.what && bytes == own.count) return false;
  differ(r, peer, common(r)->operations, own.what, own.count, v.x, bytes);
  return true;
}

// Waits give up when the header of another message than this one has come, and was there at the
// look before: what is awaited may have come before the header, which then is that of what follows.
__device__ inline bool has_other_header(const Rank& r, int peer, bool& there_before) {
  const Carries& own = carries();
  if (!own.header || load_number(own.header + 120) != own.header_number) return false;
  // The number of a line may be seen before all of its data.
  fence();
  if (there_before) return is_other_header(r, peer);
  there_before = true;
  return false;
}

// The wait of a warp. What is slow to look at is looked at by its first thread, out of line: the
// state of that lies in memory, and is set at the first such look.
struct WarpWait {
  struct Slow {
    Wait wait;
    uint32_t looks = 0;
    bool announced = false;
    bool has_header = false;
  };
  uint32_t spins = 0;
  union {
    Slow slow;
    char none;
  };

  __device__ WarpWait() : none(0) {}

  // Returns whether to give up; for the whole warp, after every look that found nothing.
  __device__ bool over(const Rank& r, int peer) {
    if (++spins & 63) return false;
    bool first = spins == 64;
    if (!first) spins = 64;
    return look(r, peer, first, &slow);
  }

  __device__ __noinline__ static bool look(const Rank& r, int peer, bool first, Slow* slow) {
    if (first) *slow = Slow();
    bool over = false;
    if ((threadIdx.x & 31) == 0) {
      slow->wait.spins = 63;
      over = slow->wait.over(r, peer, carries().step);
      if (!over && slow->wait.looks != slow->looks)
        over = began_another(r, peer, slow->announced) ||
               has_other_header(r, peer, slow->has_header);
      slow->looks = slow->wait.looks;
    }
    return __shfl_sync(~0u, over, 0);
  }
};

__device__ inline LineCounters* line_counters(const Rank& r, int channel, int peer) {
  return reinterpret_cast<LineCounters*>(r.line_counters) + channel * r.nranks + peer;
}

// The word in which a receiver counts the slots that it has taken, in the sender's memory.
__device__ inline volatile uint64_t* line_credit(const Rank& r, int sender, int channel,
                                                 int receiver) {
  return reinterpret_cast<volatile uint64_t*>(r.shared[sender] + r.line_credits_at) +
         channel * r.nranks + receiver;
}

// The first slot of a channel of lines from a rank to another.
__device__ inline char* line_slots(const Rank& r, int at, int from, int channel) {
  uint64_t channels = uint64_t(from < at ? from : from - 1) * r.line_channels + channel;
  return reinterpret_cast<char*>(r.shared[at] + r.lines_at) + channels * r.line_slots * UNIT_BYTES;
}

// Tells the waits of this warp where the header of a message would lie that nobody receives: in the
// next slot of a channel of lines from a peer of which something is awaited elsewhere. Does nothing
// if not `is_there`.
__device__ inline HeaderInstead header_beside(const Rank& r, int peer, int channel,
                                              bool is_there = true) {
  uint32_t number = uint32_t(line_counters(r, channel, peer)->taken) + 1;
  const char* slots = line_slots(r, r.rank, peer, channel);
  return HeaderInstead(slots + number % r.line_slots * UNIT_BYTES, number, is_there);
}

// A warp's ends of the channel's edges. The number of a line has a digest of the call in its upper
// half: what a peer puts for another call is never taken. Announcements tell calls that differ: the
// first block looks at them while it waits for the data, later calls where it did not have to.
// Where a message that nobody receives lies in the way, its header tells. ONE: there are edges with
// one peer, whose counters all threads hold; else the thread `p` of the warp holds those of the
// edges to and from the rank at place `p`.
template <bool ONE>
struct LineEnds {
  const Rank& r;
  uint32_t digest;
  int channel, puts_on;  // the channels on which the warp takes and puts
  int thread, second;    // where the thread's data of the second row lie in a unit
  uint32_t ring_mask;           // of the offset of a slot from the first one of its channel
  bool ends_line;               // whether the thread is the last one of a line
  uint32_t dead;                // not 0 if the communicator has failed
  uint64_t put, taken, room;    // slots that were put, that were taken, and that the peer has taken
  char *outgoing, *incoming;    // the slots at the one peer, and here
  // The words of credit of this rank here, and of the one peer there.
  volatile uint64_t *credit_here, *credit_there;
  char* staging;                // shared memory for the data of a slot

  // The warp takes on a channel, and puts on the one that many after it.
  __device__ LineEnds(const Rank& r, uint32_t digest, int channel, int one, char* staging,
                      int puts_after = 0)
      : r(r),
        digest(digest),
        channel(channel),
        puts_on(channel + puts_after),
        thread(kept(threadIdx.x & 31)),
        ring_mask(kept(uint32_t((r.line_slots - 1) * UNIT_BYTES))),
        staging(staging) {
    int peer = ONE ? one : thread < r.nranks ? thread : 0;
    put = const_cast<volatile LineCounters*>(line_counters(r, puts_on, peer))->put;
    taken = const_cast<volatile LineCounters*>(line_counters(r, channel, peer))->taken;
    room = *line_credit(r, r.rank, puts_on, peer);
    dead = faulty(r);
    second = kept(512 + (thread - (thread >> 3)) * 16);
    ends_line = (thread & 7) == 7;
    if (ONE) {
      outgoing = kept(slots_of(one, r.rank));
      incoming = kept(slots_of(r.rank, one));
      credit_here = kept(line_credit(r, r.rank, channel, one));
      credit_there = kept(line_credit(r, one, channel, r.rank));
    }
  }

  // Takes in what was loaded when this was made, the same for all threads; to be called before
  // anything is put or taken. What is loaded before that is under way at the same time.
  __device__ void settle() {
    if (ONE) room = __shfl_sync(~0u, room, 0);
    dead = __shfl_sync(~0u, dead, 0);
  }

  __device__ bool holds(int peer) const { return ONE ? thread == 0 : thread == peer; }
  __device__ uint64_t of(uint64_t counter, int peer) const {
    return ONE ? counter : __shfl_sync(~0u, counter, peer);
  }

  // Keeps the counters of the directions that the warp used for the next kernel; `one` is the one
  // peer.
  __device__ void leave(int one, bool puts, bool takes) const {
    if (ONE ? thread != 0 : thread >= r.nranks || thread == r.rank) return;
    int peer = ONE ? one : thread;
    if (puts) line_counters(r, puts_on, peer)->put = put;
    if (takes) line_counters(r, channel, peer)->taken = taken;
  }

  // A thread's place in the first slot of the channel from a rank to another.
  __device__ char* slots_of(int at, int from) const {
    return line_slots(r, at, from, from == int(r.rank) ? puts_on : channel) + thread * 16;
  }

  template <typename C>
  __device__ C* slot(C* first, uint32_t number) const {
    return first + (number * uint32_t(UNIT_BYTES) & ring_mask);
  }

  // Copies `len` bytes between user memory of any alignment and a warp's shared memory; all threads
  // make the same steps.
  __device__ static void copy_bytes(char* to, const char* from, uint32_t len) {
    uint64_t both = reinterpret_cast<uint64_t>(to) | reinterpret_cast<uint64_t>(from) | len;
    bool words = (both & 3) == 0;
    uint32_t thread = threadIdx.x & 31, size = words ? 4 : 1;
    __syncwarp();
#pragma unroll 1
    for (uint32_t i = 0; i < len; i += 32 * size) {
      uint32_t at = i + thread * size;
      if (at < len) {
        if (words) {
          *reinterpret_cast<volatile uint32_t*>(to + at) =
              *reinterpret_cast<const volatile uint32_t*>(from + at);
        } else {
          *const_cast<volatile char*>(to + at) = *const_cast<const volatile char*>(from + at);
        }
      }
      __syncwarp();
    }
  }

  // The bytes of a slot of a span.
  __device__ static uint32_t piece(const Span& span, uint64_t from) {
    uint64_t left = span.bytes > from ? span.bytes - from : 0;
    return left < UNIT_DATA_BYTES ? left : UNIT_DATA_BYTES;
  }

  // What is not whole, or not aligned, passes through the warp's shared memory.
  __device__ __noinline__ static char* bring(char* staging, Span span, uint64_t from) {
    copy_bytes(staging, span.at + from, piece(span, from));
    return staging;
  }

  __device__ __noinline__ static void carry_off(Span span, uint64_t from, const char* staging) {
    copy_bytes(span.at + from, staging, piece(span, from));
  }

  // Returns whether the threads of the warp are together: `__syncwarp` alone does not bring them
  // together where the compiler takes them for apart.
  __device__ static bool together() {
    uint32_t mask;
    __syncwarp();
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

  // Loads a thread's data of a slot, as they lie there; `first` and `other` are the places of those
  // of its rows.
  __device__ void load_rows(const char* first, const char* other, Pair& v) const {
    v.first = load_once(first);
    if (!ends_line) v.second = load_once(other);
  }

  __device__ Pair load_slot(const char* base) const {
    Pair v;
    load_rows(base + thread * 16, base + second, v);
    return v;
  }

  // Loads a thread's data of the slots of a unit that begins at `from`, as they lie there. `pack`
  // moves what would be in the place of the number; it waits for the load.
  template <int U>
  __device__ void load(const Span& span, uint64_t from, int slots, Pair (&v)[U]) const {
    const char* base = span.at + from;
    if (span.has(from, slots * UNIT_DATA_BYTES)) {
#pragma unroll
      for (int u = 0; u < U; u++)
        if (u < slots) v[u] = load_slot(base + u * UNIT_DATA_BYTES);
      return;
    }
#pragma unroll
    for (int u = 0; u < U; u++)
      if (u < slots) v[u] = load_slot(bring(staging, span, from + u * UNIT_DATA_BYTES));
  }

  // Loads user or shared memory, past the cache of the multiprocessor.
  __device__ static uint4 load_once(const char* at) {
    uint4 v;
    asm volatile("ld.relaxed.gpu.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(at)
                 : "memory");
    return v;
  }

  __device__ void pack(Pair& v) const {
    if (ends_line) v.second.x = v.first.z, v.second.y = v.first.w;
  }

  // The reverse of `pack`.
  __device__ Pair unpacked(Pair v) const {
    if (ends_line) v.first.z = v.second.x, v.first.w = v.second.y;
    return v;
  }

  __device__ void store_rows(char* first, char* other, Pair v) const {
    v = unpacked(v);
    *reinterpret_cast<uint4*>(first) = v.first;
    if (!ends_line) *reinterpret_cast<uint4*>(other) = v.second;
  }

  __device__ void store_slot(char* base, const Pair& v) const {
    store_rows(base + thread * 16, base + second, v);
  }

  template <int U>
  __device__ void store(const Span& span, uint64_t from, int slots, const Pair (&v)[U]) const {
    char* base = span.at + from;
    if (span.has(from, slots * UNIT_DATA_BYTES)) {
#pragma unroll
      for (int u = 0; u < U; u++)
        if (u < slots) store_slot(base + u * UNIT_DATA_BYTES, v[u]);
      return;
    }
#pragma unroll
    for (int u = 0; u < U; u++) {
      if (u >= slots) continue;
      __syncwarp();
      store_slot(staging, v[u]);
      carry_off(span, from + u * UNIT_DATA_BYTES, staging);
    }
  }

  // Waits until a word of credit has reached a target, or never will; returns the word.
  __device__ __noinline__ static uint64_t wait_room(const Rank& r, const volatile uint64_t* word,
                                                    int peer, uint64_t target) {
    WarpWait wait;
    for (;;) {
      uint64_t seen = __shfl_sync(~0u, *word, 0);
      if (reached(seen, target) || wait.over(r, peer)) return seen;
    }
  }

  // Loads the word of credit of the one peer; `grant` takes its value in when it has come.
  __device__ uint64_t load_room() const { return *credit_here; }

  __device__ void grant(uint64_t seen) {
    seen = __shfl_sync(~0u, seen, 0);
    if (reached(seen, room)) room = seen;
  }

  // Waits until a peer has room for so many slots; false when it will not have it.
  __device__ bool await_room(int peer, int slots) {
    uint64_t target = of(put, peer) + slots - r.line_slots;
    if (reached(of(room, peer), target)) return true;
    const volatile uint64_t* word = ONE ? credit_here : line_credit(r, r.rank, puts_on, peer);
    uint64_t seen = wait_room(r, word, peer, target);
    if (ONE || thread == peer) room = seen;
    dead |= !reached(seen, target);
    return !dead;
  }

  // The next slot on the edge to, or from, the rank that the thread holds, and its number.
  struct Next {
    uint64_t at;
    uint32_t number;

    // The thread's place in the slot on the edge to or from a rank.
    __device__ char* place(int peer) const {
      return reinterpret_cast<char*>(__shfl_sync(~0u, at, peer)) + (threadIdx.x & 31) * 16;
    }
    __device__ uint32_t number_of(int peer) const { return __shfl_sync(~0u, number, peer); }
  };

  __device__ Next next(bool puts) const {
    static_assert(!ONE, "the thread of a peer has its counters");
    int peer = thread < r.nranks ? thread : 0;
    uint32_t number = uint32_t(puts ? put : taken) + 1;
    char* first =
        puts ? line_slots(r, peer, r.rank, puts_on) : line_slots(r, r.rank, peer, channel);
    return {reinterpret_cast<uint64_t>(slot(first, number)), number};
  }

  // Waits until all ranks of a set have room for a slot; false when one will not have it.
  __device__ bool await_rooms(uint32_t peers) {
    uint32_t late = __ballot_sync(~0u, !reached(room, put + 1 - r.line_slots)) & peers;
#pragma unroll 1
    for (; late != 0; late &= late - 1)
      if (!await_room(__ffs(late) - 1, 1)) return false;
    return !dead;
  }

  // Returns what is stored in a slot of a number. The threads of a line have to store together.
  __device__ Pair numbered(uint32_t number, Pair v) const {
    if (ends_line) {
      v.first.z = v.second.z = number;
      v.first.w = v.second.w = digest;
    }
    return v;
  }

  // Puts the slot after the next `u` ones at the one peer, which has room for it.
  __device__ void put_slot(int u, const Pair& v) const {
    uint32_t number = uint32_t(put) + u + 1;
    Pair w = numbered(number, v);
    char* at = slot(outgoing, number);
    store_volatile(at, w.first);
    store_volatile(at + 512, w.second);
  }

  // Stores a slot of a number, whether or not the threads of the warp are together.
  __device__ void store_numbered(char* at, uint32_t number, const Pair& v, bool all) const {
    Pair w = numbered(number, v);
    if (all) {
      store_volatile(at, w.first);
      store_volatile(at + 512, w.second);
    } else {
      store_apart(at, ends_line, w);
    }
  }

  // Waits until the peer has room for the slots of a unit, and puts them; false when it will not
  // have it.
  template <int U>
  __device__ bool put_unit(int peer, int slots, const Pair (&v)[U]) {
    if (dead || !await_room(peer, slots)) return false;
    char* to = ONE ? outgoing : slots_of(peer, r.rank);
    uint32_t next = uint32_t(of(put, peer)) + 1;
    bool all = together();
#pragma unroll
    for (int u = 0; u < U; u++) {
      if (u < slots) store_numbered(slot(to, next + u), next + u, v[u], all);
    }
    if (ONE || thread == peer) put += slots;
    return true;
  }

  // The place of the number of a line of the next slots from a rank, of which there are up to 4:
  // the thread `t` looks at line `t`. `skip` slots were seen and are not given back yet.
  __device__ const char* number_at(int from, int skip) const {
    const char* first = (ONE ? incoming : slots_of(r.rank, from)) - thread * 16;
    return slot(first, line_number(from, skip)) + (thread & 7) * 128 + 120;
  }

  __device__ uint32_t line_number(int from, int skip) const {
    return uint32_t(of(taken, from)) + skip + 1 + (thread >> 3);
  }

  __device__ uint64_t look(int from, int slots, int skip) const {
    const char* at = number_at(from, skip);
    return thread < slots * 8 ? load_number(at) : 0;
  }

  // Waits until the lines of the next slots from a rank are there; false when they will not come.
  // `seen` is what the warp saw when it looked. A line is stored at once, but a load that meets it
  // may find its number and not yet all of its data: so data are loaded once the number was seen.
  __device__ bool await_lines(int from, int slots, uint64_t seen) {
    if (dead) return false;
    uint64_t wanted = line_number(from, 0) | uint64_t(digest) << 32;
    bool looks = thread < slots * 8;
    if (__all_sync(~0u, !looks || seen == wanted)) return true;
    const char* at = number_at(from, 0);
    dead = !wait_lines(r, from, looks ? at : nullptr, wanted);
    return !dead;
  }

  __device__ __noinline__ static bool wait_lines(const Rank& r, int from, const char* at,
                                                 uint64_t wanted) {
    WarpWait wait;
    HeaderInstead instead(at - 120, uint32_t(wanted));
    for (;;) {
      if (__all_sync(~0u, !at || load_number(at) == wanted)) return true;
      if (wait.over(r, from)) return false;
    }
  }

  // Loads a thread's data of the next slots from a rank, whose lines are there.
  template <int U>
  __device__ void fetch(int from, int slots, Pair (&v)[U]) const {
    const char* first = ONE ? incoming : slots_of(r.rank, from);
    uint32_t number = uint32_t(of(taken, from)) + 1;
#pragma unroll
    for (int u = 0; u < U; u++) {
      if (u >= slots) continue;
      const char* at = slot(first, number + u);
      v[u].first = load_volatile(at);
      v[u].second = load_volatile(at + 512);
    }
  }

  // Gives slots of a rank back, whose data were stored before: so they have been fetched.
  __device__ void give_back(int from, int slots) {
    __syncwarp();
    // The slot of a header that goes back may be written again; data told that it was right.
    if (ONE && thread == 0) carries().header = nullptr;
    if (ONE || thread == from) taken += slots;
    if (holds(from)) *(ONE ? credit_there : line_credit(r, from, channel, r.rank)) = taken;
  }

  // Gives a slot back to each rank of a set, as above.
  __device__ void give_back_all(uint32_t peers) {
    static_assert(!ONE, "the thread of a peer has its counters");
    __syncwarp();
    if (!(peers >> thread & 1)) return;
    taken += 1;
    *line_credit(r, thread, channel, r.rank) = taken;
  }
};

// What a thread has folded so far, in so many rows.
template <typename E, int ROWS = 2>
struct Sum {
  using B = typename E::Bits;
  static constexpr int N = 16 / sizeof(B);
  typename E::Lane lanes[ROWS][N];

  // `V` are the rows: a pair, or 16 bytes.
  template <int OP, typename V>
  __device__ void combine_slot(bool is_first, const V& v) {
    static_assert(sizeof(V) == ROWS * 16, "all rows");
    B b[ROWS][N];
    memcpy(b, &v, sizeof(V));
#pragma unroll
    for (int h = 0; h < ROWS; h++)
#pragma unroll
      for (int i = 0; i < N; i++) {
        typename E::Lane lane = E::widen(b[h][i]);
        lanes[h][i] = is_first ? lane : combine(OP, lanes[h][i], lane);
      }
  }

  template <typename V>
  __device__ void round(bool divide, int n, V& v) const {
    B b[ROWS][N];
    auto lane = [&](int h, int i) { return divide ? E::divide(lanes[h][i], n) : lanes[h][i]; };
#pragma unroll
    for (int h = 0; h < ROWS; h++)
#pragma unroll
      for (int i = 0; i < N; i++) {
        if constexpr (sizeof(B) == 2) {
          if (i % 2 != 0) continue;
          uint32_t two = E::round_two(lane(h, i), lane(h, i + 1));
          memcpy(&b[h][i], &two, 4);
        } else {
          b[h][i] = E::round(lane(h, i));
        }
      }
    memcpy(&v, b, sizeof(V));
  }
};

template <typename E>
__device__ __noinline__ Pair scale_pair(Pair v, uint64_t scale) {
  return {scale_line<E>(v.first, scale), scale_line<E>(v.second, scale)};
}

// Makes of what was loaded of a slot what is put or folded.
template <typename E, bool FOLDS, bool ONE>
__device__ inline void pack_operand(const LineEnds<ONE>& ends, const LineProgram& p, uint64_t scale,
                                    Pair& v) {
  ends.pack(v);
  if (FOLDS && p.call.scaled) v = scale_pair<E>(v, scale);
}

// A warp's shared memory for the data of a slot.
__device__ inline char* warp_staging() {
  __shared__ uint4 staging[LINE_WARPS][UNIT_DATA_BYTES / 16];
  return reinterpret_cast<char*>(staging[threadIdx.x / 32]);
}

// Tells the waits of this warp what it carries: a part of a collective.
__device__ inline void begin_carrying(const Collective& call) {
  if (threadIdx.x % 32 != 0) return;
  uint32_t what = call.descriptor_what;
  carries() = {blockIdx.x == 0, NO_STEP, what, call.descriptor_count, nullptr, 0};
}

// Returns a number of warps over that of a channel, rounded down.
__device__ inline uint32_t by_roles(const LineProgram& p, uint32_t warps) {
  return warps * p.roles_inverse >> 16;
}

// A warp's place among those that carry units. The channels of all blocks are numbered first over
// the first ones of each block, then over the second ones.
struct LinePlace {
  uint32_t index;  // of the channel in its block
  int role;

  __device__ explicit LinePlace(const LineProgram& p) : index(by_roles(p, threadIdx.x / 32)) {
    role = threadIdx.x / 32 - index * p.roles;
  }

  __device__ static uint32_t channels(const LineProgram& p) {
    return by_roles(p, blockDim.x / 32 - 1);
  }

  // Returns the number of a channel among all.
  __device__ static uint32_t number(const LineProgram& p, uint32_t index) {
    return index * p.blocks + blockIdx.x;
  }
};

// The blocks that carry units: all warps but the last one call `carry`, and the last one announces
// the collective and calls `watch`.
template <typename Carry, typename Watch>
__device__ inline void run_blocks(const LineProgram& program, Carry carry, Watch watch) {
  const Rank& r = program.call.rank;
  Counters* own = counters(r, blockIdx.x);
  Begin begin;
  uint32_t users = 0;
  if (is_watcher()) {
    // Answers are looked at last: they take as long as the announcement.
    uint32_t running = mark(&own->busy);
    if (blockIdx.x == 0) {
      users = mark_alone(&common(r)->line_users, LINE_COLLECTIVE);
      begin = announce(program.call, CALLS_AHEAD);
    }
    refuse(r, (running | users) != 0);
    watch();
  } else {
    carry();
  }
  __syncthreads();
  // What the warps of this block waited for is compared with the announcements of this collective.
  if (blockIdx.x == 0 && threadIdx.x == blockDim.x - 32) {
    count_operation(r, begin.number);
    if (users == 0) unmark_among(&common(r)->line_users, LINE_COLLECTIVE);
  }
  end_together(r, begin);
  if (threadIdx.x == 0) leave(own);
}

// The blocks of a program that carry something; `run` moves the units of a channel in one of some
// roles, which a warp each has, from the first unit on in steps, and the last warp calls `watch`
// besides. Units go to channels in turn, first to one of each block. Which channels have a unit
// depends on facts that all ranks share.
template <typename Run, typename Watch>
__device__ inline void run_lines(const LineProgram& program, Run run, Watch watch) {
  auto carry = [&] {
    LinePlace place(program);
    uint32_t channel = blockIdx.x * by_roles(program, LINE_WARPS) + place.index;
    uint64_t first = LinePlace::number(program, place.index);
    uint64_t step = uint64_t(LinePlace::channels(program)) * program.blocks;
    if (first < program.units) run(place.role, channel, first, step);
  };
  run_blocks(program, carry, watch);
}

}  // namespace oxccl
