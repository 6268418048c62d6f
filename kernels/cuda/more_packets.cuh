// Small programs of more than two ranks, in packets. Their time is that of code that is fetched and
// of trips to memory, one after the other. So every edge has a warp of its own at both ends, which
// does what it would do between two ranks, and one warp more folds what all peers put, or passes it
// on.
#pragma once

#include "more.cuh"

namespace oxccl {

// What a warp of a channel does: the first ones put to a peer each, the next one has the middle
// phase if the rank has one, and the next ones take from a peer each.
struct PacketRole {
  enum { PUTS, FOLDS, TAKES, NOTHING } what;
  int peer;

  __device__ PacketRole(const LineProgram& p, int role) : what(NOTHING), peer(0) {
    int puts = __popc(p.puts), middles = p.middle_from != 0;
    if (role < puts) {
      what = PUTS;
      peer = peer_of(p.call.rank, p.puts, role);
    } else if (role < puts + middles) {
      what = FOLDS;
    } else if (role < puts + middles + __popc(p.takes)) {
      what = TAKES;
      peer = peer_of(p.call.rank, p.takes, role - puts - middles);
    }
  }

 private:
  // The rank at a place of a set, those after this rank first.
  __device__ static int peer_of(const Rank& r, uint32_t set, int place) {
    Peers peers(r, set);
#pragma unroll 1
    for (; place > 0; place--) peers.next();
    return peers.next();
  }
};

// Of the warps of a channel those that put have begun their progress once the others go on.
template <bool PUTS>
__device__ inline void begin_channel(const LineProgram& p, int index) {
  int puts = __popc(p.puts), others = (p.middle_from != 0) + __popc(p.takes);
  if (PUTS && (threadIdx.x & 31) == 0) begin_progress(threadIdx.x / 32, true);
  __syncwarp();
  if (PUTS) {
    asm volatile("bar.arrive %0, %1;" ::"r"(2 + index), "r"((puts + others) * 32) : "memory");
  } else {
    asm volatile("bar.sync %0, %1;" ::"r"(2 + index), "r"((puts + others) * 32) : "memory");
  }
}

// A warp's part of a program.
template <typename E, bool FOLDS>
struct PacketEdges {
  const LineProgram& p;
  uint64_t first, step;
  int channel, index;  // the channel, and its number among those of the block

  __device__ const Rank& rank() const { return p.call.rank; }

  __device__ Flow flow(bool puts) const {
    Flow f;
    f.slots = SLOT_OF_PACKETS;
    int reader = puts ? threadIdx.x / 32 : index * p.roles;
    f.reader = p.overlaps ? reader : -1;
    f.readers = __popc(p.puts);
    f.begin(first, step, p.units);
    return f;
  }

  template <bool PUTS, typename Multiply>
  __device__ void carry(int peer, const Multiply& multiply) const {
    const LinePeer& with = p.peers[peer];
    Flow f = flow(PUTS);
    First loaded;
    if constexpr (PUTS) {
      f.put = input_of(p, with.put_at, with.put_bytes);
      loaded.load_packets(f);
    } else {
      f.to = output_of(p, with.take_at, with.take_bytes);
    }
    int on = PUTS ? channel : channel + int(p.second);
    LineEnds<true> ends(rank(), p.digest, on, peer, nullptr);
    begin_carrying(p.call);
    if (f.reader >= 0) begin_channel<PUTS>(p, index);
    ends.settle();
    // Where results are awaited, on channels of their own, headers lie on the others.
    HeaderInstead beside = header_beside(rank(), peer, channel, !PUTS && p.second != 0);
    if (carry_packets<PUTS>(ends, peer, f, loaded, multiply)) ends.leave(peer, PUTS, !PUTS);
    if (PUTS && f.reader >= 0) end_progress(threadIdx.x / 32);
  }

  // Gets what the middle phase keeps and passes on; `own` is this rank's operand.
  __device__ bool get_middle(EdgeEnds& ends, const uint4& own, uint4& result) const {
    if constexpr (FOLDS) {
      auto load = [&](int begin, uint4(&v)[RANKS]) {
        if (!await_packets(ends, p.middle_from, begin, v, [](int) { return 0; })) return false;
#pragma unroll
        for (int i = 0; i < RANKS; i++)
          if (begin + i == int(rank().rank)) v[i] = own;
        return true;
      };
      if (!fold_all<E>(p, load, result)) return false;
    } else {
      uint4 v[1];
      int from = __ffs(p.middle_from) - 1;
      if (!await_packets(ends, p.middle_from, from, v, [](int) { return 0; })) return false;
      result = v[0];
    }
    ends.give_back_all(p.middle_from);
    return true;
  }

  __device__ void pass_on(EdgeEnds& ends, const uint4& v) const {
    EdgeEnds::Next next = ends.next(true);
    Peers peers(rank(), p.middle_to);
#pragma unroll 1
    for (int to = peers.next(); to >= 0; to = peers.next())
      store_packets(next.place(to), next.number_of(to), ends.digest, v);
    if (p.middle_to >> ends.thread & 1) ends.put += 1;
  }

  template <typename Multiply>
  __device__ void middle(const Multiply& multiply) const {
    Flow f = flow(false);
    f.own = input_of(p, p.own_at, p.middle_bytes);
    f.to = result_of(p);
    uint4 next = {};
    if (FOLDS) next = Piece(f.own, f.at).load();
    EdgeEnds ends(rank(), p.digest, channel, 0, nullptr, p.second);
    begin_carrying(p.call);
    if (f.reader >= 0) begin_channel<false>(p, index);
    ends.settle();
    uint32_t count = 0;
#pragma unroll 1
    for (; f.at < f.end && !ends.dead; f.at += f.stride) {
      uint4 own = next;
      if (FOLDS && f.at + f.stride < f.end) next = Piece(f.own, f.at + f.stride).load();
      if (FOLDS) multiply.multiply(own);
      uint4 result;
      if (!get_middle(ends, own, result)) return;
      if (p.middle_to != 0) {
        if (!ends.await_rooms(p.middle_to)) return;
        pass_on(ends, result);
      }
      f.await_read(1, count);
      if (f.to.bytes != 0) Piece(f.to, f.at).store(result);
    }
    if (!ends.dead) ends.leave(-1, p.middle_to != 0, true);
  }

  template <typename Multiply>
  __device__ void run(int role, const Multiply& multiply) const {
    PacketRole own(p, role);
    switch (own.what) {
      case PacketRole::PUTS: return carry<true>(own.peer, multiply);
      case PacketRole::FOLDS: return middle(multiply);
      case PacketRole::TAKES: return carry<false>(own.peer, NoFold());
      default: return;
    }
  }
};

template <typename E, bool FOLDS, typename Multiply>
__device__ inline void run_more_packets(const LineProgram& p, const Multiply& multiply) {
  if (blockIdx.x >= p.blocks) {
    copy_own(p);
    return;
  }
  auto carry = [&](int role, int, uint64_t first, uint64_t step) {
    int index = by_roles(p, threadIdx.x / 32);
    PacketEdges<E, FOLDS>{p, first, step, int(first), index}.run(role, multiply);
  };
  run_lines(p, carry, [] {});
  if (gridDim.x == p.blocks) copy_own(p);
}

// The same for a batch; `multiply_of` makes what multiplies the operands of a program.
template <typename E, bool FOLDS, typename MultiplyOf>
__device__ inline void run_batch_of_packets(const LineBatch& batch, MultiplyOf multiply_of) {
  auto carry = [&](const LineProgram& p, int role, int channel, uint64_t first, uint64_t step) {
    int index = by_roles(p, threadIdx.x / 32);
    PacketEdges<E, FOLDS>{p, first, step, channel, index}.run(role, multiply_of(p));
  };
  run_batch(batch, carry, copy_part, [] {});
}

}  // namespace oxccl

// For each element type kernels that reduce; what only moves, runs as bytes.
#define OXCCL_MORE_PACKETS(NUMBER, ...)                                                         \
  OXCCL_KERNEL(oxccl_more_packets_##NUMBER, (BLOCK_THREADS, 1), oxccl::LineProgram,             \
               using namespace oxccl;                                                           \
               run_more_packets<__VA_ARGS__, true>(argument, FoldOf<__VA_ARGS__>()(argument)))  \
  OXCCL_KERNEL(oxccl_batch_more_packets_##NUMBER, (BLOCK_THREADS, 1), oxccl::LineBatch,         \
               using namespace oxccl;                                                           \
               run_batch_of_packets<__VA_ARGS__, true>(argument, FoldOf<__VA_ARGS__>()))
OXCCL_ELEMENTS(OXCCL_MORE_PACKETS)
OXCCL_KERNEL(oxccl_more_packets, (BLOCK_THREADS, 1), oxccl::LineProgram, using namespace oxccl;
             run_more_packets<Integer<uint8_t>, false>(argument, NoFold()))
OXCCL_KERNEL(oxccl_batch_more_packets, (BLOCK_THREADS, 1), oxccl::LineBatch, using namespace oxccl;
             run_batch_of_packets<Integer<uint8_t>, false>(argument, NoFoldOf()))
