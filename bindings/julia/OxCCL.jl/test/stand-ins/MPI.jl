# What the extension for MPI.jl uses of it, for tasks of one process.
module MPI

struct Comm
    rank::Int
    size::Int
    values::Channel
end

Comm_rank(c::Comm) = c.rank
Comm_size(c::Comm) = c.size

function bcast(value, root::Integer, c::Comm)
    c.rank == root || return take!(c.values)
    foreach(_ -> put!(c.values, value), 2:c.size)
    return value
end

end
