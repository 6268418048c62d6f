# Collectives with a length per rank.

"""
    VBuffer(data, counts)
    VBuffer(data, counts, displs)

An array with a part for each rank: `counts[r+1]` elements for rank r, behind `displs[r+1]` others; without
`displs` the parts lie one behind the other.
"""
struct VBuffer{T,A<:Elements{T}}
    data::A
    counts::Vector{Csize_t}
    displs::Vector{Csize_t}
    function VBuffer(data::A, counts, displs) where {T,A<:Elements{T}}
        all_whole("counts", counts)
        all_whole("displs", displs)
        length(counts) == length(displs) || mismatch("VBuffer", "displs", length(displs), length(counts))
        # A part without elements may be anywhere.
        for (count, displ) in zip(counts, displs)
            count == 0 || 0 < count && 0 <= displ <= length(data) - count || throw(OxCCLError(
                ncclInvalidArgument, -1, -1,
                "VBuffer: a part of $count elements behind $displ others is not in an array of $(length(data))"))
        end
        return new{T,A}(data, counts, [count == 0 ? 0 : displ for (count, displ) in zip(counts, displs)])
    end
end
function VBuffer(data, counts)
    all_whole("counts", counts)
    return VBuffer(data, counts, cumsum(counts) .- counts)
end

# Refuses what is no list of whole numbers.
all_whole(argument, list) = applicable(iterate, list) && all(n -> n isa Integer, list) || throw(ArgumentError(
    "VBuffer: $argument is $(repr(list)); expected a whole number for each rank"))

# As many parts as ranks; the last check before their addresses are passed on.
parts(call, argument, b::VBuffer, c::Comm) = expect(call, "the counts of $argument", length(b.counts), c.size)

"`Allgatherv!(send, recv::VBuffer, comm)`: every rank's elements, of different lengths, in their parts on every rank."
function Allgatherv!(send::Elements{T}, recv::VBuffer{T}, c::Comm; stream = nothing) where {T}
    parts("Allgatherv!", "recv", recv, c)
    run(c, stream, send, recv.data) do on
        oxcclAllGatherv(address(send), length(send), address(recv.data), recv.counts, recv.displs, datatype(T),
                        open_handle(c), on)
    end
    return recv.data
end

"`Reduce_scatterv!(send, recv, counts, op, comm)`: block r, of `counts[r+1]` elements, of the reduction of all ranks' elements, on rank r."
function Reduce_scatterv!(send::Elements{T}, recv::Elements{T}, counts, op::O, c::Comm; stream = nothing) where {T,O}
    blocks = VBuffer(send, counts)
    parts("Reduce_scatterv!", "send", blocks, c)
    expect("Reduce_scatterv!", "send", length(send), sum(counts))
    expect("Reduce_scatterv!", "recv", length(recv), counts[c.rank+1])
    run(c, stream, send, recv) do on
        oxcclReduceScatterv(address(send), address(recv), blocks.counts, datatype(T), operation(op), open_handle(c), on)
    end
    return recv
end

"`Alltoallv!(send::VBuffer, recv::VBuffer, comm)`: part r of `send` becomes the part of this rank in the `recv` of rank r."
function Alltoallv!(send::VBuffer{T}, recv::VBuffer{T}, c::Comm; stream = nothing) where {T}
    parts("Alltoallv!", "send", send, c)
    parts("Alltoallv!", "recv", recv, c)
    run(c, stream, send.data, recv.data) do on
        oxcclAlltoAllv(address(send.data), send.counts, send.displs, address(recv.data), recv.counts, recv.displs,
                       datatype(T), open_handle(c), on)
    end
    return recv.data
end

"`Gatherv!(send, recv, root, comm)`: every rank's elements, of different lengths, in the root's `recv::VBuffer`; `nothing` elsewhere."
function Gatherv!(send::Elements{T}, recv::Union{VBuffer{T},Nothing}, root::Integer, c::Comm; stream = nothing) where {T}
    at_root("Gatherv!", "recv", recv, root, c)
    to, counts, displs = places(recv, root, c)
    run(c, stream, send, to) do on
        oxcclGatherv(address(send), length(send), address(to), counts, displs, datatype(T), root, open_handle(c), on)
    end
    return recv === nothing ? nothing : recv.data
end

"`Scatterv!(send, recv, root, comm)`: part r of the root's `send::VBuffer`, `nothing` elsewhere, in the `recv` of rank r."
function Scatterv!(send::Union{VBuffer{T},Nothing}, recv::Elements{T}, root::Integer, c::Comm; stream = nothing) where {T}
    at_root("Scatterv!", "send", send, root, c)
    from, counts, displs = places(send, root, c)
    run(c, stream, recv, from) do on
        oxcclScatterv(address(from), counts, displs, address(recv), length(recv), datatype(T), root, open_handle(c), on)
    end
    return recv
end

function at_root(call, argument, b, root, c)
    c.rank == root || return nothing
    b === nothing && throw(OxCCLError(ncclInvalidArgument, -1, -1, "$call: $argument is nothing; the root needs a VBuffer"))
    return parts(call, argument, b, c)
end

# What C looks at, which is nothing but at the root.
places(b, root, c) = c.rank == root ? (b.data, b.counts, b.displs) : (nothing, C_NULL, C_NULL)
address(::Nothing) = C_NULL
