// Runs a rank's program over edges: messages go from rank to rank, on one host or on several, in
// windows that may overlap. Each block uses a lane of every edge, and takes a share of the
// elements.
#pragma once

#include "interpret.cuh"
#include "lanes.cuh"

namespace oxccl {

// Memory of a block: steps of its program, and the data of a packed message.
struct EdgeMemory {
  static constexpr uint32_t STEPS = 64;
  EdgeStep steps[STEPS];
  Packed packed;
};

template <typename E>
struct EdgeInterpreter {
  const EdgeProgram& p;
  EdgeMemory& memory;
  uint64_t scale, number;  // the user's scalar, and the number of the collective
  Cut window;              // the current one
  uint64_t scratch;        // the offset of its scratch in that of the lane

  using B = typename E::Bits;
  static constexpr int N = 16 / sizeof(B);

  __device__ const Rank& rank() const { return p.call.rank; }

  // The address of a slice, and its bytes.
  __device__ char* find(const Slice& s, uint64_t& len) const {
    uint64_t first, last;
    window.range(s, p.parts, first, last);
    len = (last - first) * p.call.element_bytes;
    if (s.buffer == SCRATCH) {
      uint64_t at = blockIdx.x * p.lane_scratch_bytes + scratch + s.block * p.scratch_bytes;
      return reinterpret_cast<char*>(rank().scratch) + at;
    }
    uint64_t base = s.buffer == INPUT ? p.call.input : p.call.output;
    uint64_t at = s.block * p.call.count + window.start + first;
    return reinterpret_cast<char*>(base) + at * p.call.element_bytes;
  }

  __device__ bool multiplied(const Slice& s) const { return p.call.scaled && s.buffer == INPUT; }

  // Calls a function with the place of each of this thread's lines, and the bytes from there on.
  template <typename Each>
  __device__ static void each_line(uint64_t len, Each each) {
    for (uint64_t at = threadIdx.x * 16; at < len; at += STEP) each(at, len - at);
  }

  template <typename Load>
  __device__ void copy(char* to, const char* from, uint64_t len, bool multiply, Load load) const {
    copy_slice<E>(to, from, len, multiply, scale, load);
  }

  __device__ static void widen(uint4 v, typename E::Lane (&lanes)[N]) {
    B b[N];
    memcpy(b, &v, 16);
#pragma unroll
    for (int i = 0; i < N; i++) lanes[i] = E::widen(b[i]);
  }

  __device__ uint4 rounded(const typename E::Lane (&lanes)[N], bool finish) const {
    bool divide = finish && p.call.op == AVG;
    B b[N];
#pragma unroll
    for (int i = 0; i < N; i++) b[i] = E::round(divide ? E::divide(lanes[i], p.nranks) : lanes[i]);
    uint4 v;
    memcpy(&v, b, 16);
    return v;
  }

  // Folds what came over an edge with a slice of this rank.
  __device__ void fold(const EdgeStep& s, char* to, const char* came, const char* own,
                       uint64_t len) const {
    bool fits = aligned(reinterpret_cast<uint64_t>(to) | reinterpret_cast<uint64_t>(own));
    bool multiply = multiplied(s.src);
    each_line(len, [&](uint64_t at, uint64_t left) {
      uint4 theirs = load_slot(came + at), mine = load_line(own + at, left, fits);
      if (multiply) mine = scale_line<E>(mine, scale);
      typename E::Lane a[N], b[N];
      widen(s.incoming_first ? theirs : mine, a);
      widen(s.incoming_first ? mine : theirs, b);
#pragma unroll
      for (int i = 0; i < N; i++) a[i] = combine(p.call.op, a[i], b[i]);
      store_line(to + at, left, fits, rounded(a, s.finish));
    });
  }

  // Folds blocks of scratch in their order, with a slice of this rank in their midst.
  __device__ void fold_blocks(const EdgeStep& s) const {
    uint64_t len;
    const char* all = find(s.src, len);
    const char* own = find(s.own, len);
    char* to = find(s.dst, len);
    // What a switch has reduced is only divided, if at all.
    bool divides = s.finish && p.call.op == AVG;
    if (s.count == 1 && own == to && !divides && !multiplied(s.own)) return;
    bool fits = aligned(reinterpret_cast<uint64_t>(to) | reinterpret_cast<uint64_t>(own));
    bool multiply = multiplied(s.own);
    each_line(len, [&](uint64_t at, uint64_t left) {
      typename E::Lane folded[N], lanes[N];
      for (uint32_t from = 0; from < s.count; from++) {
        bool mine = from == s.peer;
        const char* base = mine ? own : all + from * p.scratch_bytes;
        uint4 v = load_line(base + at, left, fits);
        if (mine && multiply) v = scale_line<E>(v, scale);
        widen(v, lanes);
#pragma unroll
        for (int i = 0; i < N; i++)
          folded[i] = from == 0 ? lanes[i] : combine(p.call.op, folded[i], lanes[i]);
      }
      store_line(to + at, left, fits, rounded(folded, s.finish));
    });
  }

  // Waits for a message or a slot, and moves the data; a message without bytes is not sent.
  __device__ bool pass(const EdgeStep& s, int index) const {
    bool sends = s.kind == STEP_SEND;
    uint64_t len, own_len;
    char* data = find(sends ? s.src : s.dst, len);
    if (len == 0) return true;
    uint64_t call = p.followed ? p.call.call : 0;
    Label label{p.call.descriptor_what, p.call.descriptor_count, number, index, call};
    LaneCounters* counted = lane_counters(rank(), s.peer * 2 + sends, blockIdx.x);
    Lane lane(rank(), memory.packed, s.peer, blockIdx.x, counted);
    if (sends) {
      char* slot = lane.begin_send(label, len);
      if (!slot) return false;
      copy(slot, data, len, multiplied(s.src), load_line);
      lane.end_send(label, len);
    } else {
      const char* slot = lane.begin_receive(label, len);
      if (!slot) return false;
      if (s.kind == STEP_RECEIVE) {
        auto load = [](const char* at, uint64_t, bool) { return load_slot(at); };
        copy(data, slot, len, false, load);
      } else {
        fold(s, data, slot, find(s.src, own_len), len);
      }
      lane.end_receive();
    }
    if (threadIdx.x == 0) lane.leave(counted);
    return true;
  }

  __device__ bool step(const EdgeStep& s, int index) const {
    sync_movers();
    uint64_t len;
    switch (s.kind) {
      case STEP_COPY: {
        const char* from = find(s.src, len);
        char* to = find(s.dst, len);
        if (from != to || multiplied(s.src)) copy(to, from, len, multiplied(s.src), load_line);
        return true;
      }
      case STEP_FOLD: fold_blocks(s); return true;
      default: return pass(s, index);
    }
  }

  // Returns a step. Those that the argument lacks are fetched from memory of the host, some at a
  // time, of which `first` is the number of the first one.
  __device__ const EdgeStep& step_of(uint32_t i, uint32_t& first) const {
    constexpr uint32_t HELD = EdgeMemory::STEPS;
    if (i < ARGUMENT_STEPS) return p.first_steps[i];
    if (i < first || i >= first + HELD) {
      sync_movers();
      first = i / HELD * HELD;
      uint32_t mine = first + threadIdx.x;
      if (threadIdx.x < HELD && mine < p.round_ends[p.rounds - 1])
        memory.steps[threadIdx.x] = reinterpret_cast<const EdgeStep*>(p.steps)[mine];
      sync_movers();
    }
    return memory.steps[i - first];
  }

  // Runs the steps of a round of a window.
  __device__ bool run_round(uint32_t round, uint32_t& held_from) const {
    for (uint32_t i = round > 0 ? p.round_ends[round - 1] : 0; i < p.round_ends[round]; i++)
      if (!step(step_of(i, held_from), i)) return false;
    return true;
  }

  // Carries out the rounds of all windows in the order of `next_round` in oxccl_plan: in each turn
  // a window begins, and those before it have their next round, the oldest first.
  __device__ void run() {
    uint32_t held_from = ~0u - EdgeMemory::STEPS;
    window.align = p.align_elems;
    uint64_t first = blockIdx.x * p.share_elems, last = first + p.share_elems;
    if (last > p.call.count) last = p.call.count;
    if (first >= last) return;
    uint64_t windows = (last - first + p.window_elems - 1) / p.window_elems;
    for (uint64_t turn = 0; turn < windows + (p.rounds - 1) * ROUND_TURNS; turn++) {
      for (uint32_t round = p.rounds; round-- > 0;) {
        uint64_t at_window = turn - round * ROUND_TURNS;  // beyond all before the first one
        if (at_window >= windows) continue;
        uint64_t at = first + at_window * p.window_elems;
        window.open(at, last - at, p.window_elems, p.parts);
        scratch = at_window % p.scratch_windows * p.window_scratch_bytes;
        if (!run_round(round, held_from)) return;
      }
    }
  }
};

// Writes down what this rank calls, for ranks of other hosts that wait in something else.
__device__ inline void remember(const EdgeProgram& program, uint64_t number) {
  Begun* here = reinterpret_cast<Begun*>(program.begun) + number % REMEMBERED;
  volatile Begun* words = here;
  words->number = 0;
  fence();
  words->what = program.call.descriptor_what;
  words->count = program.call.descriptor_count;
  store_release(&here->number, number);
}

// Marks the block's lanes as running, as an exchange does: the watchers of the block take part.
__device__ inline void enter_lanes(const EdgeProgram& program) {
  for (uint32_t queue = threadIdx.x & 31; queue < 2 * program.peers; queue += 32) {
    const Rank& r = program.call.rank;
    if (atomicExch(&lane_counters(r, queue, blockIdx.x)->busy, 1) != 0)
      fail(r, FAULT_OVERLAP, -1, -1);
  }
}

__device__ inline void leave_lanes(const EdgeProgram& program) {
  for (uint32_t queue = threadIdx.x; queue < 2 * program.peers; queue += blockDim.x)
    leave(lane_counters(program.call.rank, queue, blockIdx.x));
}

template <typename E>
__device__ inline void run_edges(const EdgeProgram& program) {
  const Rank& r = program.call.rank;
  Counters* own = counters(r, blockIdx.x);
  __shared__ EdgeMemory memory;
  // The first block counts the collective once its peers on this host have announced it; the others
  // may begin before or after that, and do without the number.
  __shared__ uint64_t number;
  Begin begin;
  if (threadIdx.x == 0) number = blockIdx.x == 0 ? common(r)->operations + 1 : 0;
  if (__syncthreads_or(faulty(r))) return;
  if (is_watcher()) {
    enter(r, own);
    enter_lanes(program);
    if (blockIdx.x == 0) {
      if ((threadIdx.x & 31) == 0) remember(program, number);
      begin = begin_together(program.call);
    }
  } else {
    EdgeInterpreter<E>{program, memory, scale_of(program.call), number, {}, 0}.run();
  }
  __syncthreads();
  end_together(program.call.rank, begin);
  leave_lanes(program);
  if (threadIdx.x == 0) leave(own);
}

}  // namespace oxccl

// A kernel per element type, named by its number.
#define OXCCL_EDGES(NUMBER, ...)                                                    \
  OXCCL_KERNEL(oxccl_edges_##NUMBER, (BLOCK_THREADS), oxccl::EdgeProgram,           \
               using namespace oxccl; run_edges<__VA_ARGS__>(argument))
OXCCL_ELEMENTS(OXCCL_EDGES)
