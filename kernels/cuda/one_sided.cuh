// One-sided operations: a rank writes into a peer's window and counts up a signal there, or waits
// for its own. Windows are mapped by the host in the background.
#pragma once

#include "agree.cuh"
#include "exchange.cuh"

namespace oxccl {

// Finds the address to which a put writes; false when it cannot write. For one thread.
__device__ inline bool find_window(const Put& put, uint64_t& to) {
  const Rank& r = put.rank;
  to = put.own + put.offset;
  if (put.peer == r.rank) return true;
  const volatile Window* window = &maps(r)->windows[put.peer][(put.window - 1) % WINDOWS];
  Wait w;
  while (window->number != put.window)
    if (w.over(r, put.peer, OUTSIDE)) return false;
  fence();
  to = window->base + put.offset;
  uint64_t reached = window->bytes;
  if (put.offset <= reached && put.bytes <= reached - put.offset) return true;
  volatile Control* c = reinterpret_cast<volatile Control*>(r.control);
  c->own_count = put.bytes;
  c->offset = put.offset;
  c->their_count = reached;
  fail(r, FAULT_WINDOW, put.peer, OUTSIDE);
  return false;
}

// Counts a block that has written its part; the last one signals.
__device__ inline void signal_peer(const Put& put) {
  const Rank& r = put.rank;
  fence();
  if (atomicAdd(&common(r)->written, 1) + 1 != gridDim.x) return;
  common(r)->written = 0;
  uint64_t count = common(r)->signals_given[put.peer][put.signal] + 1;
  common(r)->signals_given[put.peer][put.signal] = count;
  fence();
  store_release(user_signal(r, put.peer, r.rank, put.signal), count);
}

__device__ inline void run_put(const Put& put) {
  __shared__ uint64_t to;
  bool found = true;
  if (put.window != 0 && threadIdx.x == 0) found = find_window(put, to);
  if (any_mover(!found)) return;
  if (put.bytes > 0) {
    uint64_t lines = (put.bytes + 15) / 16, share = (lines + gridDim.x - 1) / gridDim.x * 16;
    uint64_t first = blockIdx.x * share;
    uint64_t left = first < put.bytes ? put.bytes - first : 0;
    copy_bytes(reinterpret_cast<char*>(to + first), reinterpret_cast<const char*>(put.data + first),
               left < share ? left : share, load_data);
  }
  sync_movers();
  if (threadIdx.x == 0) signal_peer(put);
}

// Waits for signals, with a thread for each.
__device__ inline void run_wait(const SignalWait& wait) {
  const Rank& r = wait.rank;
  if (threadIdx.x >= wait.count) return;
  Awaited awaited = wait.awaited[threadIdx.x];
  uint64_t* taken = &common(r)->signals_taken[awaited.peer][awaited.signal];
  const uint64_t* word = user_signal(r, r.rank, awaited.peer, awaited.signal);
  uint64_t target = *taken + awaited.count;
  auto ready = [=] { return reached(load_acquire(word), target); };
  if (await(r, awaited.peer, OUTSIDE, wait.what, awaited.count, ready)) *taken = target;
}

template <typename Body>
__device__ inline void run_one_sided(const Rank& r, Body body) {
  Counters* own = counters(r, blockIdx.x);
  if (__syncthreads_or(faulty(r))) return;
  if (is_watcher()) {
    enter(r, own);
  } else {
    body();
  }
  __syncthreads();
  if (threadIdx.x == 0) leave(own);
}

}  // namespace oxccl

OXCCL_KERNEL(oxccl_put, (BLOCK_THREADS), oxccl::Put,
             oxccl::run_one_sided(argument.rank, [&] { oxccl::run_put(argument); }))
OXCCL_KERNEL(oxccl_wait_signal, (BLOCK_THREADS), oxccl::SignalWait,
             oxccl::run_one_sided(argument.rank, [&] { oxccl::run_wait(argument); }))
