// The C++ binding on four ranks: as processes where a launcher started them, else as threads.
#include <array>
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

// A small number, 0 or more, in a type that C++ may know the bits of only.
template <class T>
T number(int value) {
  if constexpr (std::is_arithmetic_v<T>) {
    return static_cast<T>(value);
  } else {
    if (value == 0) return T{};
    int mantissa = 7, bias = 127;
    if (std::is_same_v<T, oxccl::float16>) mantissa = 10, bias = 15;
    if (std::is_same_v<T, oxccl::float8_e4m3>) mantissa = 3, bias = 7;
    if (std::is_same_v<T, oxccl::float8_e5m2>) mantissa = 2, bias = 15;
    int exponent = 0;
    while (value >> exponent > 1) exponent++;
    // The leading one, which floats leave out, counts up the exponent.
    int bits = ((exponent + bias - 1) << mantissa) + ((value << mantissa) >> exponent);
    return T{static_cast<decltype(T::bits)>(bits)};
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

// Every collective with elements of one type. A rank's own element is the rank + 1, so that the
// place that data came from shows.
template <class T>
void collectives(const oxccl::communicator &comm, const oxccl::stream &s,
                 const oxccl::call_options *with = nullptr) {
  const int rank = comm.rank();
  const std::size_t n = 37;
  const T zero = number<T>(0);
  auto of = [](int r) { return number<T>(r + 1); };
  std::vector<T> own(n, of(rank)), out(n), wide(n * kRanks), all_blocks;
  for (int r = 0; r < kRanks; r++) all_blocks.insert(all_blocks.end(), n, of(r));
  auto blocks = [&](const std::vector<T> &got) {
    return std::equal(got.begin(), got.end(), all_blocks.begin(), all_blocks.end(), same<T>);
  };

  // Their sum, product, maximum, minimum and mean are five numbers.
  std::vector<T> weight(n, number<T>(std::array{1, 2, 3, 2}[static_cast<std::size_t>(rank)]));
  using reduction = std::pair<ncclRedOp_t, int>;
  for (auto [op, expected] : {reduction(ncclSum, 8), reduction(ncclProd, 12), reduction(ncclMax, 3),
                              reduction(ncclMin, 1), reduction(ncclAvg, 2)}) {
    comm.all_reduce(weight, out, op, s, with);
    s.synchronize();
    EXPECT(all(out, number<T>(expected)));
  }

  auto shared = oxccl::buffer<T>::allocate(n);
  std::fill(shared.begin(), shared.end(), of(rank));
  comm.broadcast(shared, 2, s, with);
  s.synchronize();
  EXPECT(all(shared, of(2)));

  std::fill(out.begin(), out.end(), zero);
  comm.reduce(weight, out, ncclProd, 3, s, with);
  s.synchronize();
  EXPECT(all(out, rank == 3 ? number<T>(12) : zero));

  comm.all_gather(own, wide, s, with);
  s.synchronize();
  EXPECT(blocks(wide));

  comm.reduce_scatter(all_blocks, out, ncclSum, s, with);
  s.synchronize();
  EXPECT(all(out, number<T>(kRanks * (rank + 1))));

  std::vector<T> to_all(n * kRanks, of(rank));
  std::fill(wide.begin(), wide.end(), zero);
  comm.all_to_all(to_all, wide, s, with);
  s.synchronize();
  EXPECT(blocks(wide));

  std::fill(wide.begin(), wide.end(), zero);
  comm.gather(own, wide, 1, s, with);
  s.synchronize();
  EXPECT(rank == 1 ? blocks(wide) : all(wide, zero));

  if (rank == 1) comm.scatter(wide, out, 1, s, with);
  else comm.scatter(std::vector<T>(), out, 1, s, with);
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

const std::vector<std::size_t> kCounts{1, 2, 3, 4}, kDispls{0, 1, 3, 6};

// Every collective with counts: rank r has r + 1 elements, each the number r.
template <class T>
void counts_per_rank(const oxccl::communicator &comm, const oxccl::stream &s) {
  const auto rank = static_cast<std::size_t>(comm.rank());
  const T mine = number<T>(comm.rank()), none = number<T>(5);
  std::vector<T> own(rank + 1, mine), out(10, none), expected;
  for (int r = 0; r < kRanks; r++) expected.insert(expected.end(), kCounts[r], number<T>(r));
  auto right = [&] { return std::equal(out.begin(), out.end(), expected.begin(), same<T>); };
  comm.all_gather_v(own, out, kCounts, kDispls, s);
  s.synchronize();
  EXPECT(right());
  std::fill(out.begin(), out.end(), none);
  comm.gather_v(own, out, kCounts, kDispls, 2, s);
  s.synchronize();
  EXPECT(rank == 2 ? right() : all(out, none));
  std::vector<T> part(rank + 1, none);
  comm.scatter_v(expected, kCounts, kDispls, part, 2, s);
  s.synchronize();
  EXPECT(all(part, mine));
  comm.reduce_scatter_v(expected, part, kCounts, ncclSum, s);
  s.synchronize();
  EXPECT(all(part, number<T>(comm.rank() * kRanks)));
  // Every rank sends r + 1 elements to rank r.
  std::vector<std::size_t> each(kRanks, rank + 1), at(kRanks);
  for (std::size_t r = 0; r < kRanks; r++) at[r] = r * (rank + 1);
  std::vector<T> from(10, mine), to(kRanks * (rank + 1), none);
  comm.all_to_all_v(from, kCounts, kDispls, to, each, at, s);
  s.synchronize();
  for (std::size_t i = 0; i < to.size(); i++) {
    EXPECT(same(to[i], number<T>(static_cast<int>(i / (rank + 1)))));
  }
}

void wrong_counts(const oxccl::communicator &comm, const oxccl::stream &s) {
  std::vector<int> own(static_cast<std::size_t>(comm.rank()) + 1), out(10);
  expect_error(ncclInvalidArgument, "all_gather_v: out has 10 elements; expected 11", [&] {
    comm.all_gather_v(own, out, kCounts, std::vector<std::size_t>{0, 1, 3, 7}, s);
  });
  expect_error(ncclInvalidArgument, "counts has 3 elements; expected 4", [&] {
    comm.all_gather_v(own, out, std::vector<std::size_t>(3), kDispls, s);
  });
  // Not even where their sum has as many as there are, in 64 bits.
  const std::size_t quarter = SIZE_MAX / 4 + 1;
  expect_error(ncclInvalidArgument, "reduce_scatter_v: in has 10 elements; expected 1844674407", [&] {
    std::vector<std::size_t> counts{quarter, quarter, quarter, quarter + 10};
    comm.reduce_scatter_v(out, own, counts, ncclSum, s);
  });
  expect_error(ncclInvalidArgument, "null; expected a living handle (an object that was closed", [&] {
    std::vector<int> nothing;
    std::vector<std::size_t> counts;
    oxccl::communicator().reduce_scatter_v(nothing, nothing, counts, ncclSum, s);
  });
}

template <class T>
void of(const oxccl::communicator &comm, const oxccl::stream &s) {
  collectives<T>(comm, s);
  oxccl::call_options options;
  options.algSelection = "^ring";
  options.maxCTAs = 2;
  options.userProfilerTag = 5;
  ncclConfigExt_t exact = {nullptr, {OXCCL_VENDOR_ID, oxcclOptionDeterministic}, {1}};
  options.ext = &exact;
  collectives<T>(comm, s, &options);
  counts_per_rank<T>(comm, s);
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
  EXPECT(comm.in_place() == before + 1 && comm.by_copy_engines() == 0);
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

// A rank waits for a message that nobody sends for as long as its bound says; other communicators
// go on.
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
  of<std::int8_t>(comm, s);
  of<std::uint8_t>(comm, s);
  of<std::int32_t>(comm, s);
  of<std::uint32_t>(comm, s);
  of<std::int64_t>(comm, s);
  of<std::uint64_t>(comm, s);
  of<long long>(comm, s);
  of<oxccl::float16>(comm, s);
  of<float>(comm, s);
  of<double>(comm, s);
  of<oxccl::bfloat16>(comm, s);
  of<oxccl::float8_e4m3>(comm, s);
  of<oxccl::float8_e5m2>(comm, s);
  wrong_counts(comm, s);
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
