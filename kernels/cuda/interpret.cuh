// Runs a rank's program: each block is a channel with a share of the elements, which it takes
// window by window, and with signals, stage slots and counters of its own. So a channel is the
// verified protocol over a smaller buffer, and blocks never wait for blocks of other indices.
#pragma once

#include "agree.cuh"
#include "arith.cuh"

namespace oxccl {

// Loads and stores of up to 16 bytes of a buffer of any alignment. What others wrote since the last
// wait is read past the first-level cache.
__device__ inline bool aligned(uint64_t at) { return (at & 15) == 0; }

__device__ inline uint4 load_line(const char* at, uint64_t len, bool fits) {
  if (fits && len >= 16) return __ldcg(reinterpret_cast<const uint4*>(at));
  uint64_t low = 0, high = 0, both = reinterpret_cast<uint64_t>(at) | len;
  // The loads come one after the other, so they are as few as can be.
  int unit = (both & 7) == 0 ? 8 : (both & 3) == 0 ? 4 : 1;
#pragma unroll 1
  for (int i = 0; i < 16 && i < len; i += unit) {
    uint64_t v = unit == 8   ? *reinterpret_cast<const volatile uint64_t*>(at + i)
                 : unit == 4 ? *reinterpret_cast<const volatile uint32_t*>(at + i)
                             : *reinterpret_cast<const volatile unsigned char*>(at + i);
    if (i < 8) {
      low |= v << (8 * i);
    } else {
      high |= v << (8 * (i - 8));
    }
  }
  return {uint32_t(low), uint32_t(low >> 32), uint32_t(high), uint32_t(high >> 32)};
}

__device__ inline void store_line(char* at, uint64_t len, bool fits, uint4 v) {
  if (fits && len >= 16) {
    *reinterpret_cast<uint4*>(at) = v;
    return;
  }
  uint64_t low = v.x | uint64_t(v.y) << 32, high = v.z | uint64_t(v.w) << 32;
  bool words = ((reinterpret_cast<uint64_t>(at) | len) & 3) == 0;
  int unit = words ? 4 : 1;
#pragma unroll 1
  for (int i = 0; i < 16 && i < len; i += unit) {
    uint64_t shifted = i < 8 ? low >> (8 * i) : high >> (8 * (i - 8));
    if (words) {
      *reinterpret_cast<uint32_t*>(at + i) = uint32_t(shifted);
    } else {
      at[i] = char(shifted);
    }
  }
}

template <typename E>
__device__ inline uint4 scale_line(uint4 v, uint64_t scale) {
  constexpr int N = 16 / sizeof(typename E::Bits);
  typename E::Bits b[N];
  memcpy(b, &v, 16);
#pragma unroll
  for (int i = 0; i < N; i++) b[i] = scaled<E>(b[i], scale);
  memcpy(&v, b, 16);
  return v;
}

// Bytes from a thread's line to its next one: all movers of a block go over a slice side by side.
constexpr uint64_t STEP = (BLOCK_THREADS - 32) * 16;
// Lines of a thread's copy that are under way at once.
constexpr int COPIES_AHEAD = 8;

// The window of a block's share that a program works on, and how it is cut into parts.
struct Cut {
  uint64_t start, elems, share, rest, align;

  __device__ void open(uint64_t first, uint64_t left, uint64_t most, uint64_t parts) {
    start = first;
    elems = left < most ? left : most;
    uint64_t units = (elems + align - 1) / align;
    share = units / parts;
    rest = units % parts;
  }

  // As `Geometry::range` in oxccl_plan.
  __device__ uint64_t bound(uint64_t part) const {
    uint64_t at = (part * share + (part < rest ? part : rest)) * align;
    return at < elems ? at : elems;
  }

  // The first element of a slice and the one after its last, of a window that is cut into `parts`.
  __device__ void range(const Slice& s, uint64_t parts, uint64_t& first, uint64_t& last) const {
    first = parts > 1 ? bound(s.part) : 0;
    last = parts > 1 ? bound(s.part + s.parts) : elems;
  }
};

// Copies lines from `at` on, as many as are under way at once. ALL: they all lie before `end`.
template <bool ALL, typename Load>
__device__ inline void copy_lines(char* to, const char* from, uint64_t at, uint64_t end,
                                  Load load) {
  auto is_there = [&](int k) { return ALL || at + k * STEP < end; };
  uint4 v[COPIES_AHEAD];
#pragma unroll
  for (int k = 0; k < COPIES_AHEAD; k++)
    if (is_there(k)) v[k] = load(from + at + k * STEP, 16, true);
#pragma unroll
  for (int k = 0; k < COPIES_AHEAD; k++)
    if (is_there(k)) store_line(to + at + k * STEP, 16, true, v[k]);
}

// Copies a slice with all movers of a block, and multiplies it by the user's scalar where asked.
// `load` reads a line as `load_line` does.
template <typename E, typename Load>
__device__ inline void copy_slice(char* to, const char* from, uint64_t len, bool multiply,
                                  uint64_t scale, Load load) {
  bool fits = aligned(reinterpret_cast<uint64_t>(to) | reinterpret_cast<uint64_t>(from));
  uint64_t at = threadIdx.x * 16, whole = fits && !multiply ? len & ~15ull : 0;
  for (; at + (COPIES_AHEAD - 1) * STEP < whole; at += COPIES_AHEAD * STEP)
    copy_lines<true>(to, from, at, whole, load);
  if (at < whole) copy_lines<false>(to, from, at, whole, load);
  for (at = whole + threadIdx.x * 16; at < len; at += STEP) {
    uint4 v = load(from + at, len - at, fits);
    if (multiply) v = scale_line<E>(v, scale);
    store_line(to + at, len - at, fits, v);
  }
}

// The addresses at which a fold reads, by rank, and those at which it writes.
struct Ends {
  char* sources[MAX_RANKS];
  char* targets[MAX_RANKS];
};

template <typename E>
struct Interpreter {
  const Program& p;
  const Way& way;
  const Reach& reach;
  Ends& ends;
  Counters* own;
  bool moved;  // whether the blocks are where they belong already
  uint64_t scale, window_elems;
  uint64_t phase, base, windows, need[2];
  Cut window;            // the current one
  uint64_t inbox_bytes;  // of an inbox's block in it

  __device__ const Rank& rank() const { return p.call.rank; }

  __device__ void open(uint64_t first, uint64_t left) {
    window.align = way.align_elems;
    window.open(first, left, window_elems, way.parts);
    inbox_bytes = (window.share + (window.rest > 0)) * way.align_elems * p.call.element_bytes;
    base = phase;
    phase += way.entered;
  }

  __device__ void range(const Slice& s, uint64_t& offset, uint64_t& len) const {
    uint64_t first, last;
    window.range(s, way.parts, first, last);
    len = (last - first) * p.call.element_bytes;
    if (s.buffer == INBOX) {
      int n = rank().nranks;
      offset = s.block / n * (n - 1) * inbox_bytes;
      return;
    }
    uint64_t at;
    if (s.buffer == STAGE) {
      at = s.block * window_elems + first;
    } else {
      at = s.block * p.call.count + window.start + first;
    }
    offset = at * p.call.element_bytes;
  }

  // Bytes from the first block of a group in a rank's inbox to the writer's block, as `inbox_place`
  // in oxccl_plan.
  __device__ uint64_t inbox(int owner, int writer) const {
    int at = writer - owner - 1;
    return (at < 0 ? at + rank().nranks : at) * inbox_bytes;
  }

  // The address of a slice at a rank; `range` gave the offset.
  __device__ char* slice_at(int at, const Slice& s, uint64_t offset) const {
    if (s.buffer == INBOX) offset += inbox(at, s.block % rank().nranks);
    return place(at, s.buffer, offset);
  }

  __device__ char* place(int at, int buffer, uint64_t offset) const {
    switch (buffer) {
      case INPUT: {
        uint64_t base = at == rank().rank ? p.call.input : reach.inputs[at];
        return reinterpret_cast<char*>(base) + offset;
      }
      case OUTPUT: {
        uint64_t base = at == rank().rank ? p.call.output : reach.outputs[at];
        return reinterpret_cast<char*>(base) + offset;
      }
      default: {
        uint64_t slot = (blockIdx.x * 2 + (windows & 1)) * reach.stage_slot_bytes;
        return reinterpret_cast<char*>(reach.stages[at] + slot) + offset;
      }
    }
  }

  __device__ bool multiplied(int at, int buffer) const {
    return p.call.scaled && buffer == INPUT && at == rank().rank;
  }

  __device__ void copy(char* to, const char* from, uint64_t len, bool multiply) const {
    copy_slice<E>(to, from, len, multiply, scale, load_line);
  }

  // A fold of what all ranks have at the same place, written to all targets.
  struct Fold {
    uint64_t len;
    int targets, multiplied;  // how many; which rank's, -1 for none
    bool divide;
  };

  // WHOLE: lines that are all whole and aligned. PARTLY: such lines, as far as they lie before the
  // end. ANY: a piece of any size and alignment.
  enum Shape { WHOLE, PARTLY, ANY };

  // Folds the ranks' lines at LINES places before `end`, in rank order.
  template <int OP, int LINES, Shape SHAPE>
  __device__ void fold_lines(const Fold& f, uint64_t at, uint64_t end) const {
    auto is_there = [&](int l) { return SHAPE != PARTLY || at + l * STEP < end; };
    constexpr bool FITS = SHAPE != ANY;
    using B = typename E::Bits;
    constexpr int N = 16 / sizeof(B), AHEAD = 2;
    const int n = rank().nranks;
    typename E::Lane lanes[LINES][N];
    for (int from = 0; from < n; from += AHEAD) {
      uint4 v[AHEAD][LINES];
#pragma unroll
      for (int k = 0; k < AHEAD; k++) {
        if (from + k >= n) continue;
        const char* base = ends.sources[from + k] + at;
#pragma unroll
        for (int l = 0; l < LINES; l++)
          if (is_there(l)) v[k][l] = load_line(base + l * STEP, FITS ? 16 : end - at, FITS);
      }
#pragma unroll
      for (int k = 0; k < AHEAD; k++) {
        if (from + k >= n) continue;
        bool multiply = from + k == f.multiplied;
#pragma unroll
        for (int l = 0; l < LINES; l++) {
          if (multiply) v[k][l] = scale_line<E>(v[k][l], scale);
          B b[N];
          memcpy(b, &v[k][l], 16);
#pragma unroll
          for (int i = 0; i < N; i++) {
            typename E::Lane lane = E::widen(b[i]);
            lanes[l][i] = from + k == 0 ? lane : combine(OP, lanes[l][i], lane);
          }
        }
      }
    }
    uint4 v[LINES];
#pragma unroll
    for (int l = 0; l < LINES; l++) {
      B b[N];
#pragma unroll
      for (int i = 0; i < N; i++)
        b[i] = E::round(f.divide ? E::divide(lanes[l][i], n) : lanes[l][i]);
      memcpy(&v[l], b, 16);
    }
    for (int i = 0; i < f.targets; i++) {
      char* base = ends.targets[i] + at;
#pragma unroll
      for (int l = 0; l < LINES; l++)
        if (is_there(l)) store_line(base + l * STEP, FITS ? 16 : end - at, FITS, v[l]);
    }
  }

  template <int OP>
  __device__ void fold(const Fold& f, bool fits) const {
    // The loads under way have to cover the time of a load from a peer; small elements fill the
    // registers with one line.
    constexpr int BYTES = sizeof(typename E::Bits);
    constexpr int LINES = OP != SUM || BYTES == 1 ? 1 : BYTES == 2 ? 3 : 4;
    uint64_t at = threadIdx.x * 16, whole = fits ? f.len & ~15ull : 0;
    for (; at + (LINES - 1) * STEP < whole; at += LINES * STEP)
      fold_lines<OP, LINES, WHOLE>(f, at, whole);
    if (LINES > 1 && at < whole) fold_lines<OP, LINES, PARTLY>(f, at, whole);
    for (at = whole + threadIdx.x * 16; at < f.len; at += STEP)
      fold_lines<OP, 1, ANY>(f, at, f.len);
  }

  // The address to which the i-th copy of a fold's result goes.
  __device__ char* target(const Step& s, int i, uint64_t dst, uint64_t second) const {
    int me = rank().rank, n = rank().nranks;
    int at = me + i < n ? me + i : me + i - n;
    switch (s.to) {
      case TO_PEER: return place(s.peer, s.dst.buffer, dst);
      case TO_EVERYONE: return place(at, s.dst.buffer, dst);
      case TO_INBOXES:
        if (at != me) return place(at, INBOX, second + inbox(at, me));
        break;
      case TO_BOTH:
        if (i == 1) return place(me, s.second.buffer, second);
        break;
    }
    return place(me, s.dst.buffer, dst);
  }

  __device__ void reduce(const Step& s) const {
    Fold f;
    uint64_t src, own, dst, second;
    range(s.src, src, f.len);
    range(s.own, own, f.len);
    range(s.second, second, f.len);
    range(s.dst, dst, f.len);
    int me = rank().rank, n = rank().nranks, i = threadIdx.x;
    bool all = s.to == TO_EVERYONE || s.to == TO_INBOXES;
    f.targets = all ? n : s.to == TO_BOTH ? 2 : 1;
    f.multiplied = multiplied(me, s.own.buffer) ? me : -1;
    f.divide = s.finish && p.call.op == AVG;
    // The fold before may still read `ends`.
    sync_movers();
    uint64_t bits = 0;
    if (i < n) {
      bool inboxes = s.src.buffer == INBOX;
      char* from = place(inboxes ? me : i, s.src.buffer, inboxes ? src + inbox(me, i) : src);
      if (i == me) from = place(me, s.own.buffer, own);
      ends.sources[i] = from;
      bits |= reinterpret_cast<uint64_t>(from);
    }
    if (i < f.targets) {
      char* to = target(s, i, dst, second);
      ends.targets[i] = to;
      bits |= reinterpret_cast<uint64_t>(to);
    }
    // Only this rank's own accesses depend on `fits`, so ranks may differ.
    bool fits = !any_mover(!aligned(bits));
    switch (p.call.op) {
      case PROD: fold<PROD>(f, fits); break;
      case MAX: fold<MAX>(f, fits); break;
      case MIN: fold<MIN>(f, fits); break;
      default: fold<SUM>(f, fits);
    }
  }

  // One thread per peer waits; false when a signal will not come.
  __device__ bool wait(uint32_t from, uint64_t target, int step) const {
    int peer = threadIdx.x;
    bool over = false;
    bool waits = peer < rank().nranks && peer != rank().rank && (from == ALL_PEERS || from == peer);
    if (waits) {
      const uint64_t* word = signal_word(rank(), rank().rank, blockIdx.x, peer);
      Wait w;
      while (!reached(load_acquire(word), target)) {
        over = w.over(rank(), peer, step);
        if (over) break;
      }
    }
    return !any_mover(over);
  }

  __device__ void signal() {
    phase += 1;
    sync_movers();
    int peer = threadIdx.x;
    if (peer < rank().nranks && peer != rank().rank)
      store_release(signal_word(rank(), peer, blockIdx.x, rank().rank), phase);
  }

  __device__ bool step(const Step& s, int index) {
    uint64_t from, to, len;
    if (s.after) sync_movers();
    switch (s.kind) {
      case STEP_ACQUIRE: return wait(ALL_PEERS, need[windows & 1], index);
      case STEP_WAIT: return wait(s.peer, base + s.signal, index);
      case STEP_SIGNAL: signal(); return true;
      case STEP_REDUCE: reduce(s); return true;
    }
    if (moved) return true;
    range(s.src, from, len);
    range(s.dst, to, len);
    int at = s.kind == STEP_GET ? s.peer : rank().rank;
    const char* src = slice_at(at, s.src, from);
    char* dst = slice_at(s.kind == STEP_PUT ? s.peer : rank().rank, s.dst, to);
    bool multiply = multiplied(at, s.src.buffer);
    if (src != dst || multiply) copy(dst, src, len, multiply);
    return true;
  }

  __device__ void run() {
    phase = own->phase;
    windows = own->windows;
    need[0] = own->slot_need[0];
    need[1] = own->slot_need[1];
    uint64_t first = blockIdx.x * p.share_elems, last = first + p.share_elems;
    if (last > p.call.count) last = p.call.count;
    for (uint64_t at = first; at < last; at += window_elems) {
      open(at, last - at);
      for (int i = 0; i < way.nsteps; i++)
        if (!step(way.steps[i], i)) return;
      if (way.staged) {
        need[windows & 1] = base + way.done_signal;
        windows += 1;
      }
      phase = base + way.signals;
    }
    sync_movers();
    if (threadIdx.x == 0) {
      own->phase = phase;
      own->windows = windows;
      own->slot_need[0] = need[0];
      own->slot_need[1] = need[1];
    }
  }
};

template <typename E>
__device__ inline void run_program(const Program& program) {
  const Rank& r = program.call.rank;
  Counters* own = counters(r, blockIdx.x);
  __shared__ Reach reach;
  __shared__ Ends ends;
  Begin begin;
  if (__syncthreads_or(faulty(r))) return;
  if (is_watcher()) {
    enter(r, own);
    if (blockIdx.x == 0) begin = begin_together(program.call, program.engines != 0);
  } else {
    int taken = agree(program, own, reach, IN_TIME);
    if (taken >= 0) {
      const Way& way = program.ways[taken];
      bool large = taken == WAY_STAGED && reach.stage_slot_bytes == STAGE_SLOT_BYTES;
      uint64_t window = large ? way.large_window_elems : way.window_elems;
      bool moved = taken == WAY_IN_PLACE && program.engines && common(r)->moved;
      Interpreter<E>{program, way, reach, ends, own, moved, scale_of(program.call), window}.run();
    }
  }
  __syncthreads();
  end_together(r, begin);
  if (threadIdx.x == 0) leave(own);
}

}  // namespace oxccl

// A kernel per element type, named by its number; what does not fold runs as bytes.
#define OXCCL_PROGRAM(NUMBER, ...)                                              \
  OXCCL_KERNEL(oxccl_program_##NUMBER, (BLOCK_THREADS), oxccl::Program,         \
               using namespace oxccl; run_program<__VA_ARGS__>(argument))
OXCCL_ELEMENTS(OXCCL_PROGRAM)

