"""
Collective communication between processes and hosts, with names like MPI.jl's.

Without a stream a call waits until it is complete, by looking again and again and letting other tasks
run meanwhile: a `ccall` that blocks would stop garbage collection in all threads. With `stream = s` it
returns at once and is complete when [`synchronize`](@ref)`(s)` returns; the stream keeps the arrays alive
until then.

The library is the one that the environment variable OXCCL_LIBRARY names, else the preference `library` of
this package, else the system's liboxccl.so.2.
"""
module OxCCL

using Libdl

include("raw_gen.jl")

export Comm, Stream, Event, Graph, UniqueId, OxCCLError
export Allreduce!, Bcast!, Reduce!, Allgather!, Reduce_scatter!, Alltoall!, Gather!, Scatter!, Send, Recv!
export synchronize, group, capture, launch, record, alloc, split, shrink, abort, premulsum

# ---- The library and its errors ----

const UUID = Base.UUID("5d1b6c0e-3f0a-4d53-9c3b-0c2b7c1f9a42")

function library()
    path = get(ENV, "OXCCL_LIBRARY", "")
    if isempty(path) && isdefined(Base, :get_preferences)
        path = get(Base.get_preferences(UUID), "library", "")
    end
    return isempty(path) ? "liboxccl.so.2" : path
end

function __init__()
    handle = Libdl.dlopen(library())
    for (i, name) in enumerate(FUNCTIONS)
        ADDRESSES[i] = Libdl.dlsym(handle, name)
    end
end

"What failed: its code, the rank that reports, the rank at fault (-1: unknown), and the whole message."
struct OxCCLError <: Exception
    code::ncclResult_t
    rank::Int
    peer::Int
    text::String
end

Base.showerror(io::IO, e::OxCCLError) = print(io, "OxCCL: ", e.text)

text_of(chars) = String(UInt8[reinterpret(UInt8, c) for c in Iterators.takewhile(!iszero, chars)])

function last_error(code, fill)
    place = Ref{oxcclErrorInfo_t}()
    GC.@preserve place begin
        info = Base.unsafe_convert(Ptr{oxcclErrorInfo_t}, place)
        unsafe_store!(Ptr{Csize_t}(info), sizeof(oxcclErrorInfo_t))
        fill(info)
    end
    found = place[]
    return OxCCLError(ncclResult_t(code), found.rank, found.peer, text_of(found.text))
end

# Nothing lets other tasks run between a call and the question for its error, so both are of one thread.
@inline function check(code)
    code == Cint(ncclSuccess) || code == Cint(ncclInProgress) || throw(last_error(code, oxcclLastError))
    return nothing
end

# Whether it is done.
function finished(code)
    check(code)
    return code == Cint(ncclSuccess)
end

mismatch(call, argument, got, expected) = throw(OxCCLError(
    ncclInvalidArgument, -1, -1, "$call: $argument has $got elements; expected $expected"))

"The versions of NCCL's interface and of OxCCL."
function version()
    nccl, oxccl = Ref{Cint}(), Ref{Cint}()
    check(ncclGetVersion(nccl))
    check(oxcclGetVersion(oxccl))
    number(v) = VersionNumber(v ÷ 10000, v ÷ 100 % 100, v % 100)
    return (nccl = number(nccl[]), oxccl = number(oxccl[]))
end

# ---- Elements ----

"The ncclDataType_t of an element type; add methods for types of your own."
datatype(::Type{Int8}) = ncclInt8
datatype(::Type{UInt8}) = ncclUint8
datatype(::Type{Int32}) = ncclInt32
datatype(::Type{UInt32}) = ncclUint32
datatype(::Type{Int64}) = ncclInt64
datatype(::Type{UInt64}) = ncclUint64
datatype(::Type{Float16}) = ncclFloat16
datatype(::Type{Float32}) = ncclFloat32
datatype(::Type{Float64}) = ncclFloat64

"The number of an operation: of `+`, `*`, `max`, `min`, a constant such as `ncclAvg`, or of `premulsum`."
operation(::typeof(+)) = Cint(ncclSum)
operation(::typeof(*)) = Cint(ncclProd)
operation(::typeof(max)) = Cint(ncclMax)
operation(::typeof(min)) = Cint(ncclMin)
operation(op::ncclRedOp_t) = Cint(op)

"Arrays whose elements lie one behind the other."
const Elements{T} = Union{DenseArray{T}, Base.FastContiguousSubArray{T}}

"""
    alloc(T, dims...)

An array, all zero, in memory that other ranks of this host read and write in place. It is freed when it
is no longer used.
"""
function alloc(::Type{T}, dims::Integer...) where {T}
    place = Ref{Ptr{Cvoid}}()
    check(oxcclMemAlloc(place, prod(dims) * sizeof(T)))
    data = place[]
    array = unsafe_wrap(Array, Ptr{T}(data), Int.(dims))
    finalizer(_ -> oxcclMemFree(data), array)
    return array
end

# ---- Streams, events, graphs ----

# What outlives a stream that is dropped while it has work: its handle and the arrays of that.
mutable struct Keeper
    handle::Ptr{Cvoid}
    arrays::Vector{Any}
    dropped::Bool
end

const KEEPERS = Keeper[]
const KEEPERS_LOCK = ReentrantLock()

# Ends the streams that were dropped and have nothing left to do. Finalizers run anywhere, so they only
# say what is to be ended.
function sweep!()
    filter!(KEEPERS) do k
        over = k.dropped && oxcclStreamQuery(k.handle) != Cint(ncclInProgress)
        over && oxcclStreamDestroy(k.handle)
        return !over
    end
end

"Work in order. It keeps the arrays of its calls until it has been synchronized, and also when it is dropped before."
mutable struct Stream
    handle::Ptr{Cvoid}
    keeper::Keeper
    function Stream()
        place = Ref{Ptr{Cvoid}}()
        check(oxcclStreamCreate(place))
        keeper = Keeper(place[], Any[], false)
        lock(KEEPERS_LOCK) do
            sweep!()
            push!(KEEPERS, keeper)
        end
        return finalizer(s -> (s.keeper.dropped = true), new(place[], keeper))
    end
end

"Tells whether a stream has done everything; throws where its work failed."
isdone(s::Stream) = finished(oxcclStreamQuery(s.handle))

# Between two looks: other tasks run; who has waited for a millisecond leaves the processor to others.
pause(began) = time_ns() - began < 1_000_000 ? yield() : sleep(0.001)

"Waits until a stream has done everything, and lets other tasks run; throws where its work failed."
function synchronize(s::Stream)
    began = time_ns()
    try
        while !isdone(s)
            pause(began)
        end
    finally
        empty!(s.keeper.arrays)
    end
    return nothing
end

"A mark in a stream."
mutable struct Event
    handle::Ptr{Cvoid}
    function Event()
        place = Ref{Ptr{Cvoid}}()
        check(oxcclEventCreate(place))
        return finalizer(e -> oxcclEventDestroy(e.handle), new(place[]))
    end
end

"Marks the present end of a stream."
record(e::Event, s::Stream) = check(oxcclEventRecord(e.handle, s.handle))
"Tells whether the stream has come to the event."
isdone(e::Event) = finished(oxcclEventQuery(e.handle))
"Makes what the stream does from now on wait for the event."
wait_for(s::Stream, e::Event) = check(oxcclStreamWaitEvent(s.handle, e.handle))

"Seconds from one event to another; both must have come up."
function elapsed(from::Event, to::Event)
    place = Ref{Cfloat}()
    check(oxcclEventElapsedTime(place, from.handle, to.handle))
    return place[] / 1000
end

"What a stream was asked to do, ready to be done again; it keeps the arrays."
mutable struct Graph
    handle::Ptr{Cvoid}
    kept::Vector{Any}
end

"""
    capture(f, stream)

Puts what `f` calls on the stream into a graph, instead of having it done.
"""
function capture(f, s::Stream)
    check(oxcclStreamBeginCapture(s.handle, oxcclCaptureRelaxed))
    captured = Ref{Ptr{Cvoid}}(C_NULL)
    arrays = s.keeper.arrays
    before = length(arrays)
    try
        f()
    catch
        oxcclStreamEndCapture(s.handle, captured)
        oxcclGraphDestroy(captured[], C_NULL)
        resize!(arrays, before)
        rethrow()
    end
    kept = arrays[before+1:end]
    resize!(arrays, before)
    check(oxcclStreamEndCapture(s.handle, captured))
    place = Ref{Ptr{Cvoid}}()
    code = oxcclGraphInstantiate(place, captured[])
    oxcclGraphDestroy(captured[], C_NULL)
    check(code)
    return finalizer(g -> oxcclGraphDestroy(C_NULL, g.handle), Graph(place[], kept))
end

"Does what was captured once, in the order of the stream."
function launch(g::Graph, s::Stream)
    check(oxcclGraphLaunch(g.handle, s.handle))
    push!(s.keeper.arrays, g)
    return nothing
end

"""
    group(f)

Launches together what `f` calls with `stream = …`: sends and receives then need no order. `f` must not wait.
"""
function group(f)
    # Groups belong to threads.
    task = current_task()
    sticky, task.sticky = task.sticky, true
    try
        check(ncclGroupStart())
        try
            f()
        catch
            ncclGroupEnd()
            rethrow()
        end
        check(ncclGroupEnd())
    finally
        task.sticky = sticky
    end
    return nothing
end

# ---- Communicators ----

"Names a communicator that is to be made; give it to all ranks, and keep it secret."
struct UniqueId
    raw::ncclUniqueId
    function UniqueId()
        place = Ref{ncclUniqueId}()
        check(ncclGetUniqueId(place))
        return new(place[])
    end
end

"""
    Comm()
    Comm(size, id::UniqueId, rank)

This rank's part of a communicator: of all processes that oxccl run, mpirun, srun or torchrun started, or
of `size` ranks that have the same id. Waits until all have come. `rank` and `size` are its fields.

End it by `close`, which waits for the other ranks, or by [`abort`](@ref): the garbage collector does not,
since ending a communicator is communication.
"""
mutable struct Comm
    handle::Ptr{Cvoid}
    stream::Stream
    rank::Int
    size::Int
end

Comm() = create((place, config) -> oxcclCommInitEnv(place, config))
Comm(size::Integer, id::UniqueId, rank::Integer) =
    create((place, config) -> ncclCommInitRankConfig(place, size, id.raw, rank, config))

"A configuration in which nothing waits, and everything else is left to the library."
function configuration()
    undefined = typemin(Cint)
    rest = (T === Cstring ? Cstring(C_NULL) : undefined for T in fieldtypes(ncclConfig_t)[5:end])
    return ncclConfig_t(sizeof(ncclConfig_t), NCCL_API_MAGIC, NCCL_VERSION_CODE, 0, rest...)
end

# Waits until nothing is under way on the communicator itself.
function rest(handle)
    state = Ref{Cint}()
    began = time_ns()
    while true
        check(ncclCommGetAsyncError(handle, state))
        state[] == Cint(ncclInProgress) || return ncclResult_t(state[])
        pause(began)
    end
end

function create(begin_)
    place = Ref{Ptr{Cvoid}}(C_NULL)
    check(begin_(place, Ref(configuration())))
    place[] == C_NULL && return nothing
    handle = place[]
    state = rest(handle)
    if state != ncclSuccess
        failure = last_error(state, info -> oxcclCommLastError(handle, info))
        ncclCommAbort(handle)
        throw(failure)
    end
    rank, size = Ref{Cint}(), Ref{Cint}()
    check(ncclCommUserRank(handle, rank))
    check(ncclCommCount(handle, size))
    return Comm(handle, Stream(), rank[], size[])
end

"Communicators of the ranks with equal color, ordered by key; nothing for the color `NCCL_SPLIT_NOCOLOR`."
function split(c::Comm, color::Integer, key::Integer)
    part = create((place, config) -> ncclCommSplit(c.handle, color, key, place, config))
    # The others still need a rank without a part.
    part === nothing && rest(c.handle)
    return part
end

"A communicator without some ranks, which need not be alive; all others call. It ends `c`'s operations."
function shrink(c::Comm, exclude)
    list = collect(Cint, exclude)
    return create() do place, config
        ncclCommShrink(c.handle, list, length(list), place, config, NCCL_SHRINK_ABORT)
    end
end

"Ends a communicator at once: its operations fail, and those of the other ranks. Blocks a second at most."
function abort(c::Comm)
    handle, c.handle = c.handle, C_NULL
    return check(ncclCommAbort(handle))
end

"Completes all operations and ends a communicator; waits for the other ranks. Nothing is left of one that failed."
function Base.close(c::Comm)
    c.handle == C_NULL && return nothing
    failed = rest(c.handle) != ncclSuccess
    if !failed && finished(ncclCommFinalize(c.handle)) == false
        failed = rest(c.handle) != ncclSuccess
    end
    handle, c.handle = c.handle, C_NULL
    check(failed ? ncclCommAbort(handle) : ncclCommDestroy(handle))
    return nothing
end

"Bounds how many seconds an operation may wait for a rank without getting anywhere; `Inf` is no bound."
timeout!(c::Comm, seconds::Real) =
    check(oxcclCommSetTimeout(c.handle, isfinite(seconds) ? round(Int64, 1e9 * seconds) : -1))

"An operation made for one communicator and type of elements."
struct PreMulSum
    number::Cint
end

operation(op::PreMulSum) = op.number

"A sum in which this rank's elements, of the factor's type, are first multiplied by the factor."
function premulsum(c::Comm, factor::T) where {T}
    place, scalar = Ref{Cint}(), Ref(factor)
    GC.@preserve place scalar begin
        to, from = Base.unsafe_convert(Ptr{Cint}, place), Base.unsafe_convert(Ptr{T}, scalar)
        check(ncclRedOpCreatePreMulSum(to, from, datatype(T), ncclScalarHostImmediate, c.handle))
    end
    return PreMulSum(place[])
end

# ---- Collectives ----

# Until the stream has been synchronized.
@inline keep!(s::Stream) = nothing
@inline keep!(s::Stream, array, more...) = (push!(s.keeper.arrays, array); keep!(s, more...))

# Begins a call on arrays; waits for it where no stream was named.
@inline function run(call, c::Comm, ::Nothing, arrays...)
    check(GC.@preserve arrays call(c.stream.handle))
    keep!(c.stream, arrays...)
    return synchronize(c.stream)
end
@inline function run(call, c::Comm, s::Stream, arrays...)
    check(GC.@preserve arrays call(s.handle))
    keep!(s, arrays...)
    return nothing
end

expect(call, argument, got, expected) = got == expected || mismatch(call, argument, got, expected)

"`Allreduce!(send, recv, op, comm)`, `Allreduce!(data, op, comm)`: the reduction of all ranks' elements, on every rank."
function Allreduce!(send::Elements{T}, recv::Elements{T}, op::O, c::Comm; stream = nothing) where {T,O}
    expect("Allreduce!", "recv", length(recv), length(send))
    run(c, stream, send, recv) do on
        ncclAllReduce(pointer(send), pointer(recv), length(send), datatype(T), operation(op), c.handle, on)
    end
    return recv
end
Allreduce!(data::Elements, op::O, c::Comm; stream = nothing) where {O} = Allreduce!(data, data, op, c; stream = stream)

"`Bcast!(data, root, comm)`: the root's elements, on every rank."
function Bcast!(data::Elements{T}, root::Integer, c::Comm; stream = nothing) where {T}
    run(c, stream, data) do on
        ncclBcast(pointer(data), length(data), datatype(T), root, c.handle, on)
    end
    return data
end

"`Reduce!(send, recv, op, root, comm)`: the reduction of all ranks' elements in the root's `recv`, ignored elsewhere."
function Reduce!(send::Elements{T}, recv::Elements{T}, op::O, root::Integer, c::Comm; stream = nothing) where {T,O}
    c.rank == root && expect("Reduce!", "recv", length(recv), length(send))
    run(c, stream, send, recv) do on
        ncclReduce(pointer(send), pointer(recv), length(send), datatype(T), operation(op), root, c.handle, on)
    end
    return recv
end

"`Allgather!(send, recv, comm)`: every rank's elements, one behind the other, on every rank."
function Allgather!(send::Elements{T}, recv::Elements{T}, c::Comm; stream = nothing) where {T}
    expect("Allgather!", "recv", length(recv), length(send) * c.size)
    run(c, stream, send, recv) do on
        ncclAllGather(pointer(send), pointer(recv), length(send), datatype(T), c.handle, on)
    end
    return recv
end

"`Reduce_scatter!(send, recv, op, comm)`: block r of the reduction of all ranks' elements, on rank r."
function Reduce_scatter!(send::Elements{T}, recv::Elements{T}, op::O, c::Comm; stream = nothing) where {T,O}
    expect("Reduce_scatter!", "send", length(send), length(recv) * c.size)
    run(c, stream, send, recv) do on
        ncclReduceScatter(pointer(send), pointer(recv), length(recv), datatype(T), operation(op), c.handle, on)
    end
    return recv
end

"`Alltoall!(send, recv, comm)`: block r of `send` becomes the block of this rank in the `recv` of rank r."
function Alltoall!(send::Elements{T}, recv::Elements{T}, c::Comm; stream = nothing) where {T}
    count = length(send) ÷ c.size
    expect("Alltoall!", "send", length(send), count * c.size)
    expect("Alltoall!", "recv", length(recv), length(send))
    run(c, stream, send, recv) do on
        ncclAlltoAll(pointer(send), pointer(recv), count, datatype(T), c.handle, on)
    end
    return recv
end

"`Gather!(send, recv, root, comm)`: every rank's elements, one behind the other, in the root's `recv`, ignored elsewhere."
function Gather!(send::Elements{T}, recv::Elements{T}, root::Integer, c::Comm; stream = nothing) where {T}
    c.rank == root && expect("Gather!", "recv", length(recv), length(send) * c.size)
    run(c, stream, send, recv) do on
        ncclGather(pointer(send), pointer(recv), length(send), datatype(T), root, c.handle, on)
    end
    return recv
end

"`Scatter!(send, recv, root, comm)`: block r of the root's `send`, ignored elsewhere, in the `recv` of rank r."
function Scatter!(send::Elements{T}, recv::Elements{T}, root::Integer, c::Comm; stream = nothing) where {T}
    c.rank == root && expect("Scatter!", "send", length(send), length(recv) * c.size)
    run(c, stream, send, recv) do on
        ncclScatter(pointer(send), pointer(recv), length(recv), datatype(T), root, c.handle, on)
    end
    return recv
end

"`Send(data, rank, comm)`: to a rank, which receives as many elements."
function Send(data::Elements{T}, to::Integer, c::Comm; stream = nothing) where {T}
    run(c, stream, data) do on
        ncclSend(pointer(data), length(data), datatype(T), to, c.handle, on)
    end
    return nothing
end

"`Recv!(data, rank, comm)`: from a rank, which sends as many elements."
function Recv!(data::Elements{T}, from::Integer, c::Comm; stream = nothing) where {T}
    run(c, stream, data) do on
        ncclRecv(pointer(data), length(data), datatype(T), from, c.handle, on)
    end
    return data
end

end
