# Collectives with equal lengths, and messages.

# Until the stream has been synchronized.
@inline keep!(s::Stream) = nothing
@inline keep!(s::Stream, array, more...) = (push!(s.keeper.arrays, array); keep!(s, more...))

# Begins a call on arrays; waits for it where no stream was named.
@inline function run(call, c::Comm, ::Nothing, arrays...)
    may_wait()
    check(GC.@preserve arrays call(c.stream.handle))
    keep!(c.stream, arrays...)
    return synchronize(c.stream)
end
@inline function run(call, c::Comm, s::Stream, arrays...)
    check(GC.@preserve arrays call(s.handle))
    keep!(s, arrays...)
    return nothing
end
run(call, c::Comm, stream, arrays...) = throw(ArgumentError("stream is $stream; expected a Stream"))

expect(call, argument, got, expected) = got == expected || mismatch(call, argument, got, expected)

"`Allreduce!(send, recv, op, comm)`, `Allreduce!(data, op, comm)`: the reduction of all ranks' elements, on every rank."
function Allreduce!(send::Elements{T}, recv::Elements{T}, op::O, c::Comm; stream = nothing, options...) where {T,O}
    expect("Allreduce!", "recv", length(recv), length(send))
    run(c, stream, send, recv) do on
        configured(ncclAllReduce, ncclAllReduceConfig, options,
                   address(send), address(recv), length(send), datatype(T), operation(op), open_handle(c), on)
    end
    return recv
end
Allreduce!(data::Elements, op::O, c::Comm; stream = nothing, options...) where {O} =
    Allreduce!(data, data, op, c; stream = stream, options...)

"`Bcast!(data, root, comm)`: the root's elements, on every rank."
function Bcast!(data::Elements{T}, root::Integer, c::Comm; stream = nothing, options...) where {T}
    run(c, stream, data) do on
        configured(ncclBroadcast, ncclBroadcastConfig, options,
                   address(data), address(data), length(data), datatype(T), root, open_handle(c), on)
    end
    return data
end

"`Reduce!(send, recv, op, root, comm)`: the reduction of all ranks' elements in the root's `recv`, ignored elsewhere."
function Reduce!(send::Elements{T}, recv::Elements{T}, op::O, root::Integer, c::Comm;
                 stream = nothing, options...) where {T,O}
    c.rank == root && expect("Reduce!", "recv", length(recv), length(send))
    run(c, stream, send, recv) do on
        configured(ncclReduce, ncclReduceConfig, options,
                   address(send), address(recv), length(send), datatype(T), operation(op), root, open_handle(c), on)
    end
    return recv
end

"`Allgather!(send, recv, comm)`: every rank's elements, one behind the other, on every rank."
function Allgather!(send::Elements{T}, recv::Elements{T}, c::Comm; stream = nothing, options...) where {T}
    expect("Allgather!", "recv", length(recv), length(send) * c.size)
    run(c, stream, send, recv) do on
        configured(ncclAllGather, ncclAllGatherConfig, options,
                   address(send), address(recv), length(send), datatype(T), open_handle(c), on)
    end
    return recv
end

"`Reduce_scatter!(send, recv, op, comm)`: block r of the reduction of all ranks' elements, on rank r."
function Reduce_scatter!(send::Elements{T}, recv::Elements{T}, op::O, c::Comm;
                         stream = nothing, options...) where {T,O}
    expect("Reduce_scatter!", "send", length(send), length(recv) * c.size)
    run(c, stream, send, recv) do on
        configured(ncclReduceScatter, ncclReduceScatterConfig, options,
                   address(send), address(recv), length(recv), datatype(T), operation(op), open_handle(c), on)
    end
    return recv
end

"`Alltoall!(send, recv, comm)`: block r of `send` becomes the block of this rank in the `recv` of rank r."
function Alltoall!(send::Elements{T}, recv::Elements{T}, c::Comm; stream = nothing, options...) where {T}
    count = length(send) ÷ c.size
    expect("Alltoall!", "send", length(send), count * c.size)
    expect("Alltoall!", "recv", length(recv), length(send))
    run(c, stream, send, recv) do on
        configured(ncclAlltoAll, ncclAlltoAllConfig, options,
                   address(send), address(recv), count, datatype(T), open_handle(c), on)
    end
    return recv
end

"`Gather!(send, recv, root, comm)`: every rank's elements, one behind the other, in the root's `recv`, ignored elsewhere."
function Gather!(send::Elements{T}, recv::Elements{T}, root::Integer, c::Comm; stream = nothing, options...) where {T}
    c.rank == root && expect("Gather!", "recv", length(recv), length(send) * c.size)
    run(c, stream, send, recv) do on
        configured(ncclGather, ncclGatherConfig, options,
                   address(send), address(recv), length(send), datatype(T), root, open_handle(c), on)
    end
    return recv
end

"`Scatter!(send, recv, root, comm)`: block r of the root's `send`, ignored elsewhere, in the `recv` of rank r."
function Scatter!(send::Elements{T}, recv::Elements{T}, root::Integer, c::Comm; stream = nothing, options...) where {T}
    c.rank == root && expect("Scatter!", "send", length(send), length(recv) * c.size)
    run(c, stream, send, recv) do on
        configured(ncclScatter, ncclScatterConfig, options,
                   address(send), address(recv), length(recv), datatype(T), root, open_handle(c), on)
    end
    return recv
end

"""
    Send(data, rank, comm)
    Send(data, comm; dest)

To a rank, which receives as many elements. Calls of one communicator run one behind the other, also those of
several tasks, and a large `Send` waits for its `Recv!`: ranks that send to each other, or in a circle, use
[`Sendrecv!`](@ref) or a [`group`](@ref), else they wait for ever.
"""
function Send(data::Elements{T}, to::Integer, c::Comm; stream = nothing) where {T}
    run(c, stream, data) do on
        ncclSend(address(data), length(data), datatype(T), to, open_handle(c), on)
    end
    return nothing
end

"""
    Recv!(data, rank, comm)
    Recv!(data, comm; source)

From a rank, which sends as many elements. Where that rank receives from this one before it sends, use
[`Sendrecv!`](@ref) or a [`group`](@ref): see [`Send`](@ref).
"""
function Recv!(data::Elements{T}, from::Integer, c::Comm; stream = nothing) where {T}
    run(c, stream, data) do on
        ncclRecv(address(data), length(data), datatype(T), from, open_handle(c), on)
    end
    return data
end
