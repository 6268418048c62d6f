# The last rank vanishes; the others learn which one it was and go on without it:
# oxccl run -n 4 julia 08_lost_rank.jl
using OxCCL
include("verdict.jl")

count_ranks(comm) = Allreduce!([1], +, comm)[1]

function failure(comm)
    try
        while true
            count_ranks(comm)
        end
    catch e
        return e
    end
end

comm = Comm()
comm.size > 1 || error("start it on two ranks or more")
right = count_ranks(comm) == comm.size
comm.rank == comm.size - 1 && ccall(:_exit, Cvoid, (Cint,), 0) # without a word to anyone
e = failure(comm)
right &= e isa OxCCLError && e.code == OxCCL.ncclRemoteError && e.peer == comm.size - 1
right || error("$e")
rest = shrink(comm, [e.peer])
abort(comm)
right = count_ranks(rest) == comm.size - 1
close(rest)
verdict(right, comm.rank, comm.size, "count of those who are left")
