# MPI.jl's forms: ranks by keyword, results in new arrays, and numbers. There are no tags.

# What stands for an array that is not looked at; at the root it is.
function elsewhere(call, argument, array, other, root, c)
    array === nothing || return array
    c.rank == root || return other
    throw(OxCCLError(ncclInvalidArgument, -1, -1, "$call: $argument is nothing; the root needs an array"))
end

Bcast!(data::Elements, c::Comm; root::Integer = 0, stream = nothing, options...) =
    Bcast!(data, root, c; stream = stream, options...)

# What is no array is not sent. The message of a `MethodError` tells of arrays that are not taken.
function no_elements(data, arguments...)
    data isa AbstractArray && throw(MethodError(Bcast!, (data, arguments...)))
    throw(ArgumentError("Bcast!: data is a $(typeof(data)); expected an array of numbers, such as a Vector{Float64}. " *
        "Other objects go as their bytes: serialize one, and Bcast! the length and then the bytes, as the page " *
        "\"From MPI\" of the documentation has it"))
end
Bcast!(data, root::Integer, c::Comm; options...) = no_elements(data, root, c)
Bcast!(data, c::Comm; options...) = no_elements(data, c)

Reduce!(send::Elements, recv::Union{Elements,Nothing}, op::O, c::Comm;
        root::Integer = 0, stream = nothing, options...) where {O} =
    Reduce!(send, elsewhere("Reduce!", "recv", recv, send, root, c), op, root, c; stream = stream, options...)
Reduce!(data::Elements, op::O, c::Comm; root::Integer = 0, stream = nothing, options...) where {O} =
    Reduce!(data, data, op, root, c; stream = stream, options...)
Reduce!(data::Elements, op::O, root::Integer, c::Comm;
        stream = nothing, options...) where {O<:Union{Function,ncclRedOp_t,PreMulSum}} =
    Reduce!(data, data, op, root, c; stream = stream, options...)

Gather!(send::Elements, recv::Union{Elements,Nothing}, c::Comm; root::Integer = 0, stream = nothing, options...) =
    Gather!(send, elsewhere("Gather!", "recv", recv, send, root, c), root, c; stream = stream, options...)

Scatter!(send::Union{Elements,Nothing}, recv::Elements, c::Comm; root::Integer = 0, stream = nothing, options...) =
    Scatter!(elsewhere("Scatter!", "send", send, recv, root, c), recv, root, c; stream = stream, options...)

Gatherv!(send::Elements{T}, recv::Union{VBuffer{T},Nothing}, c::Comm; root::Integer = 0, stream = nothing) where {T} =
    Gatherv!(send, recv, root, c; stream = stream)

Scatterv!(send::Union{VBuffer{T},Nothing}, recv::Elements{T}, c::Comm; root::Integer = 0, stream = nothing) where {T} =
    Scatterv!(send, recv, root, c; stream = stream)

Send(data::Elements, c::Comm; dest::Integer, stream = nothing) = Send(data, dest, c; stream = stream)

Recv!(data::Elements, c::Comm; source::Integer, stream = nothing) = Recv!(data, source, c; stream = stream)

"`Sendrecv!(send, recv, comm; dest, source)`: to a rank and from a rank at once; the arrays must not overlap."
function Sendrecv!(send::Elements{S}, recv::Elements{T}, c::Comm;
                   dest::Integer, source::Integer, stream = nothing) where {S,T}
    run(c, stream, send, recv) do on
        group() do
            check(ncclSend(address(send), length(send), datatype(S), dest, open_handle(c), on))
            check(ncclRecv(address(recv), length(recv), datatype(T), source, open_handle(c), on))
        end
        return Cint(ncclSuccess)
    end
    return recv
end

"`Barrier(comm)`: waits until all ranks have called it. The current device has to be the communicator's."
function Barrier(c::Comm)
    if device()[1] == oxcclDeviceHost
        Allreduce!(UInt8[0], max, c)
        return nothing
    end
    # GPUs take no element of an Array.
    place = Ref{Ptr{Cvoid}}()
    check(oxcclMemAlloc(place, 1))
    x = place[]
    try
        run(on -> ncclAllReduce(x, x, 1, ncclUint8, ncclMax, open_handle(c), on), c, nothing)
    finally
        oxcclMemFree(x)
    end
    return nothing
end

# A new array at the root, where `recv` is looked at; nothing elsewhere.
function at_root_only(call, send, count, root, c)
    recv = c.rank == root ? similar(send, count) : send
    call(recv)
    return c.rank == root ? recv : nothing
end

# Refuses a stream in calls that return an element: it is not there before the stream has been synchronized.
function without_stream(call, options)
    get(options, :stream, nothing) === nothing || throw(ArgumentError("$call returns an element, and so cannot go into a stream"))
    return options
end

"`Allreduce(send, op, comm)`: the reduction of all ranks' elements, in a new array; of a number, a number."
Allreduce(send::Elements, op::O, c::Comm; stream = nothing, options...) where {O} =
    Allreduce!(send, similar(send), op, c; stream = stream, options...)
Allreduce(number::Number, op::O, c::Comm; options...) where {O} =
    Allreduce!([number], op, c; without_stream("Allreduce", options)...)[1]

"""
    Reduce(send, op, comm; root = 0)
    Reduce(send, op, root, comm)

The reduction of all ranks' elements, in a new array at the root; nothing elsewhere. Of a number, a number.
"""
Reduce(send::Elements, op::O, c::Comm; root::Integer = 0, stream = nothing, options...) where {O} =
    at_root_only(recv -> Reduce!(send, recv, op, root, c; stream = stream, options...), send, size(send), root, c)
function Reduce(number::Number, op::O, c::Comm; root::Integer = 0, options...) where {O}
    result = Reduce([number], op, c; root = root, without_stream("Reduce", options)...)
    return result === nothing ? nothing : result[1]
end

Reduce(send::Union{Elements,Number}, op::O, root::Integer, c::Comm; options...) where {O} =
    Reduce(send, op, c; root = root, options...)

"`Allgather(send, comm)`: every rank's elements, one behind the other, in a new array; of a number, an element per rank."
Allgather(send::Elements, c::Comm; stream = nothing, options...) =
    Allgather!(send, similar(send, length(send) * c.size), c; stream = stream, options...)
Allgather(number::Number, c::Comm; options...) = Allgather([number], c; options...)

"""
    Gather(send, comm; root = 0)
    Gather(send, root, comm)

Every rank's elements, one behind the other, in a new array at the root; nothing elsewhere.
"""
Gather(send::Elements, c::Comm; root::Integer = 0, stream = nothing, options...) =
    at_root_only(recv -> Gather!(send, recv, root, c; stream = stream, options...), send, length(send) * c.size, root, c)
Gather(number::Number, c::Comm; root::Integer = 0, options...) = Gather([number], c; root = root, options...)
Gather(send::Union{Elements,Number}, root::Integer, c::Comm; options...) = Gather(send, c; root = root, options...)

"""
    Scatter(send, T, comm; root = 0)
    Scatter(send, T, root, comm)

Element r of the root's `send`, which is ignored elsewhere, on rank r. Its type is `T`.
"""
function Scatter(send::Union{Elements,Nothing}, ::Type{T}, c::Comm; root::Integer = 0, options...) where {T}
    part = Vector{T}(undef, 1)
    own = c.rank == root ? send : nothing
    own === nothing || eltype(own) === T || throw(ArgumentError(
        "Scatter: the elements of send are of type $(eltype(own)); expected $T"))
    return Scatter!(own, part, c; root = root, without_stream("Scatter", options)...)[1]
end
Scatter(send::Union{Elements,Nothing}, ::Type{T}, root::Integer, c::Comm; options...) where {T} =
    Scatter(send, T, c; root = root, options...)

"`Alltoall(send, comm)`: block r of `send` becomes the block of this rank in the new array of rank r."
Alltoall(send::Elements, c::Comm; stream = nothing, options...) =
    Alltoall!(send, similar(send), c; stream = stream, options...)
