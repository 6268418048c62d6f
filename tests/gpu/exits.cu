// How processes end that use the library: `exits WHEN HOW LAYOUT STREAMS [RANKS]`. Every process
// has to end as HOW says and no other way, while its peers go on for a second.
//   WHEN     init | op | destroy: what rank 0 has done last
//   HOW      return | exit | _exit | abort | kill
//   LAYOUT   processes | threads: a rank each
//   STREAMS  kept | destroyed
// Compile: nvcc -std=c++17 -I PREFIX/include exits.cu -L PREFIX/lib -lnccl -o exits
#include <cuda_runtime.h>
#include <nccl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <string>
#include <thread>
#include <vector>

static std::string when, how, layout, streams;
static int nranks = 2;
static const int COUNT = 1 << 20;
static std::atomic<int> ready{0};  // threads that have done what they do

#define CHECK(good, text)                                               \
  do {                                                                  \
    if (!(good)) {                                                      \
      fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #good, text); \
      _exit(99);                                                        \
    }                                                                   \
  } while (0)
#define CUDA(call)                                          \
  do {                                                      \
    cudaError_t error = (call);                             \
    CHECK(error == cudaSuccess, cudaGetErrorString(error)); \
  } while (0)
#define NCCL(call)                                           \
  do {                                                       \
    ncclResult_t result = (call);                            \
    CHECK(result == ncclSuccess, ncclGetLastError(nullptr)); \
  } while (0)

// What a rank does before its process ends.
static void live(int rank, ncclUniqueId id) {
  int gpus = 0;
  CUDA(cudaGetDeviceCount(&gpus));
  CUDA(cudaSetDevice(rank % gpus));
  ncclComm_t comm;
  NCCL(ncclCommInitRank(&comm, nranks, id, rank));
  if (when == "init") return;
  cudaStream_t stream;
  float *data;
  CUDA(cudaStreamCreate(&stream));
  CUDA(cudaMalloc(&data, COUNT * sizeof(float)));
  for (int i = 0; i < 10; i++) NCCL(ncclAllReduce(data, data, COUNT, ncclFloat, ncclSum, comm, stream));
  CUDA(cudaStreamSynchronize(stream));
  if (when == "op") return;
  if (streams == "destroyed") CUDA(cudaStreamDestroy(stream));
  NCCL(ncclCommDestroy(comm));
}

static int leave(int rank) {
  // The others are there for a second more, and then end in the usual way.
  if (rank != 0) sleep(1);
  else if (how == "exit") exit(0);
  else if (how == "_exit") _exit(0);
  else if (how == "abort") abort();
  else if (how == "kill") raise(SIGKILL);
  return 0;
}

static bool ended_well(int rank, int status) {
  if (rank == 0 && how == "abort") return WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT;
  if (rank == 0 && how == "kill") return WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

// All ranks in one process, which ends as its main thread, rank 0, does.
static int threads() {
  ncclUniqueId id;
  NCCL(ncclGetUniqueId(&id));
  for (int rank = 1; rank < nranks; rank++) {
    std::thread([=] {
      live(rank, id);
      // From here on it calls nothing.
      ready++;
      pause();
    }).detach();
  }
  live(0, id);
  while (ready < nranks - 1) std::this_thread::yield();
  return leave(0);
}

int main(int argc, char **argv) {
  if (argc < 5) return 2;
  when = argv[1], how = argv[2], layout = argv[3], streams = argv[4];
  if (argc > 5) nranks = atoi(argv[5]);
  setenv("OXCCL_INIT_TIMEOUT", "20s", 1);
  // The ids pass through pipes: nothing of CUDA or the library is used before the forks.
  int processes = layout == "threads" ? 1 : nranks;
  std::vector<int> tell(processes);
  std::vector<pid_t> pids(processes);
  int first[2];
  if (pipe(first) != 0) return 2;
  for (int rank = 0; rank < processes; rank++) {
    int to[2];
    if (pipe(to) != 0) return 2;
    tell[rank] = to[1];
    pids[rank] = fork();
    if (pids[rank] == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      alarm(40);
      close(to[1]);
      if (rank != 0) close(first[1]);
      if (layout == "threads") return threads();
      ncclUniqueId id;
      if (rank == 0) {
        NCCL(ncclGetUniqueId(&id));
        CHECK(write(first[1], &id, sizeof id) == sizeof id, "pipe");
      } else {
        CHECK(read(to[0], &id, sizeof id) == sizeof id, "pipe");
      }
      live(rank, id);
      return leave(rank);
    }
    close(to[0]);
  }
  close(first[1]);
  if (layout == "processes") {
    ncclUniqueId id;
    if (read(first[0], &id, sizeof id) != sizeof id) return 2;
    for (int rank = 1; rank < processes; rank++)
      if (write(tell[rank], &id, sizeof id) != sizeof id) return 2;
  }
  int bad = 0;
  for (int rank = 0; rank < processes; rank++) {
    int status = 0;
    waitpid(pids[rank], &status, 0);
    if (ended_well(rank, status)) continue;
    printf("%s %s %s %s: rank %d ended with %s %d\n", argv[1], argv[2], argv[3], argv[4], rank,
           WIFSIGNALED(status) ? "signal" : "status",
           WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
    bad = 1;
  }
  return bad;
}
