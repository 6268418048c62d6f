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
export Allreduce!, Bcast!, Reduce!, Allgather!, Reduce_scatter!, Alltoall!, Gather!, Scatter!, Send, Recv!, Sendrecv!
export Allreduce, Reduce, Allgather, Gather, Scatter, Alltoall, Barrier
export VBuffer, Allgatherv!, Reduce_scatterv!, Alltoallv!, Gatherv!, Scatterv!
export Window, put, signal, wait_signals
export synchronize, group, estimate, capture, launch, update!, record, alloc, clear!
export shrink, grow, grow_id, abort, revoke, suspend, resume, premulsum, register, on_device

# ---- The library and its errors ----

const UUID = Base.UUID("5d1b6c0e-3f0a-4d53-9c3b-0c2b7c1f9a42")

# The library, and a text about where it comes from.
function library()
    path = get(ENV, "OXCCL_LIBRARY", "")
    isempty(path) || return path, "OXCCL_LIBRARY names $path"
    # Julia 1.5 has no preferences.
    path = isdefined(Base, :get_preferences) ? get(Base.get_preferences(UUID), "library", "") : ""
    isempty(path) || return path, "OXCCL_LIBRARY is not set, and the preference `library` names $path"
    path = "liboxccl.so.2"
    return path, "OXCCL_LIBRARY is not set, nor is the preference `library`, and the system (LD_LIBRARY_PATH, " *
                 "ldconfig) has no $path that loads"
end

function __init__()
    path, looked = library()
    handle = try
        Libdl.dlopen(path)
    catch e
        error("the library of OxCCL cannot be loaded: $(sprint(showerror, e)); $looked. Set OXCCL_LIBRARY to the " *
            "path of liboxccl.so.2, as `cargo xtask install` puts it into PREFIX/lib, or LD_LIBRARY_PATH to that folder")
    end
    for (i, name) in enumerate(FUNCTIONS)
        address = Libdl.dlsym_e(handle, name)
        address == C_NULL && error("$path has no $name: it is no library of OxCCL, or one of another version than " *
            "this package. Set OXCCL_LIBRARY to the path of liboxccl.so.2")
        ADDRESSES[i] = address
    end
    Base.Experimental.register_error_hint(hint, MethodError)
    atexit(close_all)
end

# What the message of a call without a method says beside what Julia lists.
function hint(io, e, types, keywords)
    e.f === Comm && print(io, "\nComm() makes the communicator of the ranks that a launcher has started; Comm(size, id, rank) takes a UniqueId that all ranks have.")
    e.f isa Function && parentmodule(e.f) === OxCCL || return
    collective = nameof(e.f) in (:Allreduce!, :Reduce!, :Allgather!, :Reduce_scatter!, :Alltoall!, :Gather!, :Scatter!)
    collective |= nameof(e.f) in (:Allreduce, :Reduce) && !isempty(types) && !(first(types) <: Number)
    if collective && !isempty(types) && !(first(types) <: (nameof(e.f) === :Scatter! ? Union{AbstractArray,Nothing} : AbstractArray))
        print(io, "\n$(nameof(e.f)) takes arrays; got a $(first(types)). Allreduce, Reduce and others without ! take a number, too.")
        return
    end
    arrays = filter(T -> T <: AbstractArray, collect(types))
    if any(T -> !(T <: Elements), arrays)
        print(io, "\nOxCCL takes arrays whose elements lie one behind the other: collect(x) makes one of a view or a range, from which a result is then to be copied back.")
    elseif length(unique(eltype.(arrays))) > 1
        print(io, "\nOxCCL takes arrays of one element type in a call.")
    elseif nameof(e.f) in (:Allreduce!, :Allreduce, :Reduce!, :Reduce, :Reduce_scatter!)
        print(io, "\nOxCCL takes an operation before the communicator: +, *, max, min, a constant such as OxCCL.ncclAvg, or a `premulsum`.")
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

# The structure stays in memory: as a value of Julia, its long text takes the compiler a minute.
function last_error(code, fill)
    info = zeros(UInt8, sizeof(oxcclErrorInfo_t))
    place(name) = pointer(info) + fieldoffset(oxcclErrorInfo_t, Base.fieldindex(oxcclErrorInfo_t, name))
    GC.@preserve info begin
        unsafe_store!(Ptr{Csize_t}(place(:size)), sizeof(oxcclErrorInfo_t))
        fill(Ptr{oxcclErrorInfo_t}(pointer(info)))
        number(name) = Int(unsafe_load(Ptr{Cint}(place(name))))
        return OxCCLError(ncclResult_t(code), number(:rank), number(:peer), unsafe_string(place(:text)))
    end
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

# ---- Numbers ----

# A number as C has it.
@inline function whole(::Type{T}, name, n) where {T<:Integer}
    n isa Integer && typemin(T) <= n <= typemax(T) || no_whole(T, name, n)
    return T(n)
end
whole(::Type{T}, name, n::Enum) where {T<:Integer} = T(n)

@noinline no_whole(T, name, n) = throw(ArgumentError(
    "$name is $(repr(n)); expected a whole number from $(typemin(T)) to $(typemax(T))"))

# A time in seconds.
function seconds(name, time)
    time isa Real && !isnan(time) && return time
    throw(ArgumentError("$name is $(repr(time)); expected a number of seconds"))
end

# Without a bound -1.
function nanoseconds(name, time)
    ns = 1e9 * seconds(name, time)
    return isfinite(ns) ? round(Int64, clamp(ns, -9.2e18, 9.2e18)) : -1
end

# C's text, which lies where that of Julia does.
text_for_c(name, text::String) = Base.unsafe_convert(Cstring, text)
text_for_c(name, other) = throw(ArgumentError("$name is $(repr(other)); expected a text"))

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

datatype(::Type{T}) where {T} = throw(OxCCLError(ncclInvalidArgument, -1, -1,
    "elements of type $T: expected Int8, UInt8, Int32, UInt32, Int64, UInt64, Float16, Float32, Float64, BF16, F8E4M3 " *
    "or F8E5M2; " * (T === Bool ? "`UInt8.(x)` reduced by max or min is `or` or `and`" :
                     T <: Complex ? "`reinterpret($(real(T)), z)` passes real and imaginary parts, which + adds; " *
                                    "other operations are not those of complex numbers" : "convert them")))

# Types of elements that Julia has none for; the bits only.
"bfloat16, the upper half of a `Float32`: its bits."
struct BF16
    bits::UInt16
end
"OCP E4M3: its bits."
struct F8E4M3
    bits::UInt8
end
"OCP E5M2: its bits."
struct F8E5M2
    bits::UInt8
end
datatype(::Type{BF16}) = ncclBfloat16
datatype(::Type{F8E4M3}) = ncclFloat8e4m3
datatype(::Type{F8E5M2}) = ncclFloat8e5m2

"The number of an operation: of `+`, `*`, `max`, `min`, a constant such as `ncclAvg`, or of `premulsum`."
operation(::typeof(+)) = Cint(ncclSum)
operation(::typeof(*)) = Cint(ncclProd)
operation(::typeof(max)) = Cint(ncclMax)
operation(::typeof(min)) = Cint(ncclMin)
operation(op::ncclRedOp_t) = Cint(op)
operation(op) = throw(OxCCLError(ncclInvalidArgument, -1, -1,
    "operation $op: expected +, *, max, min, a constant such as OxCCL.ncclAvg, or a `premulsum`"))

"Arrays whose elements lie one behind the other, also as elements of another type."
const Elements{T} = Union{DenseArray{T}, Base.FastContiguousSubArray{T},
                          Base.ReinterpretArray{T,N,S,A} where {N,S,A<:DenseArray}}

# Where the elements lie.
address(x::Elements) = Ptr{Cvoid}(pointer(x))

"""
    alloc(T, dims...)

An array, all zero, in memory that other ranks of this host read and write in place. It is freed when it
is no longer used. Only on the host device: memory of a GPU is no `Array`.
"""
function alloc(::Type{T}, dims::Integer...) where {T}
    device()[1] == oxcclDeviceHost || throw(OxCCLError(
        ncclInvalidUsage, -1, -1, "alloc: the current device is a GPU, whose memory is no Array; use CuArray"))
    isbitstype(T) || throw(ArgumentError("alloc: elements of type $T; expected a type of plain bits, such as Float32"))
    bytes = sizeof(T) * prod(BigInt[dims...])
    all(>=(0), dims) && bytes <= typemax(Int) || throw(ArgumentError(
        "alloc: dims are $dims; expected numbers from 0 on, for at most $(typemax(Int)) bytes"))
    # No elements are no memory, and all arrays without elements may be one object.
    bytes == 0 && return Array{T}(undef, Int.(dims))
    place = Ref{Ptr{Cvoid}}()
    check(oxcclMemAlloc(place, bytes))
    data = place[]
    array = unsafe_wrap(Array, Ptr{T}(data), Int.(dims))
    # Arrays that share the memory, as by `reshape`, share no more than `Memory` from Julia 1.11 on; before, they
    # keep the array.
    finalizer(_ -> oxcclMemFree(data), isdefined(array, :ref) ? getfield(array, :ref).mem : array)
    return array
end

# ---- Devices ----

"The number of devices of a kind, `oxcclDeviceHost` or `oxcclDeviceCuda`."
function device_count(kind::oxcclDeviceKind_t)
    place = Ref{Cint}()
    check(oxcclDeviceCount(kind, place))
    return Int(place[])
end

"The current device of the thread: kind and index."
function device()
    kind, index = Ref{Cint}(), Ref{Cint}()
    check(oxcclDeviceGet(kind, index))
    return (oxcclDeviceKind_t(kind[]), Int(index[]))
end

# Has the task stay on its thread meanwhile.
function on_thread(f)
    task = current_task()
    sticky, task.sticky = task.sticky, true
    try
        return f()
    finally
        task.sticky = sticky
    end
end

"""
    on_device(f, kind, index)

Calls `f` with another current device, for what it makes: communicators, streams, arrays. What other tasks
make on this thread meanwhile is on that device too.
"""
on_device(f, kind::oxcclDeviceKind_t, index::Integer) = on_thread() do
    old = device()
    check(oxcclDeviceSet(kind, index))
    try
        f()
    finally
        oxcclDeviceSet(old...)
    end
end

# ---- Streams, events, graphs ----

"A mark in a stream."
mutable struct Event
    handle::Ptr{Cvoid}
    function Event()
        place = Ref{Ptr{Cvoid}}()
        check(oxcclEventCreate(place))
        return finalizer(e -> oxcclEventDestroy(e.handle), new(place[]))
    end
end

# What outlives a stream that is dropped while it has work: its handle, the arrays of that, and its end.
mutable struct Keeper
    handle::Ptr{Cvoid}
    arrays::Vector{Any}
    last::Event
    dropped::Bool
end

const KEEPERS = Keeper[]
const KEEPERS_LOCK = ReentrantLock()

# Ends a stream that was dropped; tells whether it has nothing left to do. A query of the stream would take the error
# of its work, which the end of the communicator is to tell.
function over!(k::Keeper)
    if k.handle != C_NULL
        oxcclEventRecord(k.last.handle, k.handle)
        oxcclStreamDestroy(k.handle)
        k.handle = C_NULL
    end
    return oxcclEventQuery(k.last.handle) != Cint(ncclInProgress)
end

# Finalizers run anywhere, so they only say which streams are to be ended; that is done here.
sweep!() = filter!(k -> !(k.dropped && over!(k)), KEEPERS)

"Work in order. It keeps the arrays of its calls until it has been synchronized, and also when it is dropped before."
mutable struct Stream
    handle::Ptr{Cvoid}
    keeper::Keeper
    function Stream()
        last, place = Event(), Ref{Ptr{Cvoid}}()
        check(oxcclStreamCreate(place))
        keeper = Keeper(place[], Any[], last, false)
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
    try
        wait_until_done(s.handle)
    finally
        empty!(s.keeper.arrays)
    end
    return nothing
end

function wait_until_done(stream)
    began = time_ns()
    while !finished(oxcclStreamQuery(stream))
        pause(began)
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
    place = Ref{Ptr{Cvoid}}()
    kept = captured(graph -> oxcclGraphInstantiate(place, graph), f, s)
    return finalizer(g -> oxcclGraphDestroy(C_NULL, g.handle), Graph(place[], kept))
end

"""
    update!(f, graph, stream)

Puts what `f` calls on the stream in the place of what the graph does. Both must be the same calls in the
same order; arrays, lengths and roots may differ. Launches under way keep theirs.
"""
function update!(f, g::Graph, s::Stream)
    kept = captured(graph -> oxcclGraphExecUpdate(g.handle, graph), f, s)
    # What is under way still needs the old ones.
    append!(s.keeper.arrays, g.kept)
    g.kept = kept
    return g
end

# The arrays of what was captured.
function captured(use, f, s::Stream)
    check(oxcclStreamBeginCapture(s.handle, oxcclCaptureRelaxed))
    graph = Ref{Ptr{Cvoid}}(C_NULL)
    arrays = s.keeper.arrays
    before = length(arrays)
    try
        f()
    catch
        oxcclStreamEndCapture(s.handle, graph)
        oxcclGraphDestroy(graph[], C_NULL)
        resize!(arrays, before)
        rethrow()
    end
    kept = arrays[before+1:end]
    resize!(arrays, before)
    check(oxcclStreamEndCapture(s.handle, graph))
    code = use(graph[])
    failure = code == Cint(ncclSuccess) ? nothing : last_error(code, oxcclLastError)
    oxcclGraphDestroy(graph[], C_NULL)
    failure === nothing || throw(failure)
    return kept
end

"Does what was captured once, in the order of the stream."
function launch(g::Graph, s::Stream)
    check(oxcclGraphLaunch(g.handle, s.handle))
    push!(s.keeper.arrays, g)
    return nothing
end

"""
    group(f)

Launches together what `f` calls with `stream = …`: sends and receives then need no order. Calls without a stream
fail in it, as nothing is complete before its end; and `f` must not wait for anything else.
"""
group(f) = grouped(f, ncclGroupEnd)

"""
    estimate(f)

The seconds that `group(f)` would take, by the library's model of the machine; nothing is launched.
"""
function estimate(f)
    # As NCCL_SIM_INFO_INITIALIZER has it.
    info = Ref(ncclSimInfo_t(sizeof(ncclSimInfo_t), 0x74685283, NCCL_VERSION_CODE, 0))
    grouped(f, () -> ncclGroupSimulateEnd(info))
    return info[].estimatedTime / 1e6
end

# How many groups are open, and on which threads.
const GROUPS = Threads.Atomic{Int}(0)
const GROUPED = Dict{Int,Int}()
const GROUPED_LOCK = ReentrantLock()

function count_group!(n)
    lock(GROUPED_LOCK) do
        GROUPED[Threads.threadid()] = get(GROUPED, Threads.threadid(), 0) + n
    end
    Threads.atomic_add!(GROUPS, n)
end

# Groups belong to threads.
grouped(f, end_) = on_thread() do
    check(ncclGroupStart())
    count_group!(1)
    try
        f()
    catch
        end_()
        rethrow()
    finally
        count_group!(-1)
    end
    check(end_())
end

# Refuses to wait in a group, where nothing is complete before its end.
function may_wait()
    GROUPS[] == 0 && return nothing
    open = lock(() -> get(GROUPED, Threads.threadid(), 0), GROUPED_LOCK)
    open == 0 || throw(OxCCLError(
        ncclInvalidUsage, -1, -1, "a call cannot wait in a group; name a stream, by stream = …"))
    return nothing
end

"Copies between arrays of equal length, in the order of the stream, which keeps them."
function Base.copyto!(to::Elements{T}, from::Elements{T}, s::Stream) where {T}
    expect("copyto!", "to", length(to), length(from))
    check(oxcclMemcpyAsync(address(to), address(from), sizeof(T) * length(from), s.handle))
    keep!(s, to, from)
    return to
end

"Makes all elements zero, in the order of the stream, which keeps the array."
function clear!(x::Elements{T}, s::Stream) where {T}
    check(oxcclMemsetAsync(address(x), 0, sizeof(T) * length(x), s.handle))
    keep!(s, x)
    return x
end

"Sets what is logged: 0 nothing, 1 the version, 2 warnings, 3 information, 5 everything."
log_level!(level::Integer) = check(oxcclSetLog(level, C_NULL, C_NULL))

# ---- Communicators ----

"Names a communicator that is to be made; give it to all ranks, and keep it secret."
struct UniqueId
    raw::ncclUniqueId
end

function UniqueId()
    place = Ref{ncclUniqueId}()
    check(ncclGetUniqueId(place))
    return UniqueId(place[])
end

# Logs are no place for a secret.
Base.show(io::IO, ::UniqueId) = print(io, "UniqueId(secret)")

"""
    Comm(; options...)
    Comm(size, id::UniqueId, rank; options...)
    Comm(broadcast, size, rank; options...)
    Comm(comm::MPI.Comm; options...)

This rank's part of a communicator: of all processes that oxccl run, mpirun, srun or torchrun started, of
`size` ranks that have the same id, of those among which `broadcast(value)` gives everyone rank 0's value,
or, where MPI.jl is loaded (Julia 1.9 or newer), of MPI's ranks. Waits until all have come. `rank` and
`size` are its fields.

Options are the fields of `ncclConfig_t`, such as `commName = "weights"` or `maxCTAs = 8`; `OxCCL.OPTIONS` has
their names; and `init_timeout`, the seconds that the ranks wait for one that does not come. What nobody asks for is as NCCL has it, whatever communicator one is made of.

End it by `close`, which waits for the other ranks, or by [`abort`](@ref): the garbage collector does not,
since ending a communicator is communication. The end of the process closes what is open, waiting for other ranks no
longer than 5 s, but not after an exception that nobody caught.
"""
mutable struct Comm
    handle::Ptr{Cvoid}
    stream::Stream
    rank::Int
    size::Int
    revoked::Bool
end

# The handle of a communicator that has not been ended.
@inline function open_handle(c::Comm)
    c.handle == C_NULL && throw(OxCCLError(
        ncclInvalidUsage, c.rank, -1, "the communicator was closed or aborted; make a new one"))
    return c.handle
end

Base.show(io::IO, c::Comm) = print(io, "Comm(rank $(c.rank) of $(c.size)$(c.handle == C_NULL ? ", closed" : ""))")

Comm(; options...) = create((place, config) -> oxcclCommInitEnv(place, config), options)
Comm(size::Integer, id::UniqueId, rank::Integer; options...) =
    create((place, config) -> ncclCommInitRankConfig(place, size, id.raw, rank, config), options)

function Comm(broadcast::Function, size::Integer, rank::Integer; options...)
    made = nothing
    if rank == 0
        # The others shall not wait for an id that there is none of.
        made = try
            UniqueId()
        catch failure
            failure
        end
    end
    id = broadcast(made)
    id isa UniqueId || throw(id)
    return Comm(size, id, rank; options...)
end

# The fields of ncclConfig_t that are the user's; whether calls wait is decided here.
const OPTIONS = fieldnames(ncclConfig_t)[5:end]

# A configuration in which nothing waits, with some options; what is not among them is left to the library. The
# texts must live until it has been read.
function configuration(options)
    for name in keys(options)
        name in OPTIONS || throw(ArgumentError(
            "$name is no option of a communicator; expected one of $(join((OPTIONS..., :init_timeout), ", "))"))
    end
    field(name, ::Type{Cstring}) = haskey(options, name) ? text_for_c(name, options[name]) : Cstring(C_NULL)
    field(name, ::Type{Cint}) = whole(Cint, name, get(options, name, typemin(Cint)))
    fields = (field(name, fieldtype(ncclConfig_t, name)) for name in OPTIONS)
    return ncclConfig_t(sizeof(ncclConfig_t), NCCL_API_MAGIC, NCCL_VERSION_CODE, 0, fields...)
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

function create(begin_, options)
    options = Dict{Symbol,Any}(name => value isa AbstractString ? String(value) : value for (name, value) in options)
    limit = pop!(options, :init_timeout, nothing)
    limit === nothing || (limit = nanoseconds("init_timeout", limit))
    config = Ref(configuration(options))
    # In C's memory: in a group the library would write to it at the end.
    place = Ptr{Ptr{Cvoid}}(Libc.calloc(1, sizeof(Ptr{Cvoid})))
    # The limit is the thread's, which the task does not leave meanwhile.
    limit === nothing || check(oxcclSetInitTimeout(limit))
    code = try
        GC.@preserve options begin_(place, config)
    catch
        Libc.free(place)
        rethrow()
    finally
        # What failed is the last error still.
        limit === nothing || oxcclSetInitTimeout(-1)
    end
    handle = unsafe_load(place)
    code == Cint(ncclSuccess) && handle == C_NULL && throw(OxCCLError(
        ncclInvalidUsage, -1, -1, "a communicator cannot be made in a group"))
    Libc.free(place)
    check(code)
    handle == C_NULL && return nothing
    state = rest(handle)
    if state != ncclSuccess
        failure = last_error(Cint(state), info -> oxcclCommLastError(handle, info))
        ncclCommAbort(handle)
        throw(failure)
    end
    rank, size = Ref{Cint}(), Ref{Cint}()
    check(ncclCommUserRank(handle, rank))
    check(ncclCommCount(handle, size))
    opened(handle)
    return Comm(handle, Stream(), rank[], size[], false)
end

"Communicators of the ranks with equal color, ordered by key; nothing for the color `NCCL_SPLIT_NOCOLOR`."
function Base.split(c::Comm, color::Integer, key::Integer; options...)
    parent = open_handle(c)
    part = create((place, config) -> ncclCommSplit(parent, color, key, place, config), options)
    # The others still need a rank without a part.
    part === nothing && rest(parent)
    return part
end

"A communicator without some ranks, which need not be alive; all others call. It ends `c`'s operations."
function shrink(c::Comm, exclude; options...)
    parent, list = open_handle(c), Cint[whole(Cint, "a rank of exclude", rank) for rank in exclude]
    return create(options) do place, config
        ncclCommShrink(parent, list, length(list), place, config, NCCL_SHRINK_ABORT)
    end
end

"The id by which ranks join one growth of a communicator; the rank that calls it passes it to [`grow`](@ref)."
function grow_id(c::Comm)
    place = Ref{ncclUniqueId}()
    check(ncclCommGetUniqueId(open_handle(c), place))
    return UniqueId(place[])
end

"""
    grow(c, size; options...)
    grow(c, size, id; options...)
    grow(size, id, rank; options...)

A communicator of `size` ranks. All ranks of `c` call, and keep their numbers; the one that called
[`grow_id`](@ref) passes the id. Those that join call with the id and their rank. Waits until all have come.
"""
grow(c::Comm, size::Integer; options...) = grown(open_handle(c), size, C_NULL, -1, options)
grow(c::Comm, size::Integer, id::UniqueId; options...) = grown(open_handle(c), size, Ref(id.raw), -1, options)
grow(size::Integer, id::UniqueId, rank::Integer; options...) = grown(C_NULL, size, Ref(id.raw), rank, options)

grown(parent, size, id, rank, options) =
    create((place, config) -> ncclCommGrow(parent, size, id, rank, place, config), options)

"Ends the operations of a communicator, which can then only be split, shrunk, closed or aborted. Blocks a second at most."
function revoke(c::Comm)
    code = ncclCommRevoke(open_handle(c), NCCL_REVOKE_DEFAULT)
    # Also where other ranks have not answered.
    c.revoked = code != Cint(ncclInvalidUsage)
    return check(code)
end

"Gives memory of a communicator back to the system; until [`resume`](@ref) it takes no operations."
suspend(c::Comm) = check(ncclCommSuspend(open_handle(c), NCCL_SUSPEND_MEM))

"Lets a suspended communicator take operations again."
resume(c::Comm) = check(ncclCommResume(open_handle(c)))

"How much memory, in bytes, a communicator takes in this process; `ncclStatGpuMemSuspended` is 1 while it is suspended."
function memory(c::Comm, stat::ncclCommMemStat_t)
    place = Ref{UInt64}()
    check(ncclCommMemStats(open_handle(c), stat, place))
    return place[]
end

"How many collectives so far read or wrote the other ranks' buffers where they lie."
function in_place(c::Comm)
    place = Ref{UInt64}()
    check(oxcclCommInPlace(open_handle(c), place))
    return place[]
end

"How many operations so far had their data moved by copy engines of a GPU."
function by_copy_engines(c::Comm)
    place = Ref{UInt64}()
    check(oxcclCommByCopyEngines(open_handle(c), place))
    return place[]
end

"The index of the device that a communicator works on."
function device(c::Comm)
    place = Ref{Cint}()
    check(ncclCommCuDevice(open_handle(c), place))
    return Int(place[])
end

"""
    abort(comm)

Ends a communicator at once: its operations fail, and those of the other ranks. Blocks a second at most. Does
nothing if it was ended before.
"""
function abort(c::Comm)
    c.handle == C_NULL && return nothing
    handle, c.handle = c.handle, C_NULL
    ended(handle)
    return check(ncclCommAbort(handle))
end

"""
    close(comm)

Completes all operations and ends a communicator; waits for the other ranks. Nothing is left of one that failed.
Throws what only the end finds: an operation that ended early, calls that differed, what nobody received. Does
nothing if it was ended before.
"""
function Base.close(c::Comm)
    handle = c.handle
    handle == C_NULL && return nothing
    # Of one that has failed it tells at once what no call has told; it refuses one that was revoked, and in a group.
    code = c.revoked ? Cint(ncclSuccess) : ncclCommFinalize(handle)
    found = code in (Cint(ncclSuccess), Cint(ncclInProgress)) ? nothing : last_error(code, oxcclLastError)
    found === nothing || state_of(handle) != Cint(ncclSuccess) || throw(found)
    c.handle = C_NULL
    ended(handle)
    state = code == Cint(ncclInProgress) ? rest(handle) : nothing
    state in (nothing, ncclSuccess) || (found = last_error(Cint(state), info -> oxcclCommLastError(handle, info)))
    check(state == ncclSuccess ? ncclCommDestroy(handle) : ncclCommAbort(handle))
    found === nothing || throw(found)
    return nothing
end

"Bounds how many seconds an operation may wait for a rank without getting anywhere; `Inf` is no bound."
timeout!(c::Comm, seconds::Real) = check(oxcclCommSetTimeout(open_handle(c), nanoseconds("seconds", seconds)))

"An operation made for one communicator and type of elements; `close` ends it."
struct PreMulSum
    number::Cint
    comm::Comm
end

Base.close(op::PreMulSum) = check(ncclRedOpDestroy(op.number, open_handle(op.comm)))

operation(op::PreMulSum) = op.number

"A sum in which this rank's elements, of the factor's type, are first multiplied by the factor."
function premulsum(c::Comm, factor::T) where {T}
    place, scalar = Ref{Cint}(), Ref(factor)
    GC.@preserve place scalar begin
        to, from = Base.unsafe_convert(Ptr{Cint}, place), Base.unsafe_convert(Ptr{T}, scalar)
        check(ncclRedOpCreatePreMulSum(to, from, datatype(T), ncclScalarHostImmediate, open_handle(c)))
    end
    return PreMulSum(place[], c)
end

"A registered array, which it keeps; `close` ends the registration, before the communicator's end."
struct Registration
    comm::Comm
    handle::Ptr{Cvoid}
    data::Any
end

"Registers an array."
function register(c::Comm, data::Elements{T}) where {T}
    place = Ref{Ptr{Cvoid}}()
    check(ncclCommRegister(open_handle(c), address(data), sizeof(T) * length(data), place))
    return Registration(c, place[], data)
end

Base.close(r::Registration) = check(ncclCommDeregister(open_handle(r.comm), r.handle))

include("ending.jl")

# ---- Operations ----

include("options.jl")
include("collectives.jl")
include("counts.jl")
include("mpi.jl")
include("windows.jl")

end
