// Buffers that the other ranks may read and write in place: oxccl::buffer, and registered.
// oxccl run -n 4 ./07_registered
#include "verdict.hpp"

int main() {
  constexpr int EACH = 1 << 16;
  auto comm = oxccl::communicator::from_env();
  auto stream = oxccl::stream::create();
  int rank = comm.rank(), nranks = comm.size();
  auto x = oxccl::buffer<int>::allocate(static_cast<std::size_t>(nranks) * EACH);
  auto registered = comm.register_buffer(x);  // once, for all calls to come
  auto part = oxccl::span(x.data() + rank * EACH, EACH);
  std::vector<int> host(EACH);
  for (int i = 0; i < EACH; i++) host[i] = rank * EACH + i;
  oxccl::copy(host, part, stream);
  comm.all_gather(part, x, stream);  // in place: this rank's part lies where it belongs
  std::vector<int> all(x.size());
  oxccl::copy(x, all, stream);
  stream.synchronize();
  bool right = true;
  for (int i = 0; i < nranks * EACH; i++) right &= all[i] == i;
  return verdict(right, rank, nranks, "gathered numbers");
}
