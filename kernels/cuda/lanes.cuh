// Lanes: bounded queues from a rank to another. The sender fills slots and counts arrivals, the
// receiver empties them and gives credits back. Between ranks of a host the slots lie in the
// receiver's memory. Between hosts they lie in memory of the host or of the GPU, from where a
// thread of each rank, the proxy of the lane, hands messages to the network, and where it takes
// them. Small messages between hosts go as packets, which need no fence at the sender and no second
// trip to memory of the host at the receiver.
#pragma once

#include "watch.cuh"

namespace oxccl {

// The words of the descriptor of a message, the same at both ends of a lane, the number of its
// collective, and the step there; 0 and `OUTSIDE` for others. `call` is the number of its operation
// among those of the rank, 0 where nobody has the message followed.
struct Label {
  uint32_t what;
  uint64_t count;
  uint64_t number;
  int step;
  uint64_t call;
};

// The mark of an arrival, as `mark_of` in `network.rs`: one word tells that a message is there, and
// whether it is the one awaited.
__device__ inline uint64_t mark_of(uint64_t number, uint64_t count, uint64_t what) {
  uint64_t digest = what * 0x9e3779b97f4a7c15ull ^ count * 0xc2b2ae3d27d4eb4full;
  return (digest >> 32) << 32 | uint32_t(number);
}

// Memory of a block for the data of a packed message.
struct alignas(16) Packed {
  uint64_t data[NET_PACKED_BYTES / 8];
};

// A line of a slot, whole also where the message ends before: loads of single words from memory of
// the host take a microsecond each, one after the other.
__device__ inline uint4 load_slot(const char* at) {
  uint4 v;
  asm volatile("ld.volatile.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(at)
               : "memory");
  return v;
}

struct Lane {
  const Rank& rank;
  Packed& packed;
  const Peer* to;  // the other end; null where all ranks are on this host
  int peer;        // its name
  int lane;
  uint64_t number;  // slots used so far
  uint64_t room;    // the number up to which slots are known to be free

  __device__ Lane(const Rank& r, Packed& packed, uint32_t other, int lane,
                  const LaneCounters* counted)
      : rank(r), packed(packed), to(peer_of(r, other, lane)), peer(name_of(r, other)), lane(lane) {
    const volatile LaneCounters* last = counted;
    number = last->messages;
    room = last->room;
  }

  // Leaves the counters for the next one; to be called by one thread.
  __device__ void leave(LaneCounters* counted) const {
    volatile LaneCounters* next = counted;
    next->messages = number;
    next->room = room;
  }

  __device__ bool between_hosts() const { return peer >= MAX_RANKS; }

  // Bytes of data in a slot.
  __device__ uint64_t slot_bytes() const {
    return between_hosts() ? to->slot_bytes - NET_HEADER_BYTES : uint64_t(LANE_SLOT_BYTES);
  }

  // The data in the slot of the next message, between hosts.
  __device__ char* net_slot(uint64_t slots, uint32_t skew) const {
    uint64_t slot = (number + skew) % NET_SLOTS;
    return reinterpret_cast<char*>(slots + slot * to->slot_bytes + NET_HEADER_BYTES);
  }

  // The header of that message: the first word of its descriptor, as 64 bits, and the second one.
  __device__ volatile uint64_t* net_header(uint64_t slots, uint32_t skew) const {
    static_assert(NET_HEADER_BYTES == 2 * sizeof(uint64_t), "two words");
    return reinterpret_cast<volatile uint64_t*>(net_slot(slots, skew) - NET_HEADER_BYTES);
  }

  // Whether the message that has come is the one awaited; otherwise tells what it is. To be called
  // by one thread.
  __device__ bool is_awaited(const Arrival* here, uint64_t mark, const Label& label,
                             uint64_t what) const {
    const volatile Arrival* words = here;
    if (between_hosts() && to->on_gpu[1]) {
      const volatile uint64_t* header = net_header(to->incoming, to->skews[1]);
      uint32_t their_what = header[0];
      uint64_t their_count = header[1];
      uint64_t len = words->what >> 32;
      if ((len == what >> 32 || len == NET_UNTOLD) && their_what == uint32_t(what) &&
          their_count == label.count)
        return true;
      differ(rank, peer, common(rank)->operations, label.what, label.count, their_what,
             their_count);
      return false;
    }
    uint64_t untold = uint32_t(what) | uint64_t(NET_UNTOLD) << 32;
    if (mark == mark_of(number + 1, label.count, what)) return true;
    if (mark == mark_of(number + 1, label.count, untold)) return true;
    differ(rank, peer, common(rank)->operations, label.what, label.count, uint32_t(words->what),
           words->count);
    return false;
  }

  // Whether a message of `len` bytes that is sent (0) or received (1) is written as packets.
  __device__ bool packs(int direction, uint64_t len) const {
    return between_hosts() && !to->on_gpu[direction] && len <= NET_PACKED_BYTES;
  }

  __device__ Packet* packets(PackedMessage* messages) const {
    return reinterpret_cast<Packet*>(messages[number % NET_SLOTS].packets);
  }

  // Packets of a message: two for its words, and those of its data.
  __device__ static uint32_t packets_of(uint64_t len) { return 2 + uint32_t(len + 7) / 8; }

  // Tells whose message the next one between hosts is. To be called by one thread.
  __device__ void tell_call(uint64_t* calls, const Label& label) const {
    volatile uint64_t* there = calls + number % NET_CALLS;
    *there = (number + 1) << 48 | (label.call & 0xffffffffffffull);
  }

  // One thread waits for all; false when what they wait for will not come.
  template <typename Ready>
  __device__ bool wait(const Label& label, Ready ready) const {
    return !any_mover(threadIdx.x == 0 &&
                      !await(rank, peer, label.step, label.what, label.count, ready));
  }

  // Waits for a free slot, and returns the memory in which to write the message; null when there
  // will be none.
  __device__ char* begin_send(const Label& label, uint64_t len) {
    const uint64_t* credits = between_hosts() ? &net_words(*to)->room
                                              : credit(rank, rank.rank, peer, lane);
    uint64_t ahead = between_hosts() ? 0 : LANE_SLOTS, target = number + 1, seen = room;
    auto ready = [&] {
      return reached(seen, target) || reached(seen = load_acquire(credits) + ahead, target);
    };
    if (!wait(label, ready)) return nullptr;
    room = seen;
    if (label.call != 0 && between_hosts() && threadIdx.x == 0)
      tell_call(net_words(*to)->outgoing_calls, label);
    if (packs(0, len)) return reinterpret_cast<char*>(packed.data);
    if (!between_hosts()) return lane_slot(rank, peer, rank.rank, lane, number % LANE_SLOTS);
    return net_slot(to->outgoing, to->skews[0]);
  }

  // Hands over a message that has been written.
  __device__ void end_send(const Label& label, uint64_t len) {
    sync_movers();
    if (packs(0, len)) {
      send_packets(label, len);
    } else if (threadIdx.x == 0) {
      if (between_hosts() && to->on_gpu[0]) {
        volatile uint64_t* header = net_header(to->outgoing, to->skews[0]);
        header[0] = label.what;
        header[1] = label.count;
      }
      Arrival* there = between_hosts()
                           ? &net_words(*to)->outgoing[number % NET_SLOTS]
                           : arrival(rank, peer, rank.rank, lane, number % LANE_SLOTS);
      volatile Arrival* words = there;
      uint64_t what = label.what | len << 32;
      words->count = label.count;
      words->what = what;
      store_release(&there->mark, mark_of(number + 1, label.count, what));
    }
    number += 1;
  }

  __device__ void send_packets(const Label& label, uint64_t len) const {
    uint32_t i = threadIdx.x;
    if (i >= packets_of(len)) return;
    uint64_t what = label.what | len << 32;
    uint64_t word = i == 0 ? label.count : i == 1 ? what : packed.data[i - 2];
    store_packet(packets(net_words(*to)->outgoing_packed) + i, number + 1, word);
  }

  // Waits for the packets of a message and takes their data; false when it has come otherwise, is
  // another than the one awaited, or will not come.
  __device__ bool take_packets(const Label& label, uint64_t len, const uint64_t* mark) const {
    constexpr uint32_t LOOKS = 16;  // at packets for one at the mark
    uint32_t i = threadIdx.x;
    bool taken = false;
    if (i < 32) {
      const Packet* mine = packets(net_words(*to)->incoming_packed) + i;
      uint64_t awaited = number + 1, word = 0;
      Wait wait;
      for (bool over = false; !taken && !over;) {
        taken = __all_sync(~0u, i >= packets_of(len) || load_packet(mine, awaited, word));
        if (i == 0 && !taken) {
          over = wait.over(rank, peer, label.step);
          if (wait.spins % LOOKS == 0)
            over |= uint32_t(load_acquire(mark)) == uint32_t(awaited);
        }
        over = __any_sync(~0u, over);
      }
      uint64_t what = label.what | len << 32;
      bool differs = (i == 0 && word != label.count) || (i == 1 && word != what);
      taken = taken && !__any_sync(~0u, differs);
      if (i >= 2 && i < packets_of(len)) packed.data[i - 2] = word;
    }
    return any_mover(i == 0 && taken);
  }

  // Waits for the next message, and returns its data; null when it will not come, or is another
  // than the one awaited.
  __device__ const char* begin_receive(const Label& label, uint64_t len) const {
    const Arrival* here = between_hosts()
                              ? &net_words(*to)->incoming[number % NET_SLOTS]
                              : arrival(rank, rank.rank, peer, lane, number % LANE_SLOTS);
    uint64_t awaited = number + 1, what = label.what | len << 32;
    if (between_hosts() && threadIdx.x == 0) {
      if (label.call != 0) tell_call(net_words(*to)->incoming_calls, label);
      volatile NetWords* words = net_words(*to);
      words->wanted_what = what;
      words->wanted_count = label.count;
      words->wanted_by = label.number;
      // The proxy of a switch tells another rank of these words at once, others after a second.
      if (to->is_switch)
        store_release(&net_words(*to)->wanted, awaited);
      else
        words->wanted = awaited;
    }
    if (packs(1, len) && take_packets(label, len, &here->mark))
      return reinterpret_cast<const char*>(packed.data);
    uint64_t mark = 0;
    auto ready = [&] { return uint32_t(mark = load_acquire(&here->mark)) == uint32_t(awaited); };
    if (!wait(label, ready)) return nullptr;
    if (any_mover(threadIdx.x == 0 && !is_awaited(here, mark, label, what))) return nullptr;
    if (between_hosts()) return net_slot(to->incoming, to->skews[1]);
    return lane_slot(rank, rank.rank, peer, lane, number % LANE_SLOTS);
  }

  // Gives the slot back, once all have read it.
  __device__ void end_receive() {
    sync_movers();
    number += 1;
    if (threadIdx.x != 0) return;
    uint64_t* credits = between_hosts() ? &net_words(*to)->taken
                                        : credit(rank, peer, rank.rank, lane);
    // All have used what they read, so nobody reads the slot any more; what they wrote is nobody's
    // business, and needs no fence.
    store_relaxed(credits, number);
  }
};

// The counters of a lane of the queue to (sends) or from a peer.
__device__ inline LaneCounters* lane_counters(const Rank& r, uint32_t queue, int lane) {
  return reinterpret_cast<LaneCounters*>(counters(r, MAX_CHANNELS)) + queue * LANES + lane;
}

}  // namespace oxccl
