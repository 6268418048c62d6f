/* Communicators from MPI's: of all ranks, and of those with even and odd numbers. */
#include <stdio.h>

#include "oxccl_mpi.h"

#define CHECK(call)                                              \
  do {                                                           \
    if ((call) != ncclSuccess) {                                 \
      fprintf(stderr, #call ": %s\n", ncclGetLastError(NULL));   \
      return 1;                                                  \
    }                                                            \
  } while (0)

/* The sum of the numbers that the ranks have in MPI_COMM_WORLD, by a communicator made of `mpi`. */
static int sum(MPI_Comm mpi, int number, int *total) {
  ncclComm_t comm;
  oxcclStream_t stream;
  CHECK(oxcclCommInitMPI(&comm, mpi, NULL));
  CHECK(oxcclStreamCreate(&stream));
  CHECK(ncclAllReduce(&number, total, 1, ncclInt, ncclSum, comm, stream));
  CHECK(oxcclStreamSynchronize(stream, -1));
  CHECK(oxcclStreamDestroy(stream));
  CHECK(ncclCommDestroy(comm));
  return 0;
}

int main(int argc, char **argv) {
  int rank, nranks, total;
  MPI_Comm half;
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &nranks);
  if (sum(MPI_COMM_WORLD, rank, &total) || total != nranks * (nranks - 1) / 2) return 2;
  MPI_Comm_split(MPI_COMM_WORLD, rank % 2, 0, &half);
  if (sum(half, rank, &total) || total != (rank % 2 ? 1 + 3 : 0 + 2)) return 3;
  printf("rank %d of %d: all right\n", rank, nranks);
  MPI_Comm_free(&half);
  MPI_Finalize();
  return 0;
}
