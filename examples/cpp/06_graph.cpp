// An all-reduce is captured once and launched many times: oxccl run -n 4 ./06_graph
#include "verdict.hpp"

int main() {
  auto comm = oxccl::communicator::from_env();
  auto stream = oxccl::stream::create();
  std::vector<std::int64_t> number{1};
  auto x = oxccl::buffer<std::int64_t>::allocate(1);
  oxccl::copy(number, x, stream);
  auto graph = oxccl::graph::capture(stream, [&] {
    comm.all_reduce(x, x, ncclSum, stream);  // noted, not done
  });
  auto ready = graph.instantiate();
  std::int64_t power = 1;
  for (int i = 0; i < 10; i++) {
    ready.launch(stream);
    power *= comm.size();
  }
  oxccl::copy(x, number, stream);
  stream.synchronize();
  return verdict(number[0] == power, comm.rank(), comm.size(), "ten launches");
}
