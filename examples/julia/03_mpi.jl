# Ranks and sizes come from mpirun; MPI itself is not needed: mpirun -n 4 julia 03_mpi.jl
using OxCCL
include("verdict.jl")

comm = Comm()
told = parse(Int, ENV["OMPI_COMM_WORLD_RANK"]) # as mpirun of Open MPI numbers them
ranks = fill(-1, comm.size)
Allgather!([told], ranks, comm)
close(comm)
verdict(told == comm.rank && ranks == 0:comm.size-1, comm.rank, comm.size, "ranks")
