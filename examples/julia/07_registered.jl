# Arrays that the other ranks read and write in place: from alloc, and registered. oxccl run -n 4 julia 07_registered.jl
using OxCCL
include("verdict.jl")

const EACH = 1 << 16
comm = Comm()
x = alloc(Int32, comm.size * EACH)
registration = register(comm, x) # once, for all calls to come
part = view(x, comm.rank*EACH+1:(comm.rank+1)*EACH)
part .= comm.rank * EACH .+ (0:EACH-1)
Allgather!(part, x, comm) # in place: this rank's part lies where it belongs
close(registration)
close(comm)
verdict(x == 0:comm.size*EACH-1, comm.rank, comm.size, "gathered numbers")
