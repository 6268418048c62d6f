/* The calls of CUDA's runtime that programs for NCCL make around it, on host memory: so that such a
 * program is compiled and run, unchanged, where there is no CUDA. SPDX: MIT OR Apache-2.0.
 *
 * What is here does what CUDA's documentation says, with these differences: a device has any number; memory
 * of a device is memory of the host; of the calls on the default stream (NULL) only cudaMemcpy and cudaMemset
 * wait for other streams, and no other stream waits for it. What is not here does not compile.
 * Nothing needs to be linked but liboxccl. */
#ifndef OXCCL_HOSTCUDA_RUNTIME_H_
#define OXCCL_HOSTCUDA_RUNTIME_H_

/* As CUDA's own header brings them along. */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct CUstream_st *cudaStream_t;
typedef struct CUevent_st *cudaEvent_t;
typedef struct CUgraph_st *cudaGraph_t;
typedef struct CUgraphExec_st *cudaGraphExec_t;
typedef void (*cudaHostFn_t)(void *);

typedef enum cudaError {
  cudaSuccess = 0,
  cudaErrorInvalidValue = 1,
  cudaErrorMemoryAllocation = 2,
  cudaErrorNotReady = 600,
  cudaErrorUnknown = 999
} cudaError_t;

enum cudaMemcpyKind {
  cudaMemcpyHostToHost = 0,
  cudaMemcpyHostToDevice = 1,
  cudaMemcpyDeviceToHost = 2,
  cudaMemcpyDeviceToDevice = 3,
  cudaMemcpyDefault = 4
};

enum cudaStreamCaptureMode {
  cudaStreamCaptureModeGlobal = 0,
  cudaStreamCaptureModeThreadLocal = 1,
  cudaStreamCaptureModeRelaxed = 2
};

#define cudaStreamDefault 0x00
#define cudaStreamNonBlocking 0x01
#define cudaEventDefault 0x00
#define cudaEventBlockingSync 0x01
#define cudaEventDisableTiming 0x02

/* Functions of oxccl.h by other names, as that header includes nccl.h, which includes this one; and one of
 * C's library, which strict C hides. */
int oxhost_device_count(int kind, int *count) __asm__("oxcclDeviceCount");
int oxhost_device_set(int kind, int index) __asm__("oxcclDeviceSet");
int oxhost_device_get(int *kind, int *index) __asm__("oxcclDeviceGet");
int oxhost_alloc(void **ptr, size_t size) __asm__("oxcclMemAlloc");
int oxhost_free(void *ptr) __asm__("oxcclMemFree");
int oxhost_copy(void *to, const void *from, size_t n, cudaStream_t s) __asm__("oxcclMemcpyAsync");
int oxhost_set(void *to, int value, size_t n, cudaStream_t s) __asm__("oxcclMemsetAsync");
int oxhost_stream_create(cudaStream_t *s) __asm__("oxcclStreamCreate");
int oxhost_stream_destroy(cudaStream_t s) __asm__("oxcclStreamDestroy");
int oxhost_stream_query(cudaStream_t s) __asm__("oxcclStreamQuery");
int oxhost_stream_wait(cudaStream_t s, int64_t ns) __asm__("oxcclStreamSynchronize");
int oxhost_stream_wait_event(cudaStream_t s, cudaEvent_t e) __asm__("oxcclStreamWaitEvent");
int oxhost_stream_call(cudaStream_t s, cudaHostFn_t f, void *arg) __asm__("oxcclStreamHostFunc");
int oxhost_event_create(cudaEvent_t *e) __asm__("oxcclEventCreate");
int oxhost_event_destroy(cudaEvent_t e) __asm__("oxcclEventDestroy");
int oxhost_event_record(cudaEvent_t e, cudaStream_t s) __asm__("oxcclEventRecord");
int oxhost_event_query(cudaEvent_t e) __asm__("oxcclEventQuery");
int oxhost_event_elapsed(float *ms, cudaEvent_t a, cudaEvent_t b) __asm__("oxcclEventElapsedTime");
int oxhost_begin_capture(cudaStream_t s, int mode) __asm__("oxcclStreamBeginCapture");
int oxhost_end_capture(cudaStream_t s, cudaGraph_t *g) __asm__("oxcclStreamEndCapture");
int oxhost_instantiate(cudaGraphExec_t *x, cudaGraph_t g) __asm__("oxcclGraphInstantiate");
int oxhost_launch(cudaGraphExec_t x, cudaStream_t s) __asm__("oxcclGraphLaunch");
int oxhost_setenv(const char *name, const char *value, int overwrite) __asm__("setenv");
int oxhost_graph_destroy(cudaGraph_t g, cudaGraphExec_t x) __asm__("oxcclGraphDestroy");

/* An ncclResult_t: 4 is an invalid argument, 7 in progress; what else fails has no name in CUDA. */
static inline cudaError_t oxhost_error(int code) {
  switch (code) {
    case 0: return cudaSuccess;
    case 4: return cudaErrorInvalidValue;
    case 7: return cudaErrorNotReady;
    default: return cudaErrorUnknown;
  }
}

/* Everything is on the host, also communicators of threads that chose no device. */
__attribute__((constructor)) static void oxhost_choose(void) {
  oxhost_setenv("OXCCL_DEVICE", "host", 1);
}

/* The streams that there are, for calls that wait for all; one list for all files of a program. A place whose
 * stream has ended is taken again, so that nobody who goes through the list misses one. */
struct oxhost_stream {
  cudaStream_t stream;
  int device;
  unsigned flags;
};
struct oxhost_streams {
  struct oxhost_stream *list;
  size_t length;
  char locked;
};
__attribute__((weak)) struct oxhost_streams oxhost_streams;

static inline void oxhost_lock(void) {
  while (__atomic_test_and_set(&oxhost_streams.locked, __ATOMIC_ACQUIRE)) {
  }
}
static inline void oxhost_unlock(void) { __atomic_clear(&oxhost_streams.locked, __ATOMIC_RELEASE); }

/* Puts `now` into the place of the stream `old`, NULL for a free one. */
static inline int oxhost_note(cudaStream_t old, struct oxhost_stream now) {
  struct oxhost_streams *all = &oxhost_streams;
  size_t i = 0;
  oxhost_lock();
  while (i < all->length && all->list[i].stream != old) i++;
  if (i == all->length && !old) {
    void *grown = realloc(all->list, (i + 1) * sizeof *all->list);
    if (grown) {
      all->list = (struct oxhost_stream *)grown;
      all->length++;
    }
  }
  int found = i < all->length;
  if (found) all->list[i] = now;
  oxhost_unlock();
  return found;
}

static inline const char *cudaGetErrorName(cudaError_t error) {
  switch (error) {
    case cudaSuccess: return "cudaSuccess";
    case cudaErrorInvalidValue: return "cudaErrorInvalidValue";
    case cudaErrorMemoryAllocation: return "cudaErrorMemoryAllocation";
    case cudaErrorNotReady: return "cudaErrorNotReady";
    default: return "cudaErrorUnknown";
  }
}

static inline const char *cudaGetErrorString(cudaError_t error) {
  switch (error) {
    case cudaSuccess: return "no error";
    case cudaErrorInvalidValue: return "invalid argument";
    case cudaErrorMemoryAllocation: return "out of memory";
    case cudaErrorNotReady: return "not ready";
    default: return "unknown error; ncclGetLastError has a text";
  }
}

static inline cudaError_t cudaGetDeviceCount(int *count) {
  return oxhost_error(oxhost_device_count(0, count));
}
static inline cudaError_t cudaSetDevice(int index) {
  return oxhost_error(oxhost_device_set(0, index));
}
static inline cudaError_t cudaGetDevice(int *index) {
  int kind;
  return oxhost_error(oxhost_device_get(&kind, index));
}

static inline cudaError_t cudaMalloc(void **ptr, size_t size) {
  int code = oxhost_alloc(ptr, size);
  return code == 1 || code == 2 ? cudaErrorMemoryAllocation : oxhost_error(code);
}
static inline cudaError_t cudaMallocHost(void **ptr, size_t size) { return cudaMalloc(ptr, size); }
static inline cudaError_t cudaFree(void *ptr) { return oxhost_error(oxhost_free(ptr)); }
static inline cudaError_t cudaFreeHost(void *ptr) { return cudaFree(ptr); }

static inline cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes,
                                          enum cudaMemcpyKind kind, cudaStream_t stream) {
  if ((unsigned)kind > cudaMemcpyDefault) return cudaErrorInvalidValue;
  return oxhost_error(oxhost_copy(to, from, bytes, stream));
}
static inline cudaError_t cudaMemsetAsync(void *to, int value, size_t bytes, cudaStream_t stream) {
  return oxhost_error(oxhost_set(to, value, bytes, stream));
}
static inline cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  return oxhost_error(oxhost_stream_wait(stream, -1));
}
/* Waits for the streams of the device, but for those with one of some flags. */
static inline cudaError_t oxhost_wait(unsigned without) {
  int device = 0;
  cudaError_t error = cudaGetDevice(&device);
  for (size_t i = 0; error == cudaSuccess; i++) {
    struct oxhost_stream one = {0, 0, 0};
    oxhost_lock();
    int there = i < oxhost_streams.length;
    if (there) one = oxhost_streams.list[i];
    oxhost_unlock();
    if (!there) return cudaStreamSynchronize(0);
    if (one.stream && one.device == device && !(one.flags & without)) {
      error = cudaStreamSynchronize(one.stream);
    }
  }
  return error;
}
static inline cudaError_t cudaDeviceSynchronize(void) { return oxhost_wait(0); }

static inline cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes,
                                     enum cudaMemcpyKind kind) {
  cudaError_t error = oxhost_wait(cudaStreamNonBlocking);
  if (error == cudaSuccess) error = cudaMemcpyAsync(to, from, bytes, kind, 0);
  return error == cudaSuccess ? cudaStreamSynchronize(0) : error;
}
static inline cudaError_t cudaMemset(void *to, int value, size_t bytes) {
  cudaError_t error = oxhost_wait(cudaStreamNonBlocking);
  if (error == cudaSuccess) error = cudaMemsetAsync(to, value, bytes, 0);
  return error == cudaSuccess ? cudaStreamSynchronize(0) : error;
}

static inline cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags) {
  struct oxhost_stream made = {0, 0, flags};
  if (!stream || flags > cudaStreamNonBlocking) return cudaErrorInvalidValue;
  cudaError_t error = cudaGetDevice(&made.device);
  if (error == cudaSuccess) error = oxhost_error(oxhost_stream_create(&made.stream));
  if (error != cudaSuccess) return error;
  if (!oxhost_note(0, made)) {
    oxhost_stream_destroy(made.stream);
    return cudaErrorMemoryAllocation;
  }
  *stream = made.stream;
  return cudaSuccess;
}
static inline cudaError_t cudaStreamCreate(cudaStream_t *stream) {
  return cudaStreamCreateWithFlags(stream, cudaStreamDefault);
}
static inline cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  struct oxhost_stream none = {0, 0, 0};
  if (stream) oxhost_note(stream, none);
  return oxhost_error(oxhost_stream_destroy(stream));
}
static inline cudaError_t cudaStreamQuery(cudaStream_t stream) {
  return oxhost_error(oxhost_stream_query(stream));
}
static inline cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void *arg) {
  return oxhost_error(oxhost_stream_call(stream, function, arg));
}

static inline cudaError_t cudaEventCreate(cudaEvent_t *event) {
  return oxhost_error(oxhost_event_create(event));
}
static inline cudaError_t cudaEventDestroy(cudaEvent_t event) {
  return oxhost_error(oxhost_event_destroy(event));
}
static inline cudaError_t cudaEventQuery(cudaEvent_t event) {
  return oxhost_error(oxhost_event_query(event));
}
static inline cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t start, cudaEvent_t end) {
  return oxhost_error(oxhost_event_elapsed(ms, start, end));
}

static inline cudaError_t cudaStreamBeginCapture(cudaStream_t stream,
                                                 enum cudaStreamCaptureMode mode) {
  return oxhost_error(oxhost_begin_capture(stream, mode));
}
static inline cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *graph) {
  return oxhost_error(oxhost_end_capture(stream, graph));
}
static inline cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream) {
  return oxhost_error(oxhost_launch(exec, stream));
}
static inline cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  return oxhost_error(oxhost_graph_destroy(graph, 0));
}
static inline cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) {
  return oxhost_error(oxhost_graph_destroy(0, exec));
}

#ifdef __cplusplus
} /* extern "C" */

template <class T>
inline cudaError_t cudaMalloc(T **ptr, size_t size) {
  return cudaMalloc(reinterpret_cast<void **>(ptr), size);
}
template <class T>
inline cudaError_t cudaMallocHost(T **ptr, size_t size) {
  return cudaMallocHost(reinterpret_cast<void **>(ptr), size);
}
#define OXHOST_DEFAULT(value) = value
#else
#define OXHOST_DEFAULT(value)
#endif

/* With default arguments in C++, as CUDA has them. */
static inline cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event,
                                              unsigned flags OXHOST_DEFAULT(0)) {
  return flags ? cudaErrorInvalidValue : oxhost_error(oxhost_stream_wait_event(stream, event));
}
static inline cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream OXHOST_DEFAULT(0)) {
  return oxhost_error(oxhost_event_record(event, stream));
}
static inline cudaError_t cudaGraphInstantiate(cudaGraphExec_t *exec, cudaGraph_t graph,
                                               unsigned long long flags OXHOST_DEFAULT(0)) {
  return flags ? cudaErrorInvalidValue : oxhost_error(oxhost_instantiate(exec, graph));
}
#undef OXHOST_DEFAULT

#endif
