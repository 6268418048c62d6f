// The C++ binding without exceptions.
#include <cstdio>
#include <cstring>

#include "oxccl.hpp"

#define TRY(expression)                                             \
  if (auto &&done = (expression); !done) {                            \
    std::fprintf(stderr, #expression ": %s\n", done.error().what()); \
    return 1;                                                       \
  }

int main() {
  auto comm = oxccl::communicator::from_env();
  TRY(comm);
  auto stream = oxccl::stream::create();
  TRY(stream);
  std::vector<int> x{1, 2, 3};
  auto recorded = oxccl::graph::capture(
      *stream, [&] { return comm->all_reduce(x, x, ncclSum, *stream); });
  TRY(recorded);
  auto ready = recorded->instantiate();
  TRY(ready);
  TRY(ready->launch(*stream));
  TRY(stream->synchronize());
  const int n = *comm->size();
  if (x != std::vector<int>{n, 2 * n, 3 * n}) return 2;
  auto bad = comm->all_reduce(x, std::vector<int>(2), ncclSum, *stream);
  if (bad || bad.error().code() != ncclInvalidArgument) return 3;
  auto failed = oxccl::graph::capture(
      *stream, [&] { return comm->broadcast(x, -1, *stream); });
  if (failed || !std::strstr(failed.error().what(), "root")) return 4;
  {
    oxccl::group together;
    TRY(comm->all_reduce(x, x, ncclMax, *stream));
    TRY(together.end());
  }
  TRY(stream->synchronize());
  std::puts("C++ without exceptions is right");
  return 0;
}
