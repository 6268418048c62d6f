/* A communicator of MPI's ranks: mpirun -n 4 ./03_mpi (compile with mpicc) */
#include "check.h"
#include "oxccl_mpi.h"

int main(int argc, char **argv) {
  ncclComm_t comm;
  oxcclStream_t stream;
  double mine, ours, theirs, *x;
  int rank, nranks;
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &nranks);
  CHECK(oxcclCommInitMPI(&comm, MPI_COMM_WORLD, NULL));
  CHECK(oxcclStreamCreate(&stream));
  CHECK(oxcclMemAlloc((void **)&x, sizeof *x));
  mine = (rank * 7) % 5;
  CHECK(oxcclMemcpyAsync(x, &mine, sizeof *x, stream));
  CHECK(ncclAllReduce(x, x, 1, ncclDouble, ncclMax, comm, stream));
  CHECK(oxcclMemcpyAsync(&ours, x, sizeof *x, stream));
  CHECK(oxcclStreamSynchronize(stream, -1));
  MPI_Allreduce(&mine, &theirs, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
  CHECK(oxcclMemFree(x));
  CHECK(oxcclStreamDestroy(stream));
  CHECK(ncclCommDestroy(comm));
  MPI_Finalize();
  return verdict(ours == theirs, rank, nranks, "maximum, against MPI's,");
}
