// One process drives many devices: all GPUs, or four devices of the host. ./02_devices
#include "verdict.hpp"

int main() {
  oxcclDeviceKind_t kind = oxcclDeviceHost;
  int index = 0;
  oxcclDeviceGet(&kind, &index);
  int n = kind == oxcclDeviceCuda ? oxccl::device_count(kind) : 4;
  auto comms = oxccl::communicator::create_all(n);
  std::vector<oxccl::stream> streams;
  std::vector<oxccl::buffer<int>> x;
  for (int i = 0; i < n; i++) {
    oxccl::set_device(kind, i);  // what is made from here on belongs to device i
    streams.push_back(oxccl::stream::create());
    x.push_back(oxccl::buffer<int>::allocate(1));
    oxccl::copy(std::vector{i + 1}, x[i], streams[i]);
    streams[i].synchronize();  // the vector ends
  }
  {
    oxccl::group calls;  // one thread makes the calls of all ranks: they belong together
    for (int i = 0; i < n; i++) comms[i].all_reduce(x[i], x[i], ncclSum, streams[i]);
  }
  bool right = true;
  for (int i = 0; i < n; i++) {
    std::vector<int> sum(1);
    oxccl::copy(x[i], sum, streams[i]);
    streams[i].synchronize();
    right &= sum[0] == n * (n + 1) / 2;
  }
  return verdict(right, 0, 1, "sums on all devices");
}
