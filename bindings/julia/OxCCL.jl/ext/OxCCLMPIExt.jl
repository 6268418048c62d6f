# Communicators from those of MPI.jl.
module OxCCLMPIExt

using OxCCL, MPI

# All ranks call; they keep their numbers.
OxCCL.Comm(comm::MPI.Comm; options...) =
    OxCCL.Comm(value -> MPI.bcast(value, 0, comm), MPI.Comm_size(comm), MPI.Comm_rank(comm); options...)

end
