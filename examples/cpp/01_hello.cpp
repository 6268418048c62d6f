// The sum of all ranks' numbers, on every rank: oxccl run -n 4 ./01_hello
#include "verdict.hpp"

int main() {
  auto comm = oxccl::communicator::from_env();
  auto stream = oxccl::stream::create();
  int rank = comm.rank(), nranks = comm.size();
  std::vector<float> host(1000);
  for (int i = 0; i < 1000; i++) host[i] = static_cast<float>(rank + i);
  auto x = oxccl::buffer<float>::allocate(host.size());  // of the device: host memory or a GPU's
  oxccl::copy(host, x, stream);
  comm.all_reduce(x, x, ncclSum, stream);  // type and length are the buffers'
  oxccl::copy(x, host, stream);
  stream.synchronize();  // nothing before has waited
  bool right = true;
  for (int i = 0; i < 1000; i++) {
    right &= host[i] == static_cast<float>(nranks * (nranks - 1) / 2 + nranks * i);
  }
  return verdict(right, rank, nranks, "sum");
}
