// OxCCL for C++17, header only. SPDX: MIT OR Apache-2.0.
//
// Objects own what they stand for; buffers are anything with data() and size(), whose type and
// length are those of the call. Collectives never block: they are complete when the stream is, and
// buffers must live until then.
//
// Failures are exceptions of type oxccl::error. Where exceptions are off (-fno-exceptions), or with
// OXCCL_NO_EXCEPTIONS defined, every function that can fail returns an oxccl::result instead.
#ifndef OXCCL_HPP_
#define OXCCL_HPP_

#if __cplusplus < 201703L && !(defined(_MSVC_LANG) && _MSVC_LANG >= 201703L)
#error "oxccl.hpp needs C++17: compile with -std=c++17 or newer"
#endif

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <iterator>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "oxccl.h"
#include "oxccl_base.hpp"

namespace oxccl {
#ifdef OXCCL_NO_EXCEPTIONS
inline namespace returning {
#else
inline namespace throwing {
#endif

// Elements in memory of the calling thread's device, which other ranks of this host read and write
// in place; zero at first. Where the device is no host memory, copy() brings them in and out.
template <class T>
class buffer {
  static_assert(std::is_trivially_copyable_v<T>, "elements are copied byte by byte");

 public:
  buffer() = default;
  static result<buffer> allocate(std::size_t count) {
    void *data = nullptr;
    // More than fits the address space is refused by the library.
    std::size_t bytes = count > SIZE_MAX / sizeof(T) ? SIZE_MAX : count * sizeof(T);
    ncclResult_t code = oxcclMemAlloc(&data, bytes);
    return detail::made(code, [&] { return buffer(static_cast<T *>(data), count); });
  }
  T *data() const { return memory_.get(); }
  std::size_t size() const { return size_; }
  T *begin() const { return data(); }
  T *end() const { return data() + size_; }
  T &operator[](std::size_t i) const { return data()[i]; }

 private:
  struct deleter {
    void operator()(T *data) const { oxcclMemFree(data); }
  };
  buffer(T *data, std::size_t size) : memory_(data), size_(size) {}
  std::unique_ptr<T, deleter> memory_;
  std::size_t size_ = 0;
};

// ---- Devices, streams, events ----

// The number of devices of a kind.
inline result<int> device_count(oxcclDeviceKind_t kind) {
  int count = 0;
  ncclResult_t code = oxcclDeviceCount(kind, &count);
  return detail::made(code, [&] { return count; });
}

// The calling thread's device.
inline result<std::pair<oxcclDeviceKind_t, int>> current_device() {
  oxcclDeviceKind_t kind = oxcclDeviceHost;
  int index = 0;
  ncclResult_t code = oxcclDeviceGet(&kind, &index);
  return detail::made(code, [&] { return std::make_pair(kind, index); });
}

// Chooses the calling thread's device, for what it makes from now on.
inline result<void> set_device(oxcclDeviceKind_t kind, int index) {
  return detail::check(oxcclDeviceSet(kind, index));
}

// A mark in a stream.
class event {
 public:
  static result<event> create() {
    oxcclEvent_t raw = nullptr;
    return detail::made(oxcclEventCreate(&raw), [&] { return event(raw); });
  }
  // Whether the stream has come to it.
  result<bool> query() const { return detail::finished(oxcclEventQuery(get())); }
  // Milliseconds since another event; both must have come up.
  result<float> since(const event &start) const {
    float ms = 0;
    ncclResult_t code = oxcclEventElapsedTime(&ms, start.get(), get());
    return detail::made(code, [&] { return ms; });
  }
  oxcclEvent_t get() const { return owner_.get(); }

 private:
  explicit event(oxcclEvent_t raw) : owner_(raw) {}
  detail::owner<oxcclEvent_t, oxcclEventDestroy> owner_;
};

// Work in order. One that was not created is the device's default stream.
class stream {
 public:
  stream() = default;
  static result<stream> create() {
    oxcclStream_t raw = nullptr;
    return detail::made(oxcclStreamCreate(&raw), [&] { return stream(raw); });
  }
  // Blocks until everything is done; fails where the work did.
  result<void> synchronize() const { return detail::check(oxcclStreamSynchronize(get(), -1)); }
  // Blocks for some time at most; whether everything is done.
  result<bool> synchronize_for(std::chrono::nanoseconds time) const {
    return detail::finished(oxcclStreamSynchronize(get(), std::max<std::int64_t>(0, time.count())));
  }
  // Whether everything is done.
  result<bool> query() const { return detail::finished(oxcclStreamQuery(get())); }
  result<void> record(const event &mark) const {
    return detail::check(oxcclEventRecord(mark.get(), get()));
  }
  result<void> wait(const event &mark) const {
    return detail::check(oxcclStreamWaitEvent(get(), mark.get()));
  }
  // Calls a function on a thread of the library, which must not block there.
  result<void> call(void (*function)(void *), void *argument) const {
    return detail::check(oxcclStreamHostFunc(get(), function, argument));
  }
  oxcclStream_t get() const { return owner_.get(); }

 private:
  explicit stream(oxcclStream_t raw) : owner_(raw) {}
  detail::owner<oxcclStream_t, oxcclStreamDestroy> owner_;
};

// Copies elements between buffers of equal length, in the order of the stream.
template <class From, class To>
result<void> copy(const From &from, To &&to, const stream &on) {
  using T = std::remove_pointer_t<decltype(std::data(to))>;
  static_assert(std::is_same_v<std::remove_const_t<std::remove_pointer_t<decltype(std::data(from))>>, T>,
                "both hold elements of one type");
  if (std::size(to) != std::size(from)) {
    OXCCL_FAIL(error::length("copy", "to", std::size(to), std::size(from)));
  }
  std::size_t bytes = std::size(from) * sizeof(T);
  return detail::check(oxcclMemcpyAsync(std::data(to), std::data(from), bytes, on.get()));
}

// Makes all elements zero, in the order of the stream.
template <class C>
result<void> clear(C &&data, const stream &on) {
  std::size_t bytes = std::size(data) * sizeof(*std::data(data));
  return detail::check(oxcclMemsetAsync(std::data(data), 0, bytes, on.get()));
}

// ---- Graphs ----

// A graph made ready to be launched.
class executable {
 public:
  result<void> launch(const stream &on) const {
    return detail::check(oxcclGraphLaunch(get(), on.get()));
  }
  oxcclGraphExec_t get() const { return owner_.get(); }

 private:
  friend class graph;
  explicit executable(oxcclGraphExec_t raw) : owner_(raw) {}
  detail::owner<oxcclGraphExec_t, detail::end_executable> owner_;
};

// What was captured.
class graph {
 public:
  // Has `record` put what it does on the stream into a graph, instead of being done.
  template <class F>
  static result<graph> capture(const stream &on, F record) {
    ncclResult_t begun = oxcclStreamBeginCapture(on.get(), oxcclCaptureThreadLocal);
    if (detail::failed(begun)) OXCCL_FAIL(error::last(begun));
    ending guard{on.get()};
#ifdef OXCCL_NO_EXCEPTIONS
    if (auto recorded = record(); !recorded) return recorded.error();
#else
    record();
#endif
    oxcclGraph_t raw = nullptr;
    ncclResult_t code = oxcclStreamEndCapture(guard.release(), &raw);
    return detail::made(code, [&] { return graph(raw); });
  }
  result<executable> instantiate() const {
    oxcclGraphExec_t raw = nullptr;
    return detail::made(oxcclGraphInstantiate(&raw, get()), [&] { return executable(raw); });
  }
  // Gives an executable graph this one's parameters; both need the same nodes.
  result<void> update(const executable &old) const {
    return detail::check(oxcclGraphExecUpdate(old.get(), get()));
  }
  oxcclGraph_t get() const { return owner_.get(); }

 private:
  // Ends a capture that failed half way.
  struct ending {
    oxcclStream_t on;
    oxcclStream_t release() {
      armed = false;
      return on;
    }
    bool armed = true;
    ~ending() {
      oxcclGraph_t raw = nullptr;
      if (armed && oxcclStreamEndCapture(on, &raw) == ncclSuccess) oxcclGraphDestroy(raw, nullptr);
    }
  };
  explicit graph(oxcclGraph_t raw) : owner_(raw) {}
  detail::owner<oxcclGraph_t, detail::end_graph> owner_;
};

// ---- Groups ----

// Calls made while it lives are launched together at its end.
class group {
 public:
  group() : open_(ncclGroupStart() == ncclSuccess), unwinding_(std::uncaught_exceptions()) {}
  group(const group &) = delete;
  group &operator=(const group &) = delete;
  // Launches; the destructor then does nothing. Blocks only where communicators are made.
  result<void> end() {
    if (!std::exchange(open_, false)) return result<void>();
    return detail::check(ncclGroupEnd());
  }
  // Launches nothing; the microseconds that it would take, by the library's model of the machine.
  result<float> estimate() {
    ncclSimInfo_t info = NCCL_SIM_INFO_INITIALIZER;
    ncclResult_t code = std::exchange(open_, false) ? ncclGroupSimulateEnd(&info) : ncclSuccess;
    return detail::made(code, [&] { return info.estimatedTime; });
  }
#ifdef OXCCL_NO_EXCEPTIONS
  // Launches without telling whether that worked: use end().
  ~group() {
    if (open_) ncclGroupEnd();
  }
#else
  // Throws where the launch fails, unless another exception is on its way.
  ~group() noexcept(false) {
    if (!std::exchange(open_, false)) return;
    ncclResult_t code = ncclGroupEnd();
    if (detail::failed(code) && std::uncaught_exceptions() == unwinding_) throw error::last(code);
  }
#endif

 private:
  bool open_;
  int unwinding_;
};

// ---- Communicators ----

// Bounds how long communicators that this thread begins to make from now on wait for ranks that do
// not come; a negative time: as OXCCL_INIT_TIMEOUT says.
inline result<void> set_init_timeout(std::chrono::nanoseconds time) {
  return detail::check(oxcclSetInitTimeout(std::max<std::int64_t>(-1, time.count())));
}

// What to ask of a new communicator: set fields of ncclConfig_t.
struct config : ncclConfig_t {
  config() : ncclConfig_t(NCCL_CONFIG_INITIALIZER) {}
};

// The options of one collective: set the fields that matter, and pass the address as the last
// argument, alike on all ranks. `ext` is a list of ncclConfigExt_t with the options of oxccl.h.
struct call_options : ncclCollConfig_t {
  call_options() : ncclCollConfig_t(NCCL_COLLCONFIG_INITIALIZER) {}
};

// Encrypts the connections by which communicators are made from now on with a key of 16 bytes or
// more that all ranks have; null for none. Only ranks of one host can have encrypted connections.
inline result<void> set_encryption(const char *key) {
  ncclEncryptionConfig_t with = NCCL_ENCRYPTION_CONFIG_INITIALIZER;
  with.mode = key ? NCCL_ENCRYPTION_MODE_PSK : NCCL_ENCRYPTION_MODE_NONE;
  with.psk = key;
  return detail::check(ncclSetEncryption(&with));
}

// Names a communicator that is to be made; copy it to all ranks, and keep it secret.
inline result<ncclUniqueId> unique_id() {
  ncclUniqueId id;
  return detail::made(ncclGetUniqueId(&id), [&] { return id; });
}

// The versions of NCCL's interface and of OxCCL, as NCCL_VERSION_CODE and OXCCL_VERSION_CODE.
inline result<std::pair<int, int>> version() {
  int nccl = 0, oxccl = 0;
  ncclResult_t code = ncclGetVersion(&nccl);
  if (code == ncclSuccess) code = oxcclGetVersion(&oxccl);
  return detail::made(code, [&] { return std::make_pair(nccl, oxccl); });
}

// Sets the log level, as NCCL_DEBUG (0 to 5), and where lines go: to the function, called on any
// thread, or where NCCL_DEBUG_FILE says.
inline result<void> set_log(int level, oxcclLogFn_t function = nullptr, void *argument = nullptr) {
  return detail::check(oxcclSetLog(level, function, argument));
}

// Sets the number by which later operations of this thread are known in `oxccl ras`, such as the
// number of a training step; 0 for none.
inline result<void> set_tag(uint64_t tag) { return detail::check(oxcclTag(tag)); }

// What belongs to a communicator and must end before it.
template <class Handle, ncclResult_t (*End)(ncclComm_t, Handle)>
class registration {
 public:
  registration(ncclComm_t comm, Handle handle) : comm_(comm), handle_(handle) {}
  registration(registration &&other) noexcept
      : comm_(std::exchange(other.comm_, nullptr)), handle_(other.handle_) {}
  registration &operator=(registration &&other) noexcept {
    std::swap(comm_, other.comm_);
    std::swap(handle_, other.handle_);
    return *this;
  }
  ~registration() {
    if (comm_) End(comm_, handle_);
  }
  Handle get() const { return handle_; }

 private:
  ncclComm_t comm_;
  Handle handle_;
};

namespace detail {
inline ncclResult_t end_operation(ncclComm_t comm, ncclRedOp_t op) {
  return ncclRedOpDestroy(op, comm);
}
}  // namespace detail

// A registered buffer, a window, and an operation that a communicator made.
using registered = registration<void *, ncclCommDeregister>;
using window = registration<ncclWindow_t, ncclCommWindowDeregister>;
using operation = registration<ncclRedOp_t, detail::end_operation>;

// This rank's part of a communicator. Its end completes all operations, waiting for the other
// ranks; while an exception is on its way it aborts instead, so that they are told. A destructor
// cannot throw: a failure that only the end meets is dropped, unless finalize() before it is called,
// which reports it.
class communicator {
 public:
  communicator() = default;
  communicator(communicator &&other) noexcept
      : comm_(other.comm_.exchange(nullptr)), unwinding_(other.unwinding_) {}
  communicator &operator=(communicator &&other) noexcept {
    comm_ = other.comm_.exchange(comm_);
    std::swap(unwinding_, other.unwinding_);
    return *this;
  }
  ~communicator() {
    ncclComm_t comm = comm_.exchange(nullptr);
    if (comm == nullptr) return;
    if (std::uncaught_exceptions() > unwinding_) {
      ncclCommAbort(comm);
    } else {
      ncclCommDestroy(comm);
    }
  }

  // All processes that oxccl run, mpirun, srun or torchrun started; alone without a launcher.
  // Blocks.
  static result<communicator> from_env(const config &with = {}) {
    ncclComm_t raw = nullptr;
    return detail::made(oxcclCommInitEnv(&raw, &with), [&] { return communicator(raw); });
  }
  // Rank `rank` of `size`, which all have the same id. Blocks for all of them.
  static result<communicator> create(int size, const ncclUniqueId &id, int rank, config with = {}) {
    ncclComm_t raw = nullptr;
    ncclResult_t code = ncclCommInitRankConfig(&raw, size, id, rank, &with);
    return detail::made(code, [&] { return communicator(raw); });
  }
  // All ranks in this process, on devices 0 to count - 1. Blocks.
  static result<std::vector<communicator>> create_all(int count) {
    std::vector<ncclComm_t> raw(count > 0 ? static_cast<std::size_t>(count) : 1);
    return detail::made(ncclCommInitAll(raw.data(), count, nullptr), [&] {
      std::vector<communicator> all;
      for (ncclComm_t comm : raw) all.push_back(communicator(comm));
      return all;
    });
  }
  // Ranks of equal color, ordered by key; nothing (false) for NCCL_SPLIT_NOCOLOR. All ranks call.
  // Blocks.
  result<communicator> split(int color, int key, config with = {}) const {
    ncclComm_t raw = nullptr;
    ncclResult_t code = ncclCommSplit(get(), color, key, &raw, &with);
    return detail::made(code, [&] { return communicator(raw); });
  }
  // Without some ranks, which need not be alive; all others call. Blocks.
  result<communicator> shrink(std::vector<int> exclude, int flags = NCCL_SHRINK_DEFAULT,
                              config with = {}) const {
    ncclComm_t raw = nullptr;
    int count = static_cast<int>(exclude.size());
    ncclResult_t code = ncclCommShrink(get(), exclude.data(), count, &raw, &with, flags);
    return detail::made(code, [&] { return communicator(raw); });
  }

  // The id for the ranks that join one growth; the rank that calls it passes it to grow().
  result<ncclUniqueId> growth_id() const {
    ncclUniqueId id;
    return detail::made(ncclCommGetUniqueId(get(), &id), [&] { return id; });
  }
  // With `size` ranks; those of this one keep their numbers. All of them call: one passes
  // growth_id(), the others null. Blocks for those that join, too.
  result<communicator> grow(int size, const ncclUniqueId *id = nullptr, config with = {}) const {
    ncclComm_t raw = nullptr;
    ncclResult_t code = ncclCommGrow(get(), size, id, -1, &raw, &with);
    return detail::made(code, [&] { return communicator(raw); });
  }
  // Rank `rank` of the `size` of a communicator that grows. Blocks.
  static result<communicator> join(int size, const ncclUniqueId &id, int rank, config with = {}) {
    ncclComm_t raw = nullptr;
    ncclResult_t code = ncclCommGrow(nullptr, size, &id, rank, &raw, &with);
    return detail::made(code, [&] { return communicator(raw); });
  }

  explicit operator bool() const { return get() != nullptr; }
  ncclComm_t get() const { return comm_.load(std::memory_order_relaxed); }
  result<int> rank() const {
    int rank = 0;
    return detail::made(ncclCommUserRank(get(), &rank), [&] { return rank; });
  }
  result<int> size() const {
    int size = 0;
    return detail::made(ncclCommCount(get(), &size), [&] { return size; });
  }
  // The index of its device.
  result<int> device() const {
    int index = 0;
    return detail::made(ncclCommCuDevice(get(), &index), [&] { return index; });
  }
  // Fails where the communicator has, and says why; false while it is still being made.
  result<bool> ready() const {
    ncclResult_t state = ncclSuccess;
    ncclResult_t code = ncclCommGetAsyncError(get(), &state);
    if (!detail::failed(code) && detail::failed(state)) OXCCL_FAIL(error::of(get(), state));
    return detail::finished(detail::failed(code) ? code : state);
  }
  // Completes all operations, and waits until the peers have what was sent to them; no further ones
  // may follow. Blocks.
  result<void> finalize() const { return detail::check(ncclCommFinalize(get())); }
  // Ends all operations, also of other threads, with an error. Blocks for a second at most.
  result<void> abort() { return detail::check(ncclCommAbort(comm_.exchange(nullptr))); }
  // Ends all operations; only split, shrink and the end are left. Blocks for a second at most.
  result<void> revoke() const { return detail::check(ncclCommRevoke(get(), NCCL_REVOKE_DEFAULT)); }
  // Gives memory back to the system; until resume() it takes no operations, and none may be under
  // way.
  result<void> suspend() const { return detail::check(ncclCommSuspend(get(), NCCL_SUSPEND_MEM)); }
  result<void> resume() const { return detail::check(ncclCommResume(get())); }
  // How much memory, in bytes, it takes in this process; ncclStatGpuMemSuspended is 1 while it is
  // suspended.
  result<std::uint64_t> memory(ncclCommMemStat_t stat) const {
    std::uint64_t value = 0;
    return detail::made(ncclCommMemStats(get(), stat, &value), [&] { return value; });
  }
  // How many collectives so far read or wrote the other ranks' buffers where they lie.
  result<std::uint64_t> in_place() const {
    std::uint64_t count = 0;
    return detail::made(oxcclCommInPlace(get(), &count), [&] { return count; });
  }
  // How many operations so far had their data moved by copy engines of a GPU.
  result<std::uint64_t> by_copy_engines() const {
    std::uint64_t count = 0;
    return detail::made(oxcclCommByCopyEngines(get(), &count), [&] { return count; });
  }
  // How long an operation may wait for a rank without getting anywhere; a negative time: for ever.
  result<void> set_timeout(std::chrono::nanoseconds time) const {
    std::int64_t bound = time.count() < 0 ? -1 : time.count();
    return detail::check(oxcclCommSetTimeout(get(), bound));
  }
  // Registers a buffer, which must outlive the registration, as this communicator must.
  template <class C>
  result<registered> register_buffer(C &&memory) const {
    void *handle = nullptr;
    std::size_t bytes = std::size(memory) * sizeof(*std::data(memory));
    ncclResult_t code = ncclCommRegister(get(), std::data(memory), bytes, &handle);
    return detail::made(code, [&] { return registered(get(), handle); });
  }
  // Makes a window of a buffer; all ranks call. Buffer and communicator must outlive it.
  template <class C>
  result<window> open_window(C &&memory, int flags = NCCL_WIN_DEFAULT) const {
    ncclWindow_t raw = nullptr;
    std::size_t bytes = std::size(memory) * sizeof(*std::data(memory));
    ncclResult_t code = ncclCommWindowRegister(get(), std::data(memory), bytes, &raw, flags);
    return detail::made(code, [&] { return window(get(), raw); });
  }
  // A sum in which this rank's elements are first multiplied by `factor`; pass its get().
  template <class T>
  result<operation> multiplied_sum(T factor) const {
    ncclRedOp_t op = ncclSum;
    ncclResult_t code = ncclRedOpCreatePreMulSum(&op, &factor, element<T>::type,
                                                 ncclScalarHostImmediate, get());
    return detail::made(code, [&] { return operation(get(), op); });
  }

  // Collectives: all ranks call them in the same order. None blocks. In place where both buffers
  // are the same, or as NCCL has it. The last argument has options of the call.

  // The reduction of all ranks' inputs, in every rank's output.
  template <class In, class Out>
  result<void> all_reduce(const In &in, Out &&out, ncclRedOp_t op, const stream &on,
                          const call_options *with = nullptr) const {
    if (std::size(out) != std::size(in)) {
      OXCCL_FAIL(error::length("all_reduce", "out", std::size(out), std::size(in)));
    }
    return detail::check(either(with, ncclAllReduce, ncclAllReduceConfig,
                                std::data(in), std::data(out), std::size(in),
                                type(in, out), op, get(), on.get()));
  }
  // The root's elements, in every rank's.
  template <class C>
  result<void> broadcast(C &&data, int root, const stream &on,
                         const call_options *with = nullptr) const {
    auto at = std::data(data);
    return detail::check(either(with, ncclBroadcast, ncclBroadcastConfig, at, at, std::size(data),
                                type(data, data), root, get(), on.get()));
  }
  // The reduction of all ranks' inputs, in the root's output; ignored elsewhere.
  template <class In, class Out>
  result<void> reduce(const In &in, Out &&out, ncclRedOp_t op, int root, const stream &on,
                      const call_options *with = nullptr) const {
    if (is(root) && std::size(out) != std::size(in)) {
      OXCCL_FAIL(error::length("reduce", "out", std::size(out), std::size(in)));
    }
    return detail::check(either(with, ncclReduce, ncclReduceConfig,
                                std::data(in), std::data(out), std::size(in),
                                type(in, out), op, root, get(), on.get()));
  }
  // Every rank's input, one behind the other in every rank's output.
  template <class In, class Out>
  result<void> all_gather(const In &in, Out &&out, const stream &on,
                          const call_options *with = nullptr) const {
    if (auto bad = unlike("all_gather", "out", std::size(out), std::size(in))) OXCCL_FAIL(*bad);
    return detail::check(either(with, ncclAllGather, ncclAllGatherConfig,
                                std::data(in), std::data(out), std::size(in),
                                type(in, out), get(), on.get()));
  }
  // Block r of the reduction of all ranks' inputs, in the output of rank r.
  template <class In, class Out>
  result<void> reduce_scatter(const In &in, Out &&out, ncclRedOp_t op, const stream &on,
                              const call_options *with = nullptr) const {
    if (auto bad = unlike("reduce_scatter", "in", std::size(in), std::size(out))) OXCCL_FAIL(*bad);
    return detail::check(either(with, ncclReduceScatter, ncclReduceScatterConfig,
                                std::data(in), std::data(out), std::size(out),
                                type(in, out), op, get(), on.get()));
  }
  // Block r of this rank's input becomes block of this rank in the output of rank r.
  template <class In, class Out>
  result<void> all_to_all(const In &in, Out &&out, const stream &on,
                          const call_options *with = nullptr) const {
    std::size_t count = std::size(in) / std::max<std::size_t>(ranks(), 1);
    if (auto bad = unlike("all_to_all", "in", std::size(in), count)) OXCCL_FAIL(*bad);
    if (std::size(out) != std::size(in)) {
      OXCCL_FAIL(error::length("all_to_all", "out", std::size(out), std::size(in)));
    }
    return detail::check(either(with, ncclAlltoAll, ncclAlltoAllConfig,
                                std::data(in), std::data(out), count,
                                type(in, out), get(), on.get()));
  }
  // Every rank's input, one behind the other in the root's output; ignored elsewhere.
  template <class In, class Out>
  result<void> gather(const In &in, Out &&out, int root, const stream &on,
                      const call_options *with = nullptr) const {
    if (auto bad = is(root) ? unlike("gather", "out", std::size(out), std::size(in)) : std::nullopt) OXCCL_FAIL(*bad);
    return detail::check(either(with, ncclGather, ncclGatherConfig,
                                std::data(in), std::data(out), std::size(in),
                                type(in, out), root, get(), on.get()));
  }
  // Block r of the root's input, ignored elsewhere, in the output of rank r.
  template <class In, class Out>
  result<void> scatter(const In &in, Out &&out, int root, const stream &on,
                       const call_options *with = nullptr) const {
    if (auto bad = is(root) ? unlike("scatter", "in", std::size(in), std::size(out)) : std::nullopt) OXCCL_FAIL(*bad);
    return detail::check(either(with, ncclScatter, ncclScatterConfig,
                                std::data(in), std::data(out), std::size(out),
                                type(in, out), root, get(), on.get()));
  }
  // Sends elements to a rank, or receives them from one; within a group in any order. A large send
  // waits for its receive: ranks that send to each other, or in a circle, do so in a group.
  template <class In>
  result<void> send(const In &in, int to, const stream &on) const {
    return detail::check(ncclSend(std::data(in), std::size(in), only_type(in), to, get(), on.get()));
  }
  template <class Out>
  result<void> recv(Out &&out, int from, const stream &on) const {
    return detail::check(ncclRecv(std::data(out), std::size(out), type(out, out), from, get(),
                                  on.get()));
  }

  // Writes into the window of a rank of this host, from its element `at` on, and then counts up
  // that rank's signal `number` (0 to 15) of a context (below config::numRmaCtx).
  template <class In>
  result<void> put(const In &in, int to, const window &into, std::size_t at, int number,
                   const stream &on, int context = 0) const {
    constexpr std::size_t each = sizeof(*std::data(in));
    // What no size_t has is behind every window, too.
    std::size_t offset = at > SIZE_MAX / each ? SIZE_MAX : at * each;
    return detail::check(ncclPutSignal(std::data(in), std::size(in), only_type(in), to, into.get(),
                                       offset, number, context, 0, get(), on.get()));
  }
  // Counts up a signal of a rank; what was put there before is there when it is seen.
  result<void> signal(int to, int number, const stream &on, int context = 0) const {
    return detail::check(ncclSignal(to, number, context, 0, get(), on.get()));
  }
  // Makes the stream wait for signals that nobody has waited for yet.
  result<void> wait_signals(std::vector<ncclWaitSignalDesc_t> signals, const stream &on) const {
    int count = static_cast<int>(signals.size());
    return detail::check(ncclWaitSignal(count, signals.data(), get(), on.get()));
  }

  // The same with counts and displacements per rank, in elements. The parts must lie within the
  // buffer.
  template <class In, class Out, class C, class D>
  result<void> all_gather_v(const In &in, Out &&out, const C &counts, const D &displs,
                            const stream &on) const {
    if (auto bad = beyond("all_gather_v", "out", std::size(out), counts, displs)) OXCCL_FAIL(*bad);
    return detail::check(oxcclAllGatherv(std::data(in), std::size(in), std::data(out),
                                         std::data(counts), std::data(displs), type(in, out), get(),
                                         on.get()));
  }
  template <class In, class Out, class C>
  result<void> reduce_scatter_v(const In &in, Out &&out, const C &counts, ncclRedOp_t op,
                                const stream &on) const {
    if (auto bad = unlike("reduce_scatter_v", "counts", std::size(counts), 1)) OXCCL_FAIL(*bad);
    std::size_t all = 0;
    for (std::size_t count : counts) all = count > SIZE_MAX - all ? SIZE_MAX : all + count;
    if (std::size(in) != all) OXCCL_FAIL(error::length("reduce_scatter_v", "in", std::size(in), all));
    const auto rank = static_cast<std::size_t>(self());
    // Of a communicator that is no more nothing is known; the call itself tells that.
    if (rank < std::size(counts) && std::size(out) != std::data(counts)[rank]) {
      OXCCL_FAIL(error::length("reduce_scatter_v", "out", std::size(out), std::data(counts)[rank]));
    }
    return detail::check(oxcclReduceScatterv(std::data(in), std::data(out), std::data(counts),
                                             type(in, out), op, get(), on.get()));
  }
  template <class In, class Out, class C, class D, class E, class F>
  result<void> all_to_all_v(const In &in, const C &in_counts, const D &in_displs, Out &&out,
                            const E &out_counts, const F &out_displs, const stream &on) const {
    if (auto bad = beyond("all_to_all_v", "in", std::size(in), in_counts, in_displs)) OXCCL_FAIL(*bad);
    if (auto bad = beyond("all_to_all_v", "out", std::size(out), out_counts, out_displs)) {
      OXCCL_FAIL(*bad);
    }
    return detail::check(oxcclAlltoAllv(std::data(in), std::data(in_counts), std::data(in_displs),
                                        std::data(out), std::data(out_counts), std::data(out_displs),
                                        type(in, out), get(), on.get()));
  }
  template <class In, class Out, class C, class D>
  result<void> gather_v(const In &in, Out &&out, const C &counts, const D &displs, int root,
                        const stream &on) const {
    if (is(root)) {
      if (auto bad = beyond("gather_v", "out", std::size(out), counts, displs)) OXCCL_FAIL(*bad);
    }
    return detail::check(oxcclGatherv(std::data(in), std::size(in), std::data(out), std::data(counts),
                                      std::data(displs), type(in, out), root, get(), on.get()));
  }
  template <class In, class Out, class C, class D>
  result<void> scatter_v(const In &in, const C &counts, const D &displs, Out &&out, int root,
                         const stream &on) const {
    if (is(root)) {
      if (auto bad = beyond("scatter_v", "in", std::size(in), counts, displs)) OXCCL_FAIL(*bad);
    }
    return detail::check(oxcclScatterv(std::data(in), std::data(counts), std::data(displs),
                                       std::data(out), std::size(out), type(in, out), root, get(),
                                       on.get()));
  }

 private:
  explicit communicator(ncclComm_t raw) : comm_(raw) {}

  // Calls a collective, with options where there are any.
  template <class Plain, class Configured, class... Arguments>
  static ncclResult_t either(const call_options *with, Plain plain, Configured configured,
                             Arguments... arguments) {
    return with ? configured(arguments..., with) : plain(arguments...);
  }

  template <class In>
  static constexpr ncclDataType_t only_type(const In &in) {
    return element<std::remove_const_t<std::remove_pointer_t<decltype(std::data(in))>>>::type;
  }
  template <class In, class Out>
  static constexpr ncclDataType_t type(const In &in, Out &out) {
    using I = std::remove_const_t<std::remove_pointer_t<decltype(std::data(in))>>;
    using O = std::remove_pointer_t<decltype(std::data(out))>;
    static_assert(!std::is_const_v<O>, "the output must be writable");
    static_assert(std::is_same_v<I, O>, "both buffers hold elements of one type");
    return element<O>::type;
  }
  // 0 where there is none yet.
  std::size_t ranks() const {
    int size = 0;
    return ncclCommCount(get(), &size) == ncclSuccess ? static_cast<std::size_t>(size) : 0;
  }
  int self() const {
    int rank = 0;
    return ncclCommUserRank(get(), &rank) == ncclSuccess ? rank : 0;
  }
  bool is(int root) const { return self() == root; }
  // What is wrong with a buffer that has so many elements for each rank. Nothing where there is no
  // number of ranks: then the call itself tells why.
  std::optional<error> unlike(const char *function, const char *argument, std::size_t size,
                              std::size_t each) const {
    std::size_t n = ranks();
    if (n == 0 || size == each * n) return std::nullopt;
    return error::length(function, argument, size, each * n);
  }
  // What is wrong with counts and displacements.
  template <class C, class D>
  std::optional<error> beyond(const char *function, const char *argument, std::size_t size,
                              const C &counts, const D &displs) const {
    if (auto bad = unlike(function, "counts", std::size(counts), 1)) return bad;
    if (auto bad = unlike(function, "displs", std::size(displs), 1)) return bad;
    for (std::size_t r = 0; r < ranks(); r++) {
      std::size_t begin = std::data(displs)[r], count = std::data(counts)[r];
      if (count > 0 && (begin > size || count > size - begin)) {
        return error::length(function, argument, size, begin + count);
      }
    }
    return std::nullopt;
  }

  std::atomic<ncclComm_t> comm_{nullptr};
  int unwinding_ = std::uncaught_exceptions();
};

}  // namespace throwing or returning
}  // namespace oxccl

#undef OXCCL_FAIL

#endif  // OXCCL_HPP_
