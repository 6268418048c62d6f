// C++'s side of binding-overhead.
#include "overhead.h"

#include "oxccl.hpp"

int main() {
  auto comm = oxccl::communicator::from_env();
  auto stream = oxccl::stream::create();
  auto x = oxccl::buffer<float>::allocate(2);
  static double ns[BATCHES];
  for (double &batch : ns) {
    double start = now_ns();
    for (int i = 0; i < CALLS; i++) comm.all_reduce(x, x, ncclSum, stream);
    batch = now_ns() - start;
    stream.synchronize();
  }
  report("queued", ns);
  for (double &batch : ns) {
    double start = now_ns();
    for (int i = 0; i < CALLS; i++) {
      comm.all_reduce(x, x, ncclSum, stream);
      stream.synchronize();
    }
    batch = now_ns() - start;
  }
  report("waited", ns);
}
