// Heat in a rod that is cut into a piece per rank. In each step neighbours exchange the cells at
// their edges: oxccl run -n 4 ./04_halo
#include "verdict.hpp"

namespace {
constexpr int CELLS = 64, STEPS = 200;

// One step; the first and last cell are the neighbours'.
void step(std::vector<double> &u) {
  const auto old = u;
  for (std::size_t i = 1; i + 1 < u.size(); i++) {
    u[i] = old[i] + 0.25 * (old[i - 1] - 2 * old[i] + old[i + 1]);
  }
}

// Cells from a number on.
std::vector<double> initial(int from, int cells) {
  std::vector<double> u(cells + 2);
  for (int i = 1; i <= cells; i++) u[i] = (from + i) % 17 == 0 ? 100 : (from + i) % 5;
  return u;
}
}  // namespace

int main() {
  auto comm = oxccl::communicator::from_env();
  auto stream = oxccl::stream::create();
  int rank = comm.rank(), nranks = comm.size();
  auto edge = oxccl::buffer<double>::allocate(4);  // to the left and right, and from them
  auto cell = [&](int i) { return oxccl::span(edge.data() + i, 1); };
  auto u = initial(rank * CELLS, CELLS);
  for (int t = 0; t < STEPS; t++) {
    std::vector<double> host{u[1], u[CELLS], 0, 0};  // 0 at the ends of the rod
    oxccl::copy(host, edge, stream);
    {
      oxccl::group calls;  // in a group, sends and receives wait for no order
      if (rank > 0) {
        comm.send(cell(0), rank - 1, stream);
        comm.recv(cell(2), rank - 1, stream);
      }
      if (rank < nranks - 1) {
        comm.send(cell(1), rank + 1, stream);
        comm.recv(cell(3), rank + 1, stream);
      }
    }
    oxccl::copy(edge, host, stream);
    stream.synchronize();
    u.front() = host[2];
    u.back() = host[3];
    step(u);
  }
  auto whole = initial(0, nranks * CELLS);
  for (int t = 0; t < STEPS; t++) step(whole);
  bool right = std::equal(u.begin() + 1, u.end() - 1, whole.begin() + 1 + rank * CELLS);
  return verdict(right, rank, nranks, "heat");
}
