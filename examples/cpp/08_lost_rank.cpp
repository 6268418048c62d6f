// The last rank vanishes; the others learn which one it was and go on without it:
// oxccl run -n 4 ./08_lost_rank
#include <unistd.h>

#include "verdict.hpp"

// The number of ranks by an all-reduce. `ranks` is in use until the stream is done, also after an
// error.
static int count(const oxccl::communicator &comm, const oxccl::stream &stream,
                 const oxccl::buffer<int> &x, std::vector<int> &ranks) {
  ranks = {1};
  oxccl::copy(ranks, x, stream);
  comm.all_reduce(x, x, ncclSum, stream);
  oxccl::copy(x, ranks, stream);
  stream.synchronize();
  return ranks[0];
}

int main() {
  auto comm = oxccl::communicator::from_env();
  auto stream = oxccl::stream::create();
  auto x = oxccl::buffer<int>::allocate(1);
  std::vector<int> ranks;
  int rank = comm.rank(), nranks = comm.size();
  if (nranks < 2) {
    std::cerr << "start it on two ranks or more\n";
    return 1;
  }
  bool right = count(comm, stream, x, ranks) == nranks;
  if (rank == nranks - 1) _exit(0);  // without a word to anyone
  int lost = -1;
  try {
    while (true) count(comm, stream, x, ranks);
  } catch (const oxccl::error &error) {
    right &= error.code() == ncclRemoteError;
    lost = error.peer();
  }
  auto rest = comm.shrink({lost}, NCCL_SHRINK_ABORT);
  comm.abort();
  right &= lost == nranks - 1 && count(rest, stream, x, ranks) == nranks - 1;
  return verdict(right, rank, nranks, "count of those who are left");
}
