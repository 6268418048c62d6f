// The C++ binding on four ranks: as processes where a launcher started them, else as threads.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <thread>

#include "oxccl.hpp"
#if __cplusplus >= 202002L
#include <span>
#endif

#define EXPECT(condition)                                                      \
  do {                                                                         \
    if (!(condition)) {                                                        \
      std::fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition);     \
      std::abort();                                                            \
    }                                                                          \
  } while (0)

namespace {

constexpr int kRanks = 4;

// 1, 2 or 4, in a type that C++ may know the bits of only.
template <class T>
T number(int value) {
  if constexpr (std::is_arithmetic_v<T>) {
    return static_cast<T>(value);
  } else {
    unsigned step = value == 1 ? 0 : value == 2 ? 1 : 2;
    unsigned one = std::is_same_v<T, oxccl::float16>    ? 0x3c00 + (step << 10)
                   : std::is_same_v<T, oxccl::bfloat16> ? 0x3f80 + (step << 7)
                   : std::is_same_v<T, oxccl::float8_e4m3> ? 0x38 + (step << 3)
                                                           : 0x3c + (step << 2);
    return T{static_cast<decltype(T::bits)>(one)};
  }
}

template <class T>
bool same(const T &a, const T &b) {
  return std::memcmp(&a, &b, sizeof(T)) == 0;
}

template <class C, class T>
bool all(const C &elements, const T &value) {
  return std::all_of(elements.begin(), elements.end(), [&](const T &e) { return same(e, value); });
}

template <class F>
void expect_error(ncclResult_t code, const char *text, F call) {
  try {
    call();
  } catch (const oxccl::error &e) {
    if (e.code() == code && std::strstr(e.what(), text)) return;
    std::fprintf(stderr, "%d: %s; expected %d: %s\n", e.code(), e.what(), code, text);
    std::abort();
  }
  std::fprintf(stderr, "no error; expected %s\n", text);
  std::abort();
}

// Every collective with elements of one type. A rank's own element is 1 at rank 0, else 2, so that the
// place that data came from shows.
template <class T>
void collectives(const oxccl::communicator &comm, const oxccl::stream &s) {
  const int rank = comm.rank();
  const std::size_t n = 37;
  const T one = number<T>(1), two = number<T>(2), four = number<T>(4);
  auto of = [&](int r) { return r == 0 ? one : two; };
  std::vector<T> in(n, one), out(n), wide(n * kRanks), own(n, of(rank));

  comm.all_reduce(in, out, ncclSum, s);
  s.synchronize();
  EXPECT(all(out, four));
  comm.all_reduce(own, out, ncclMax, s);
  s.synchronize();
  EXPECT(all(out, two));

  auto shared = oxccl::buffer<T>::allocate(n);
  std::fill(shared.begin(), shared.end(), of(rank));
  comm.broadcast(shared, 0, s);
  s.synchronize();
  EXPECT(all(shared, one));

  std::fill(out.begin(), out.end(), one);
  comm.reduce(in, out, ncclSum, 3, s);
  s.synchronize();
  EXPECT(all(out, rank == 3 ? four : one));

  auto blocks = [&](const std::vector<T> &from) {
    for (int r = 0; r < kRanks; r++) {
      for (std::size_t i = 0; i < n; i++) {
        if (!same(from[static_cast<std::size_t>(r) * n + i], of(r))) return false;
      }
    }
    return true;
  };
  comm.all_gather(own, wide, s);
  s.synchronize();
  EXPECT(blocks(wide));

  std::vector<T> ones(n * kRanks, one);
  comm.reduce_scatter(ones, out, ncclSum, s);
  s.synchronize();
  EXPECT(all(out, four));

  std::vector<T> to_all(n * kRanks, of(rank));
  std::fill(wide.begin(), wide.end(), four);
  comm.all_to_all(to_all, wide, s);
  s.synchronize();
  EXPECT(blocks(wide));

  std::fill(wide.begin(), wide.end(), four);
  comm.gather(own, wide, 1, s);
  s.synchronize();
  EXPECT(rank == 1 ? blocks(wide) : all(wide, four));

  if (rank == 1) comm.scatter(wide, out, 1, s);
  else comm.scatter(std::vector<T>(), out, 1, s);
  s.synchronize();
  EXPECT(all(out, of(rank)));

  const int next = (rank + 1) % kRanks, before = (rank + kRanks - 1) % kRanks;
  {
    oxccl::group together;
    comm.send(own, next, s);
    comm.recv(out, before, s);
  }
  s.synchronize();
  EXPECT(all(out, of(before)));
}

void counts_per_rank(const oxccl::communicator &comm, const oxccl::stream &s) {
  const auto rank = static_cast<std::size_t>(comm.rank());
  // Rank r has r + 1 elements of value r.
  std::vector<std::size_t> counts{1, 2, 3, 4}, displs{0, 1, 3, 6};
  std::vector<int> own(rank + 1, static_cast<int>(rank)), out(10, -1);
  const std::vector<int> expected{0, 1, 1, 2, 2, 2, 3, 3, 3, 3};
  comm.all_gather_v(own, out, counts, displs, s);
  s.synchronize();
  EXPECT(out == expected);
  std::fill(out.begin(), out.end(), -1);
  comm.gather_v(own, out, counts, displs, 2, s);
  s.synchronize();
  EXPECT(rank == 2 ? out == expected : out == std::vector<int>(10, -1));
  std::vector<int> part(rank + 1, -1);
  comm.scatter_v(expected, counts, displs, part, 2, s);
  s.synchronize();
  EXPECT(part == own);
  comm.reduce_scatter_v(expected, part, counts, ncclSum, s);
  s.synchronize();
  EXPECT(all(part, static_cast<int>(rank) * kRanks));
  // Every rank sends r + 1 elements to rank r.
  std::vector<std::size_t> mine(kRanks, rank + 1), at(kRanks);
  for (std::size_t r = 0; r < kRanks; r++) at[r] = r * (rank + 1);
  std::vector<int> from(10, static_cast<int>(rank)), to(kRanks * (rank + 1), -1);
  comm.all_to_all_v(from, counts, displs, to, mine, at, s);
  s.synchronize();
  for (std::size_t i = 0; i < to.size(); i++) EXPECT(to[i] == static_cast<int>(i / (rank + 1)));

  expect_error(ncclInvalidArgument, "all_gather_v: out has 10 elements; expected 11", [&] {
    comm.all_gather_v(own, out, counts, std::vector<std::size_t>{0, 1, 3, 7}, s);
  });
  expect_error(ncclInvalidArgument, "counts has 3 elements; expected 4", [&] {
    comm.all_gather_v(own, out, std::vector<std::size_t>(3), displs, s);
  });
}

void graphs_and_events(const oxccl::communicator &comm, const oxccl::stream &s) {
  auto x = oxccl::buffer<float>::allocate(100);
  auto recorded = oxccl::graph::capture(s, [&] { comm.all_reduce(x, x, ncclSum, s); });
  auto ready = recorded.instantiate();
  std::fill(x.begin(), x.end(), 1.0f);
  auto begin = oxccl::event::create(), end = oxccl::event::create();
  s.record(begin);
  for (int i = 0; i < 3; i++) ready.launch(s);
  s.record(end);
  s.synchronize();
  EXPECT(all(x, 64.0f) && end.query() && end.since(begin) >= 0);
  recorded.update(ready);
  // A capture that fails half way leaves the stream usable.
  expect_error(ncclInvalidArgument, "all_reduce: out has 1 elements; expected 100", [&] {
    oxccl::graph::capture(s, [&] { comm.all_reduce(x, std::vector<float>(1), ncclSum, s); });
  });
  auto other = oxccl::stream::create();
  other.wait(end);
  std::vector<float> copy(100);
  oxccl::copy(x, copy, other);
  int called = 0;
  other.call([](void *to) { *static_cast<int *>(to) = 1; }, &called);
  EXPECT(other.synchronize_for(std::chrono::minutes(1)) && other.query());
  EXPECT(all(copy, 64.0f) && called == 1);
}

void made_from_others(oxccl::communicator &comm, const oxccl::stream &s) {
  const int rank = comm.rank();
  auto half = comm.split(rank % 2, -rank);
  EXPECT(half && half.size() == 2 && half.rank() == (rank < 2 ? 1 : 0));
  auto none = comm.split(rank == 0 ? NCCL_SPLIT_NOCOLOR : 0, 0);
  EXPECT(static_cast<bool>(none) == (rank != 0));
  std::vector<int> x{1};
  half.all_reduce(x, x, ncclSum, s);
  s.synchronize();
  EXPECT(x[0] == 2);
  auto memory = oxccl::buffer<float>::allocate(64);
  auto large = oxccl::buffer<float>::allocate(1 << 20);
  const auto before = comm.in_place();
  comm.all_reduce(large, large, ncclSum, s);
  s.synchronize();
  EXPECT(comm.in_place() == before + 1);
  auto own = comm.register_buffer(memory);
  auto open = comm.open_window(memory);
  EXPECT(own.get() != nullptr && open.get() != nullptr);
  auto scaled = comm.multiplied_sum(rank == 0 ? 2.0f : 1.0f);
  std::fill(memory.begin(), memory.end(), 1.0f);
  comm.all_reduce(memory, memory, scaled.get(), s);
  s.synchronize();
  EXPECT(all(memory, 5.0f));
#if __cplusplus >= 202002L
  comm.all_reduce(std::span(memory.data(), 10), std::span(memory.data(), 10), ncclSum, s);
  s.synchronize();
  EXPECT(memory[9] == 20.0f && memory[10] == 5.0f);
#endif
}

void one_sided(const oxccl::communicator &comm, const oxccl::stream &s) {
  const int rank = comm.rank();
  auto memory = oxccl::buffer<int>::allocate(kRanks);
  auto open = comm.open_window(memory);
  // Each rank writes its number into its place in all windows.
  std::vector<int> own{rank + 1};
  std::vector<ncclWaitSignalDesc_t> signals;
  for (int r = 0; r < kRanks; r++) {
    comm.put(own, r, open, static_cast<std::size_t>(rank), 3, s);
    comm.signal(r, 4, s);
    signals.push_back({1, r, 3, 0});
    signals.push_back({1, r, 4, 0});
  }
  comm.wait_signals(signals, s);
  s.synchronize();
  for (int r = 0; r < kRanks; r++) EXPECT(memory[static_cast<std::size_t>(r)] == r + 1);
  expect_error(ncclInvalidArgument, "16", [&] { comm.put(own, 0, open, kRanks, 0, s); });
  expect_error(ncclInvalidArgument, "", [&] { comm.put(own, 0, open, SIZE_MAX / 2 + 1, 0, s); });
  expect_error(ncclInvalidArgument, "context 4", [&] { comm.signal(0, 0, s, 4); });
  // Nobody writes any more.
  comm.all_reduce(own, own, ncclSum, s);
  oxccl::clear(memory, s);
  s.synchronize();
  EXPECT(own[0] == 10 && all(memory, 0));
}

void grown_and_suspended(const oxccl::communicator &comm, const oxccl::stream &s) {
  const int rank = comm.rank();
  auto half = comm.split(rank / 2, rank);
  std::vector<ncclUniqueId> id(1);
  if (rank == 0) id[0] = half.growth_id();
  comm.broadcast(oxccl::span<char>(id[0].internal, sizeof id[0].internal), 0, s);
  s.synchronize();
  auto whole = rank == 0   ? half.grow(kRanks, &id[0])
               : rank == 1 ? half.grow(kRanks)
                           : oxccl::communicator::join(kRanks, id[0], rank);
  EXPECT(whole.rank() == rank && whole.size() == kRanks && whole.device() >= 0);
  std::vector<int> x{1};
  whole.suspend();
  EXPECT(whole.memory(ncclStatGpuMemSuspended) == 1);
  expect_error(ncclInvalidUsage, "suspended", [&] { whole.all_reduce(x, x, ncclSum, s); });
  whole.resume();
  whole.all_reduce(x, x, ncclSum, s);
  s.synchronize();
  EXPECT(x[0] == kRanks);
  oxccl::group together;
  whole.all_reduce(x, x, ncclSum, s);
  EXPECT(together.estimate() > 0 && x[0] == kRanks);
}

// A rank waits for a message that nobody sends for as long as its bound says; other communicators go on.
void timeout(const oxccl::communicator &comm, const oxccl::stream &s) {
  auto part = comm.split(0, 0);
  if (comm.rank() == 0) {
    part.set_timeout(std::chrono::milliseconds(50));
    std::vector<float> never(1);
    part.recv(never, 1, s);
    try {
      s.synchronize();
      EXPECT(!"it ends without an error");
    } catch (const oxccl::error &e) {
      EXPECT(e.code() == ncclRemoteError && e.rank() == 0 && e.peer() == 1);
      EXPECT(std::strstr(e.what(), "ms for rank 1"));
    }
  }
  std::vector<float> x{1};
  comm.all_reduce(x, x, ncclSum, s);
  s.synchronize();
  EXPECT(x[0] == kRanks);
  part.abort();
}

// Run last: the communicator is over then.
void errors(oxccl::communicator comm, const oxccl::stream &s) {
  const int rank = comm.rank();
  std::vector<float> x(8), y(9);
  expect_error(ncclInvalidArgument, "all_reduce: out has 9 elements; expected 8",
               [&] { comm.all_reduce(x, y, ncclSum, s); });
  expect_error(ncclInvalidArgument, "all_gather: out has 9 elements; expected 32",
               [&] { comm.all_gather(x, y, s); });
  expect_error(ncclInvalidArgument, "root", [&] { comm.broadcast(x, 4, s); });
  expect_error(ncclInvalidArgument, "less than the address space", [&] {
    oxccl::buffer<double>::allocate(SIZE_MAX / 2);
  });
  EXPECT(comm.ready());
  // Rank 0 is aborted by another thread while it waits for a message that nobody sends.
  // It waits until the others are there.
  if (rank == 0) {
    comm.all_reduce(x, x, ncclSum, s);
    s.synchronize();
    comm.recv(x, 1, s);
    std::thread aborting([&] { comm.abort(); });
    expect_error(ncclInvalidUsage, "", [&] { s.synchronize(); });
    aborting.join();
    EXPECT(!comm);
  } else {
    // Any call may be the one that hears of it.
    expect_error(ncclRemoteError, "rank 0", [&] {
      comm.all_reduce(x, x, ncclSum, s);
      comm.recv(x, 0, s);
      s.synchronize();
    });
  }
  expect_error(rank == 0 ? ncclInvalidArgument : ncclRemoteError, "",
               [&] { comm.all_reduce(x, x, ncclSum, s); });
}

void rank(oxccl::communicator comm) {
  EXPECT(comm.size() == kRanks);
  auto s = oxccl::stream::create();
  collectives<std::int8_t>(comm, s);
  collectives<std::uint8_t>(comm, s);
  collectives<std::int32_t>(comm, s);
  collectives<std::uint32_t>(comm, s);
  collectives<std::int64_t>(comm, s);
  collectives<std::uint64_t>(comm, s);
  collectives<long long>(comm, s);
  collectives<oxccl::float16>(comm, s);
  collectives<float>(comm, s);
  collectives<double>(comm, s);
  collectives<oxccl::bfloat16>(comm, s);
  collectives<oxccl::float8_e4m3>(comm, s);
  collectives<oxccl::float8_e5m2>(comm, s);
  counts_per_rank(comm, s);
  graphs_and_events(comm, s);
  made_from_others(comm, s);
  one_sided(comm, s);
  grown_and_suspended(comm, s);
  timeout(comm, s);
  errors(std::move(comm), s);
}

// An exception on its way ends its communicator at once; the others are told.
void unwinding(oxccl::communicator comm) {
  auto s = oxccl::stream::create();
  if (comm.rank() == 2) {
    try {
      oxccl::communicator inner = std::move(comm);
      throw std::runtime_error("something else");
    } catch (const std::runtime_error &) {
    }
    return;
  }
  std::vector<float> x(1);
  expect_error(ncclRemoteError, "rank 2", [&] {
    comm.all_reduce(x, x, ncclSum, s);
    s.synchronize();
  });
}

}  // namespace

int main() {
  EXPECT(oxccl::version() == std::make_pair(NCCL_VERSION_CODE, OXCCL_VERSION_CODE));
  oxccl::set_device(oxcclDeviceHost, 1);
  EXPECT(oxccl::current_device() == std::make_pair(oxcclDeviceHost, 1));
  oxccl::set_log(2);
  if (std::getenv("OXCCL_RANK")) {
    rank(oxccl::communicator::from_env());
  } else {
    for (auto run : {rank, unwinding}) {
      const ncclUniqueId id = oxccl::unique_id();
      std::vector<std::thread> threads;
      for (int r = 0; r < kRanks; r++) {
        threads.emplace_back([=] { run(oxccl::communicator::create(kRanks, id, r)); });
      }
      for (auto &thread : threads) thread.join();
    }
    oxccl::set_init_timeout(std::chrono::milliseconds(1));
    expect_error(ncclSystemError, "1 of 2 ranks did not come", [] {
      oxccl::communicator::create(2, oxccl::unique_id(), 0);
    });
    oxccl::set_init_timeout(std::chrono::nanoseconds(-1));
    auto both = oxccl::communicator::create_all(2);
    EXPECT(both.size() == 2 && both[1].rank() == 1);
  }
  std::puts("C++ is right");
}
