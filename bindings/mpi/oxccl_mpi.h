/* A communicator of OxCCL from one of MPI. Header only, for C and C++; MPI's flags are the program's
 * own. SPDX: MIT OR Apache-2.0. */
#ifndef OXCCL_MPI_H_
#define OXCCL_MPI_H_

#include <mpi.h>

#include "oxccl.h"

/* Makes a communicator of the ranks of `mpi`, with their numbers, each on its thread's device (oxcclDeviceSet or
 * cudaSetDevice before).
 *
 * comm: out, the handle. mpi: all its ranks call. config: as for ncclCommInitRankConfig; may be null. Blocks for all
 * ranks: with blocking = 0 in the configuration only for the exchange of the id. A failure of MPI is
 * ncclSystemError; of rank 0's id, the same code on all ranks. */
static inline ncclResult_t oxcclCommInitMPI(ncclComm_t *comm, MPI_Comm mpi, ncclConfig_t *config) {
  struct {
    ncclResult_t made;
    ncclUniqueId id;
  } first;
  int rank, nranks;
  if (MPI_Comm_rank(mpi, &rank) != MPI_SUCCESS || MPI_Comm_size(mpi, &nranks) != MPI_SUCCESS)
    return ncclSystemError;
  first.made = ncclSuccess;
  if (rank == 0) first.made = ncclGetUniqueId(&first.id);
  if (MPI_Bcast(&first, (int)sizeof first, MPI_BYTE, 0, mpi) != MPI_SUCCESS) return ncclSystemError;
  if (first.made != ncclSuccess) return first.made;
  return ncclCommInitRankConfig(comm, nranks, first.id, rank, config);
}

#endif /* OXCCL_MPI_H_ */
