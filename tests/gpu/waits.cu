// Which calls of the driver wait for kernels that run, and whether kernels can be launched
// meanwhile: a kernel that waits for a rank which waits in such a call never ends. A table in
// Markdown, in a minute.
//
//   nvcc -std=c++17 -arch=sm_90 -o waits tests/gpu/waits.cu -lcuda && ./waits
#include <cuda.h>
#include <cuda_runtime.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <thread>
#include <vector>

#define CHECK(call)                                                           \
  do {                                                                        \
    CUresult result_ = (call);                                                \
    if (result_ != CUDA_SUCCESS) {                                            \
      const char* text_ = "unknown";                                          \
      cuGetErrorString(result_, &text_);                                      \
      fprintf(stderr, "%s:%d: " #call ": %s\n", __FILE__, __LINE__, text_);   \
      exit(1);                                                                \
    }                                                                         \
  } while (0)

#define REQUIRE(condition)                                                    \
  do {                                                                        \
    if (!(condition)) {                                                       \
      fprintf(stderr, "%s:%d: " #condition " is false\n", __FILE__, __LINE__); \
      exit(1);                                                                \
    }                                                                         \
  } while (0)

constexpr unsigned LIMIT_S = 180;
constexpr double SPIN_MS = 300, WAITED_MS = 150;
constexpr auto BESIDE = std::chrono::milliseconds(20);
constexpr size_t BYTES = 32 << 20;

// A module of its own, for cuModuleLoadData.
const char* const MODULE =
    ".version 7.0\n.target sm_70\n.address_size 64\n.visible .entry nothing() { ret; }\n";

__device__ unsigned long long now_ns() {
  unsigned long long ns;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(ns));
  return ns;
}

__global__ void spin(volatile unsigned* started, unsigned long long ns) {
  unsigned long long begun = now_ns();
  *started = 1;
  __threadfence_system();
  while (now_ns() - begun < ns) {
  }
}

double elapsed_ms(std::chrono::steady_clock::time_point since) {
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - since).count();
}

// Spins on a GPU; its primary context is the thread's when it is made.
struct Spinner {
  int device;
  CUstream stream = nullptr;
  unsigned* started = nullptr;

  explicit Spinner(int device) : device(device) {
    CHECK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    void* at = nullptr;
    CHECK(cuMemHostAlloc(&at, sizeof(unsigned), CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP));
    started = static_cast<unsigned*>(at);
  }

  // Returns once the kernel runs.
  void start(double ms) {
    int before = 0;
    REQUIRE(cudaGetDevice(&before) == cudaSuccess && cudaSetDevice(device) == cudaSuccess);
    *static_cast<volatile unsigned*>(started) = 0;
    spin<<<1, 1, 0, stream>>>(started, static_cast<unsigned long long>(ms * 1e6));
    REQUIRE(cudaGetLastError() == cudaSuccess);
    auto begun = std::chrono::steady_clock::now();
    while (*static_cast<volatile unsigned*>(started) == 0) REQUIRE(elapsed_ms(begun) < 10000);
    REQUIRE(cudaSetDevice(before) == cudaSuccess);
  }

  void end() { CHECK(cuStreamSynchronize(stream)); }
};

CUcontext enter(int device) {
  CUdevice handle;
  CUcontext context;
  CHECK(cuDeviceGet(&handle, device));
  CHECK(cuDevicePrimaryCtxRetain(&context, handle));
  CHECK(cuCtxSetCurrent(context));
  return context;
}

void put(int fd, const void* data, size_t bytes) {
  REQUIRE(write(fd, data, bytes) == static_cast<ssize_t>(bytes));
}

void take(int fd, void* data, size_t bytes) {
  for (size_t have = 0; have < bytes;) {
    ssize_t n = read(fd, static_cast<char*>(data) + have, bytes - have);
    REQUIRE(n > 0);
    have += n;
  }
}

// The other process: gives memory away and spins when it is told to.
int other_process(int orders, int answers) {
  CHECK(cuInit(0));
  enter(0);
  Spinner spinner(0);
  CUdeviceptr memory;
  CUipcMemHandle handle;
  CHECK(cuMemAlloc(&memory, BYTES));
  CHECK(cuIpcGetMemHandle(&handle, memory));
  put(answers, &handle, sizeof handle);
  char order;
  while (read(orders, &order, 1) == 1) {
    if (order == 's') spinner.start(SPIN_MS);
    if (order == 'e') spinner.end();
    put(answers, &order, 1);
  }
  return 0;
}

struct Case {
  const char* name;
  std::function<void()> prepare, call, finish;
  // What comes when the kernel runs, and is not measured.
  std::function<void()> before;
};

// Memory of the driver's virtual memory management, in all its stages.
struct Virtual {
  CUmemAllocationProp properties{};
  CUmemAccessDesc access{};
  CUmemGenericAllocationHandle handle = 0;
  CUdeviceptr at = 0;

  Virtual() {
    properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    properties.location.id = 0;
    access.location = properties.location;
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  }
  void reserve() { CHECK(cuMemAddressReserve(&at, BYTES, 0, 0, 0)); }
  void create() { CHECK(cuMemCreate(&handle, BYTES, &properties, 0)); }
  void map() { CHECK(cuMemMap(at, BYTES, 0, handle, 0)); }
  void allow() { CHECK(cuMemSetAccess(at, BYTES, &access, 1)); }
  void unmap() { CHECK(cuMemUnmap(at, BYTES)); }
  void release() { CHECK(cuMemRelease(handle)); }
  void free() { CHECK(cuMemAddressFree(at, BYTES)); }
};

struct Things {
  CUipcMemHandle theirs;
  CUstream spinning, other, made = nullptr;
  CUdeviceptr at = 0;
  void* host = nullptr;
  CUevent event = nullptr;
  CUmodule module = nullptr;
  Virtual memory;
};

std::vector<Case> memory_cases(Things& t) {
  auto open = [&t] { CHECK(cuIpcOpenMemHandle(&t.at, t.theirs, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS)); };
  auto close = [&t] { CHECK(cuIpcCloseMemHandle(t.at)); };
  auto allocate = [&t] { CHECK(cuMemAlloc(&t.at, BYTES)); };
  auto free = [&t] { CHECK(cuMemFree(t.at)); };
  auto allocate_async = [&t] { CHECK(cuMemAllocAsync(&t.at, BYTES, t.other)); };
  auto free_async = [&t] { CHECK(cuMemFreeAsync(t.at, t.other)); };
  auto pin = [&t] { CHECK(cuMemAllocHost(&t.host, BYTES)); };
  auto unpin = [&t] { CHECK(cuMemFreeHost(t.host)); };
  auto grow = [&t] { REQUIRE((t.host = aligned_alloc(4096, BYTES)) != nullptr); };
  auto shrink = [&t] { ::free(t.host); };
  auto enlist = [&t] { CHECK(cuMemHostRegister(t.host, BYTES, CU_MEMHOSTREGISTER_PORTABLE)); };
  auto dismiss = [&t] { CHECK(cuMemHostUnregister(t.host)); };
  return {
      {"cuIpcOpenMemHandle", {}, open, close, {}},
      {"cuIpcCloseMemHandle", open, close, {}, {}},
      {"cuMemAlloc", {}, allocate, free, {}},
      {"cuMemFree", allocate, free, {}, {}},
      {"cuMemAllocAsync", {}, allocate_async, free_async, {}},
      {"cuMemFreeAsync", allocate_async, free_async, {}, {}},
      {"cuMemAllocHost", {}, pin, unpin, {}},
      {"cuMemFreeHost", pin, unpin, {}, {}},
      {"cuMemHostRegister", grow, enlist, [=] { dismiss(); shrink(); }, {}},
      {"cuMemHostUnregister", [=] { grow(); enlist(); }, dismiss, shrink, {}},
  };
}

std::vector<Case> mapping_cases(Things& t) {
  Virtual& m = t.memory;
  auto mapped = [&m] { m.reserve(); m.create(); m.map(); };
  auto usable = [&m, mapped] { mapped(); m.allow(); };
  auto gone = [&m] { m.release(); m.free(); };
  auto all = [&m, gone] { m.unmap(); gone(); };
  auto unmapped = [&m, usable] { usable(); m.unmap(); };
  return {
      {"cuMemCreate", {}, [&m] { m.create(); }, [&m] { m.release(); }, {}},
      {"cuMemAddressReserve", {}, [&m] { m.reserve(); }, [&m] { m.free(); }, {}},
      {"cuMemMap", [&m] { m.reserve(); m.create(); }, [&m] { m.map(); }, all, {}},
      {"cuMemSetAccess", mapped, [&m] { m.allow(); }, all, {}},
      {"cuMemUnmap", usable, [&m] { m.unmap(); }, gone, {}},
      {"cuMemRelease, still mapped", usable, [&m] { m.release(); }, [&m] { m.unmap(); m.free(); }, {}},
      {"cuMemRelease, the last", unmapped, [&m] { m.release(); }, [&m] { m.free(); }, {}},
      {"cuMemAddressFree", [&m, unmapped] { unmapped(); m.release(); }, [&m] { m.free(); }, {}, {}},
  };
}

std::vector<Case> other_cases(Things& t) {
  auto event = [&t] { CHECK(cuEventCreate(&t.event, CU_EVENT_DISABLE_TIMING)); };
  auto record = [&t] { CHECK(cuEventRecord(t.event, t.spinning)); };
  auto stream = [&t] { CHECK(cuStreamCreate(&t.made, CU_STREAM_NON_BLOCKING)); };
  auto no_event = [&t] { CHECK(cuEventDestroy(t.event)); };
  auto no_stream = [&t] { CHECK(cuStreamDestroy(t.made)); };
  auto query = [&t] {
    CUresult result = cuStreamQuery(t.other);
    REQUIRE(result == CUDA_SUCCESS || result == CUDA_ERROR_NOT_READY);
  };
  auto load = [&t] { CHECK(cuModuleLoadData(&t.module, MODULE)); };
  auto unload = [&t] { CHECK(cuModuleUnload(t.module)); };
  auto copy = [&t] {
    unsigned long long word = 1;
    CHECK(cuMemcpyHtoDAsync(t.at, &word, sizeof word, t.other));
    CHECK(cuStreamSynchronize(t.other));
  };
  return {
      {"cuEventDestroy, recorded after the kernel", event, no_event, {}, record},
      {"cuStreamCreate", {}, stream, no_stream, {}},
      {"cuStreamDestroy", stream, no_stream, {}, {}},
      {"cuStreamQuery", {}, query, {}, {}},
      {"cuModuleLoadData", {}, load, unload, {}},
      {"cuModuleUnload", load, unload, {}, {}},
      {"a copy of 8 bytes, waited for", [&t] { CHECK(cuMemAlloc(&t.at, 8)); }, copy,
       [&t] { CHECK(cuMemFree(t.at)); }, {}},
  };
}

void run(const std::function<void()>& what) {
  if (what) what();
}

// A kernel that is launched while the call is on its way; how long until it has ended.
struct Beside {
  CUcontext context;
  CUfunction nothing;
  CUstream stream;

  double launch(std::atomic<bool>& ready) const {
    CHECK(cuCtxSetCurrent(context));
    ready = true;
    std::this_thread::sleep_for(BESIDE);
    auto begun = std::chrono::steady_clock::now();
    CHECK(cuLaunchKernel(nothing, 1, 1, 1, 1, 1, 1, 0, stream, nullptr, nullptr));
    CHECK(cuStreamSynchronize(stream));
    return elapsed_ms(begun);
  }
};

void measure(const Case& one, const char* where, const std::function<void()>& start,
             const std::function<void()>& end, const Beside& beside) {
  run(one.prepare);
  start();
  run(one.before);
  double launched = 0;
  std::atomic<bool> ready{false};
  std::thread launcher([&] { launched = beside.launch(ready); });
  while (!ready) std::this_thread::yield();
  auto begun = std::chrono::steady_clock::now();
  run(one.call);
  double ms = elapsed_ms(begun);
  launcher.join();
  end();
  run(one.finish);
  auto word = [](double took) { return took >= WAITED_MS ? "yes" : "no"; };
  printf("| %s | %s | %s | %.3f | %s | %.3f |\n", one.name, where, word(ms), ms, word(launched),
         launched);
  fflush(stdout);
}

int main() {
  alarm(LIMIT_S);
  setenv("CUDA_MODULE_LOADING", "EAGER", 1);
  int orders[2], answers[2];
  REQUIRE(pipe(orders) == 0 && pipe(answers) == 0);
  pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    alarm(LIMIT_S);
    close(orders[1]);
    close(answers[0]);
    return other_process(orders[0], answers[1]);
  }
  close(orders[0]);
  close(answers[1]);
  CHECK(cuInit(0));
  int gpus = 0;
  CHECK(cuDeviceGetCount(&gpus));
  CUcontext far = gpus > 1 ? enter(1) : nullptr;
  Spinner* second = far ? new Spinner(1) : nullptr;
  CUcontext context = enter(0);
  Spinner first(0);

  Things things;
  take(answers[0], &things.theirs, sizeof things.theirs);
  things.spinning = first.stream;
  CHECK(cuStreamCreate(&things.other, CU_STREAM_NON_BLOCKING));
  CUmodule module;
  Beside beside{context, nullptr, nullptr};
  CHECK(cuModuleLoadData(&module, MODULE));
  CHECK(cuModuleGetFunction(&beside.nothing, module, "nothing"));
  CHECK(cuStreamCreate(&beside.stream, CU_STREAM_NON_BLOCKING));
  std::vector<Case> cases;
  for (auto part : {memory_cases(things), mapping_cases(things), other_cases(things)})
    cases.insert(cases.end(), part.begin(), part.end());

  auto tell = [&](char order) {
    put(orders[1], &order, 1);
    take(answers[0], &order, 1);
  };
  // What is made at the first use is made.
  first.start(1);
  first.end();
  if (second) {
    second->start(1);
    second->end();
  }
  std::atomic<bool> ready{false};
  beside.launch(ready);
  for (const Case& one : cases) {
    run(one.prepare);
    run(one.before);
    run(one.call);
    CHECK(cuCtxSynchronize());
    run(one.finish);
  }

  printf("| call | a kernel of %.0f ms runs | waits | ms | launches wait meanwhile | ms |\n", SPIN_MS);
  printf("|---|---|---|---|---|---|\n");
  for (const Case& one : cases)
    measure(one, "on another stream", [&] { first.start(SPIN_MS); }, [&] { first.end(); }, beside);
  for (const Case& one : cases)
    measure(one, "of another process", [&] { tell('s'); }, [&] { tell('e'); }, beside);
  for (const Case& one : cases)
    if (second)
      measure(one, "on another GPU", [&] { second->start(SPIN_MS); }, [&] { second->end(); }, beside);

  close(orders[1]);
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child && status == 0);
  return 0;
}
