// A communicator of MPI's ranks, from an id that MPI hands round: mpirun -n 4 ./03_mpi (compile
// with mpicxx)
#include <mpi.h>

#include "verdict.hpp"

int main(int argc, char **argv) {
  MPI_Init(&argc, &argv);
  int rank, nranks;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &nranks);
  ncclUniqueId id{};
  if (rank == 0) id = oxccl::unique_id();
  MPI_Bcast(&id, sizeof id, MPI_BYTE, 0, MPI_COMM_WORLD);
  std::vector<double> ours{(rank * 7) % 5 * 1.0}, theirs(1);
  MPI_Allreduce(ours.data(), theirs.data(), 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
  {
    auto comm = oxccl::communicator::create(nranks, id, rank);
    auto stream = oxccl::stream::create();
    auto x = oxccl::buffer<double>::allocate(1);
    oxccl::copy(ours, x, stream);
    comm.all_reduce(x, x, ncclMax, stream);
    oxccl::copy(x, ours, stream);
    stream.synchronize();
  }
  MPI_Finalize();
  return verdict(ours == theirs, rank, nranks, "maximum, against MPI's,");
}
