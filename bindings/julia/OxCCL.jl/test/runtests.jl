using OxCCL
using OxCCL: BF16, F8E4M3, F8E5M2
using OxCCL: ncclAvg, ncclInvalidArgument, ncclInvalidUsage, ncclRemoteError, NCCL_SPLIT_NOCOLOR
using Test

const RANKS = 4

const TYPES = (Int8, UInt8, Int32, UInt32, Int64, UInt64, Float16, Float32, Float64, BF16, F8E4M3, F8E5M2)

# Calls f on four ranks: tasks of this process, or this process where a launcher started it as one.
# A rank that fails aborts, so that the others do not wait for it.
function on_ranks(f)
    function guarded(c)
        try
            f(c)
        catch
            c.handle == C_NULL || abort(c)
            rethrow()
        end
    end
    if haskey(ENV, "OXCCL_RANK")
        guarded(OxCCL.split(WORLD, 0, 0))
    else
        id = UniqueId()
        @sync for r in 0:RANKS-1
            @async guarded(Comm(RANKS, id, r))
        end
    end
end

const WORLD = haskey(ENV, "OXCCL_RANK") ? Comm() : nothing

function expect_error(f, code, text)
    try
        f()
    catch e
        e isa OxCCLError || rethrow()
        @test e.code == code
        @test occursin(text, e.text)
        return e
    end
    @test "no error" == text
end

function expect_argument_error(f, text)
    e = try f(); nothing catch e; e end
    @test e isa ArgumentError && occursin(text, e.msg)
end

# A small number in a type that Julia may know the bits of only.
number(::Type{T}, value) where {T<:Real} = T(value)
number(::Type{BF16}, value) = BF16(bits(value, 7, 127))
number(::Type{F8E4M3}, value) = F8E4M3(bits(value, 3, 7))
number(::Type{F8E5M2}, value) = F8E5M2(bits(value, 2, 15))
function bits(value, mantissa, bias)
    value == 0 && return 0
    e = exponent(float(value))
    return (e + bias) << mantissa | Int((value / 2.0^e - 1) * 2^mantissa)
end

# How many ranks have come to the barrier.
const ENTERED = Threads.Atomic{Int}(0)

# MPI.jl's forms, with the rank after the communicator, new arrays, and numbers.
function as_in_mpi(c)
    rank, own = c.rank, fill(c.rank + 1, 2)
    root(value) = rank == 1 ? value : nothing
    @test Bcast!(copy(own), c; root = 2) == [3, 3] && Bcast!(copy(own), c) == [1, 1]
    @test Allreduce(own, +, c) == [10, 10] && Allreduce(rank + 1.0, max, c) === 4.0
    @test Allreduce(view([own; own], 2:3), +, c) == [10, 10]
    @test Reduce(own, +, c; root = 1) == root([10, 10]) && Reduce(rank + 1, *, c; root = 1) == root(24)
    out = zeros(Int, 2)
    Reduce!(own, root(out), +, c; root = 1)
    @test out == (rank == 1 ? [10, 10] : [0, 0])
    @test rank != 0 || Reduce!(copy(own), +, c) == [10, 10]
    rank == 0 || Reduce!(copy(own), +, c)
    blocks = repeat(1:RANKS, inner = 2)
    @test Allgather(own, c) == blocks && Allgather(rank + 1, c) == 1:RANKS
    @test Gather(own, c; root = 1) == root(blocks) && Gather(rank + 1, c; root = 1) == root(1:RANKS)
    all = zeros(Int, 2 * RANKS)
    Gather!(own, root(all), c; root = 1)
    @test all == (rank == 1 ? blocks : zeros(Int, 2 * RANKS))
    @test Gather(own, 1, c) == root(blocks) && Reduce(own, +, 1, c) == root([10, 10]) && Reduce(rank, max, 1, c) == root(3)
    summed = copy(own)
    Reduce!(summed, +, 1, c)
    @test rank != 1 || summed == [10, 10]
    @test Scatter!(root(blocks), out, c; root = 1) == own
    @test Scatter(root(collect(1.0:RANKS)), Float64, c; root = 1) === rank + 1.0
    @test Scatter(collect(1:RANKS), Int, 2, c) === rank + 1
    for call in (s -> Allreduce(1, +, c; stream = s), s -> Reduce(1, +, c; stream = s), s -> Scatter([1], Int, c; stream = s))
        @test_throws ArgumentError call(Stream())
    end
    # Nobody leaves before the last one has come.
    rank == 0 && sleep(0.01)
    Threads.atomic_add!(ENTERED, 1)
    Barrier(c)
    @test WORLD !== nothing || ENTERED[] == RANKS
    @test Alltoall(collect(1:RANKS) .+ 10 * rank, c) == [rank + 1 + 10 * r for r in 0:RANKS-1]
    part = fill(rank, rank)
    Gatherv!(part, root(VBuffer(zeros(Int, 6), 0:3)), c; root = 1)
    @test Scatterv!(root(VBuffer([1, 2, 2, 3, 3, 3], 0:3)), zeros(Int, rank), c; root = 1) == part
    s = Stream()
    group() do
        Send(own, c; dest = (rank + 1) % RANKS, stream = s)
        Recv!(out, c; source = (rank + RANKS - 1) % RANKS, stream = s)
    end
    synchronize(s)
    source = (rank + RANKS - 1) % RANKS
    @test out == fill(source + 1, 2)
    # So large that no send is complete before its receive.
    large, other = fill(rank, 1 << 20), zeros(Int, 1 << 20)
    @test Sendrecv!(large, other, c; dest = (rank + 1) % RANKS, source = source) === other == fill(source, 1 << 20)
    Sendrecv!(other, large, c; dest = source, source = (rank + 1) % RANKS, stream = s)
    synchronize(s)
    @test large == fill(rank, 1 << 20)
    expect_error(() -> Sendrecv!(large, other, c; dest = RANKS, source = source), ncclInvalidArgument, "peer")
    # Base's function has the methods of ours.
    @test split("a b") == ["a", "b"]
    half = split(c, rank % 2, rank)
    @test half.size == 2
    close(half)
    for (elements, text) in [([true], "Bool: expected Int8"), (Int16[1], "Int16"),
                             ([1.0im], "`reinterpret(Float64, z)` passes real and imaginary parts")]
        expect_error(() -> Allreduce!(elements, +, c), ncclInvalidArgument, text)
    end
    # What that text advises.
    z = [rank + 1im, 2.0]
    Allreduce!(reinterpret(Float64, z), +, c)
    @test z == [6 + 4im, 8] && Allgather(reinterpret(Float64, z), c) == repeat([6, 4, 8, 0], RANKS)
    for wrong in (() -> Reduce!(own, nothing, +, c; root = rank), () -> Gather!(own, nothing, c; root = rank),
                  () -> Scatter!(nothing, out, c; root = rank))
        expect_error(wrong, ncclInvalidArgument, "is nothing; the root needs an array")
    end
    expect_error(() -> Allreduce!(own, xor, c), ncclInvalidArgument, "expected +, *, max, min")
end

# Rank r has the value r + 1.
function collectives(c, ::Type{T}) where {T}
    n, rank = 3, c.rank
    full(value, count = n) = fill(number(T, value), count)
    own, out, wide = full(rank + 1), full(0), full(0, n * RANKS)
    blocks = [number(T, r) for r in 1:RANKS for _ in 1:n]
    @test Allreduce!(own, out, +, c) == full(10)
    @test Allreduce!(own, out, *, c) == full(24)
    @test Allreduce!(own, out, max, c) == full(4)
    @test Allreduce!(copy(own), min, c) == full(1)
    @test Bcast!(copy(own), 2, c) == full(3)
    out = full(0)
    @test Reduce!(own, out, +, 3, c) == full(rank == 3 ? 10 : 0)
    @test Allgather!(own, wide, c) == blocks
    @test Reduce_scatter!(blocks, out, +, c) == full(4 * (rank + 1))
    wide = full(0, n * RANKS)
    @test Alltoall!(full(rank + 1, n * RANKS), wide, c) == blocks
    wide = full(0, n * RANKS)
    @test Gather!(own, wide, 1, c) == (rank == 1 ? blocks : full(0, n * RANKS))
    @test Scatter!(wide, out, 1, c) == own
    # The parts of rank r lie at the other end.
    counts, displs = [1, 2, 3, 4], [9, 7, 4, 0]
    part, all = full(rank + 1, rank + 1), full(0, 10)
    expected = [number(T, r) for r in 4:-1:1 for _ in 1:r]
    @test Allgatherv!(part, VBuffer(all, counts, displs), c) == expected
    gathered = rank == 2 ? VBuffer(full(0, 10), counts, displs) : nothing
    @test Gatherv!(part, gathered, 2, c) == (rank == 2 ? expected : nothing)
    @test Scatterv!(gathered, full(0, rank + 1), 2, c) == part
    @test Reduce_scatterv!(reverse(expected), full(0, rank + 1), counts, +, c) == full(4 * (rank + 1), rank + 1)
    mine = VBuffer(full(0, RANKS * (rank + 1)), fill(rank + 1, RANKS))
    @test Alltoallv!(VBuffer(full(rank + 1, 10), counts), mine, c) == [number(T, r) for r in 1:RANKS for _ in 0:rank]
    if rank == 0
        Send(own, 1, c)
    elseif rank == 1
        @test Recv!(out, 0, c) == full(1)
    end
end

@testset "forms of MPI.jl" begin
    on_ranks(as_in_mpi)
end

@testset "collectives" begin
    on_ranks() do c
        for T in TYPES
            collectives(c, T)
        end
        @test Allreduce!([Float64(c.rank)], ncclAvg, c) == [1.5]
        matrix = zeros(Float32, 2, 4)
        matrix[:, 2] .= 1
        Allreduce!(view(matrix, :, 2), +, c)
        @test matrix[:, 2] == [4, 4] && sum(matrix) == 8
        close(c)
    end
end

@testset "streams, graphs, groups" begin
    on_ranks() do c
        s, x = Stream(), alloc(Float32, 4)
        graph = capture(s) do
            Allreduce!(x, +, c, stream = s)
        end
        x .= 1
        from, to = Event(), Event()
        record(from, s)
        for _ in 1:3
            launch(graph, s)
        end
        record(to, s)
        synchronize(s)
        @test x == fill(64, 4)
        @test OxCCL.isdone(to) && OxCCL.elapsed(from, to) >= 0
        expect_error(ncclInvalidArgument, "recv has 1 elements; expected 4") do
            capture(() -> Allreduce!(x, Float32[0], +, c, stream = s), s)
        end
        next, before = mod(c.rank + 1, RANKS), mod(c.rank - 1, RANKS)
        sent, received = [Int32(c.rank)], Int32[-1]
        group() do
            Recv!(received, before, c, stream = s)
            Send(sent, next, c, stream = s)
        end
        # The stream keeps what nobody else does.
        for i in 1:100
            Allreduce!(fill(1.0, 1000), zeros(1000), +, c, stream = s)
            i % 20 == 0 && GC.gc()
        end
        # Also when it is dropped itself, with work that waits for the others.
        Allreduce!(ones(100_000), zeros(100_000), +, c, stream = Stream())
        GC.gc()
        Stream()
        record(to, s)
        other = Stream()
        OxCCL.wait_for(other, to)
        synchronize(s)
        synchronize(other)
        @test received == [before]
        scaled = premulsum(c, Float64(c.rank))
        @test Allreduce!([1.0], scaled, c) == [6]
        close(scaled)
        expect_error(() -> Allreduce!([1.0], scaled, c), ncclInvalidArgument, "op")
        y = zeros(Float32, 4)
        update!(graph, s) do
            Allreduce!(y, +, c, stream = s)
        end
        copyto!(y, x, s)
        launch(graph, s)
        clear!(x, s)
        synchronize(s)
        @test y == fill(256, 4) && x == zeros(4)
        expect_error(() -> update!(() -> nothing, graph, s), ncclInvalidArgument, "")
        seconds = estimate(() -> Allreduce!(zeros(1000), +, c, stream = s))
        @test 0 < seconds < 1
        large, before = alloc(Float32, 1 << 20), OxCCL.in_place(c)
        Allreduce!(large, +, c)
        @test OxCCL.in_place(c) == before + 1 && OxCCL.by_copy_engines(c) == 0
        # Another shape of the memory keeps it when the array itself is dropped.
        shaped = reshape(alloc(Float32, 1 << 16), 256, 256)
        GC.gc()
        shaped .= 1
        @test Allreduce!(shaped, +, c) == fill(4, 256, 256)
        registered = register(c, x)
        @test Allreduce!(x, +, c) == zeros(4)
        close(registered)
        expect_error(() -> close(registered), ncclInvalidArgument, "handle")
        close(c)
    end
end

@testset "split and shrink" begin
    on_ranks() do c
        part = OxCCL.split(c, c.rank == 3 ? NCCL_SPLIT_NOCOLOR : c.rank % 2, -c.rank)
        if c.rank == 3
            @test part === nothing
        else
            @test part.size == 2 - c.rank % 2
            close(part)
        end
        if c.rank != 2
            fewer = shrink(c, [2])
            @test Allreduce!([1], +, fewer) == [3]
            close(fewer)
        end
        abort(c)
        close(c)
    end
end

@testset "growth, suspension, devices" begin
    on_ranks() do c
        half = OxCCL.split(c, c.rank ÷ 2, c.rank)
        id = Ref(UniqueId())
        c.rank == 0 && (id[] = grow_id(half))
        Bcast!(unsafe_wrap(Array, Ptr{UInt8}(pointer_from_objref(id)), sizeof(UniqueId)), 0, c)
        whole = c.rank == 0 ? grow(half, RANKS, id[]) : c.rank == 1 ? grow(half, RANKS) : grow(RANKS, id[], c.rank)
        @test whole.rank == c.rank && Allreduce!([1], +, whole) == [RANKS]
        close(half)
        close(c)
        suspend(whole)
        @test OxCCL.memory(whole, OxCCL.ncclStatGpuMemSuspended) == 1
        expect_error(() -> Allreduce!([1], +, whole), ncclInvalidUsage, "suspended")
        resume(whole)
        @test Allreduce!([1], +, whole) == [RANKS]
        close(whole)
    end
    @test OxCCL.device_count(OxCCL.oxcclDeviceHost) >= 1
    on_device(OxCCL.oxcclDeviceHost, 3) do
        id = UniqueId()
        @test repr(id) == string(id) == "UniqueId(secret)"
        @test repr(Stream()) == "Stream()" && repr(Event()) == "Event()"
        alone = Comm(1, id, 0)
        @test OxCCL.device(alone) == 3 && OxCCL.device() == (OxCCL.oxcclDeviceHost, 3)
        close(alone)
    end
    expect_error(() -> on_device(() -> nothing, OxCCL.oxcclDeviceHost, -1), ncclInvalidArgument, "index")
    @test OxCCL.log_level!(2) === nothing
end

@testset "options" begin
    on_ranks() do c
        without = OxCCL.split(c, 0, 0, numRmaCtx = 0, commName = SubString("quietly", 1, 5))
        expect_error(() -> signal(0, 0, without), ncclInvalidArgument, "numRmaCtx")
        close(without)
        expect_error(() -> OxCCL.split(c, 0, 0, minCTAs = 0), ncclInvalidArgument, "minCTAs")
        for (wrong, value) in ((:blocking, 1), (:size, 0), (:frobnicate, 0))
            @test_throws ArgumentError OxCCL.split(c, 0, 0; wrong => value)
        end
        @test_throws ArgumentError OxCCL.split(c, 0, 0, commName = "a\0b")
        expect_argument_error(() -> OxCCL.split(c, 0, 0, maxCTAs = 1 << 40), "maxCTAs is 1099511627776; expected a whole")
        expect_argument_error(() -> OxCCL.split(c, 0, 0, commName = 5), "commName is 5; expected a text")
        expect_argument_error(() -> OxCCL.split(c, 0, 0, init_timeout = NaN), "init_timeout is NaN; expected a number of seconds")
        close(c)
    end
    expect_error(() -> Comm(2, UniqueId(), 0, init_timeout = 0.001), OxCCL.ncclSystemError, "1 of 2 ranks did not come")
end

@testset "options of calls" begin
    on_ranks() do c
        own, blocks = fill(c.rank + 1, 2), [1, 1, 2, 2, 3, 3, 4, 4]
        for options in ((minCTAs = 1, maxCTAs = 4, CTAPolicy = 1, userProfilerTag = 1 << 40),
                        (algSelection = SubString("^ring", 1, 5), forceAlgSelection = 0),
                        (plan = "one_shot", deterministic = true, deadline = 60))
            @test Allreduce!(copy(own), +, c; options...) == [10, 10] && Allreduce(1, +, c; options...) == 4
            @test Bcast!(copy(own), 1, c; options...) == [2, 2] && Bcast!(copy(own), c; root = 2, options...) == [3, 3]
            @test Reduce(own, max, c; root = 3, options...) == (c.rank == 3 ? [4, 4] : nothing)
            @test Allgather(own, c; options...) == blocks
            @test Reduce_scatter!(blocks, zeros(Int, 2), +, c; options...) == 4 * own
            @test Alltoall(repeat(own, RANKS), c; options...) == blocks
            @test Gather(own, c; root = 1, options...) == (c.rank == 1 ? blocks : nothing)
            @test Scatter!(blocks, zeros(Int, 2), c; root = 1, options...) == own
        end
        for (text, options) in (("argument oxcclOptionPlan is \"no_such\"", (plan = "no_such",)),
                                ("argument maxCTAs is 65", (maxCTAs = 65,)),
                                ("argument oxcclOptionDeadlineMs is 0", (deadline = 0,)))
            expect_error(() -> Allreduce!([1], +, c; options...), ncclInvalidArgument, text)
        end
        for (text, options) in (("maxCTAs is \"4\"; expected a whole number", (maxCTAs = "4",)),
                                ("userProfilerTag is -1; expected a whole number from 0", (userProfilerTag = -1,)),
                                ("algSelection is 5; expected a text", (algSelection = 5,)),
                                ("plan is 5; expected a text", (plan = 5,)),
                                ("deterministic is 2; expected true or false", (deterministic = 2,)),
                                ("deadline is \"1\"; expected a number of seconds", (deadline = "1",)))
            expect_argument_error(() -> Allreduce!([1], +, c; options...), text)
        end
        @test_throws ArgumentError Allreduce!([1], +, c; size = 1)
        @test_throws ArgumentError Allreduce!([1], +, c; plan = "a\0b")
        # One call waits for a rank for as long as its own bound says; other communicators go on.
        part = OxCCL.split(c, 0, 0)
        c.rank == 0 && expect_error(() -> Bcast!([1], 1, part; deadline = 0.05), ncclRemoteError, "ms for rank 1")
        @test Allreduce!([1], +, c) == [4]
        abort(part)
        close(c)
    end
end

@testset "the end of a communicator tells what no call has told" begin
    on_ranks() do c
        part, other = OxCCL.split(c, 0, 0), OxCCL.split(c, 0, 0)
        if c.rank == 0
            foreach(p -> OxCCL.timeout!(p, 0.05), (part, other))
            # As if nobody had it any more.
            s = Stream()
            Recv!([1], part; source = 1, stream = s)
            finalize(s)
            while s.keeper in OxCCL.KEEPERS
                lock(OxCCL.sweep!, OxCCL.KEEPERS_LOCK)
                yield()
            end
            expect_error(() -> close(part), ncclRemoteError, "ms for rank 1")
            # Once is enough.
            expect_error(() -> Recv!([1], other; source = 1), ncclRemoteError, "ms for rank 1")
            close(other)
        end
        Barrier(c)
        foreach(abort, (part, other))
        again = OxCCL.split(c, 0, 0)
        Barrier(c)
        revoke(again)
        @test close(again) === nothing
        # What a group refuses ends nothing.
        expect_error(() -> group(() -> (Allreduce!([1], +, c; stream = Stream()); close(c))), ncclInvalidUsage, "group")
        @test Allreduce!([1], +, c) == [RANKS]
        close(c)
    end
end

@testset "every field of C's options" begin
    # What a call gets: the bytes of each field.
    fields(options) = OxCCL.lend(Dict{Symbol,Any}(options)) do config
        GC.@preserve config begin
            start, T = Ptr{UInt8}(Base.unsafe_convert(Ptr{OxCCL.ncclCollConfig_t}, config)), OxCCL.ncclCollConfig_t
            return map(1:fieldcount(T)) do i
                unsafe_wrap(Array, start + fieldoffset(T, i), sizeof(fieldtype(T, i))) |> copy
            end
        end
    end
    plain, T = fields(()), OxCCL.ncclCollConfig_t
    text = Base.fieldindex(T, :algSelection)
    for (i, name) in enumerate(fieldnames(T))
        name in (:size, :magic, :version, :ext) && continue
        value = fieldtype(T, i) === Cstring ? "ring" : fieldtype(T, i) === Ptr{Cvoid} ? Event() : 2
        given = fields((name => value,))
        # Without a value a text lies elsewhere in each call.
        @test Set([i, text]) == Set([findall(given .!= plain); text])
    end
end

@testset "the event of a call" begin
    on_ranks() do c
        s, e, own = Stream(), Event(), [c.rank + 1]
        part = OxCCL.split(c, 0, 0)
        @test OxCCL.isdone(e)
        # It comes up behind its call, for which rank 0 waits until the others call, too.
        if c.rank == 0
            Allreduce!(own, +, part; stream = s, launchCompletionEvent = e)
            @test !OxCCL.isdone(e)
        end
        Barrier(c)
        c.rank == 0 || Allreduce!(own, +, part; stream = s, launchCompletionEvent = e)
        synchronize(s)
        @test OxCCL.isdone(e) && own == [10]
        expect_error(ncclInvalidUsage, "two calls of a group have a launchCompletionEvent") do
            group() do
                Allreduce!(own, +, part; stream = s, launchCompletionEvent = e)
                Allreduce!(own, +, part; stream = s, launchCompletionEvent = e)
            end
        end
        @test_throws ArgumentError Allreduce!(own, +, part; launchCompletionEvent = 5)
        foreach(close, (part, c))
    end
end

@testset "encryption" begin
    expect_error(() -> OxCCL.set_encryption!("short"), ncclInvalidArgument, "argument psk is a text of 5 bytes")
    @test_throws ArgumentError OxCCL.set_encryption!("a\0b")
    OxCCL.set_encryption!("a key that only these ranks have")
    on_ranks() do c
        @test Allreduce!([1], +, c) == [4]
        close(c)
    end
    OxCCL.set_encryption!(nothing)
end

@testset "windows" begin
    on_ranks() do c
        x = zeros(Int64, RANKS)
        w = Window(c, x)
        s = Stream()
        # Each rank writes its number into its place in all windows.
        for r in 0:RANKS-1
            put([c.rank + 1], w, r, c.rank + 1, 3, stream = s)
            signal(r, 4, c, stream = s)
        end
        wait_signals(c, ((r, number, 1) for r in 0:RANKS-1 for number in 3:4)...)
        @test x == 1:RANKS
        synchronize(s)
        expect_error(() -> put([1], w, 0, RANKS + 1, 0), ncclInvalidArgument, "32")
        for at in (0, typemin(Int), typemax(Int))
            expect_error(() -> put([1], w, 0, at, 0), ncclInvalidArgument, "at is $at")
        end
        expect_error(() -> put([1], w, RANKS, 1, 0), ncclInvalidArgument, "peer")
        expect_error(() -> signal(0, 16, c), ncclInvalidArgument, "sigIdx")
        # Nobody writes any more.
        Allreduce!([1], +, c)
        close(w)
        close(c)
    end
end

@testset "errors" begin
    on_ranks() do c
        x = zeros(3)
        @test repr(c) == "Comm(rank $(c.rank) of 4)"
        expect_error(() -> Bcast!(x, 4, c), ncclInvalidArgument, "root")
        expect_error(() -> Allgather!(x, x, c), ncclInvalidArgument, "recv has 3 elements; expected 12")
        expect_error(() -> Allgatherv!(x, VBuffer(x, [3, 0, 0]), c), ncclInvalidArgument,
                     "Allgatherv!: the counts of recv has 3 elements; expected 4")
        expect_error(() -> VBuffer(x, [1, 3]), ncclInvalidArgument, "a part of 3 elements behind 1 others")
        expect_error(() -> VBuffer(x, [-1]), ncclInvalidArgument, "a part of -1 elements")
        expect_error(() -> VBuffer(x, [1], [typemax(Int)]), ncclInvalidArgument, "others is not in an array of 3")
        expect_error(() -> Gatherv!(x, nothing, c.rank, c), ncclInvalidArgument, "the root needs a VBuffer")
        expect_error(() -> Reduce_scatterv!(x, x, [1, 1, 0, 0], +, c), ncclInvalidArgument, "send has 3 elements; expected 2")
        large = 1 << 40
        for (call, text) in [
            (() -> Bcast!(x, large, c)) => "root is $large; expected a whole number from -2147483648 to 2147483647",
            (() -> Send(x, large, c)) => "peer is $large",
            (() -> signal(0, large, c)) => "sigIdx is $large",
            (() -> wait_signals(c, (large, 0, 1))) => "from is $large",
            (() -> OxCCL.split(c, large, 0)) => "color is $large",
            (() -> shrink(c, [large])) => "a rank of exclude is $large",
            (() -> shrink(c, ["1"])) => "a rank of exclude is \"1\"",
            (() -> grow(c, large)) => "nRanks is $large",
            (() -> Comm(large, UniqueId(), 0, init_timeout = 1)) => "nranks is $large",
            (() -> OxCCL.timeout!(c, NaN)) => "seconds is NaN",
            (() -> VBuffer(x, [1.5])) => "counts is [1.5]; expected a whole number for each rank",
            (() -> VBuffer(x, nothing)) => "counts is nothing",
            (() -> VBuffer(x, [1], ["0"])) => "displs is [\"0\"]",
            (() -> Scatter([1.0], Int, c.rank, c)) => "of type Float64; expected Int64",
            (() -> Bcast!(Dict("a" => 1), c)) => "data is a Dict{String,$Int}; expected an array of numbers",
            (() -> Bcast!("config", 0, c)) => "data is a String; expected an array of numbers",
            (() -> Bcast!(5, c; root = 1)) => "serialize one, and Bcast! the length and then the bytes",
            (() -> Bcast!(x, c; rot = 1)) => "or a keyword of the call itself, such as stream, or root",
            (() -> Allreduce!(x, +, c; stream = 3)) => "stream is 3; expected a Stream",
            (() -> alloc(Float32, -1)) => "dims are (-1,)",
            (() -> alloc(Float32, large, large)) => "for at most 9223372036854775807 bytes",
            (() -> alloc(String, 1)) => "elements of type String; expected a type of plain bits",
        ]
            expect_argument_error(call, text)
        end
        expect_error(() -> group(() -> Comm(1, UniqueId(), 0)), ncclInvalidUsage, "cannot be made in a group")
        # The data would not be there yet.
        expect_error(() -> group(() -> group(() -> Allreduce!(x, +, c))), ncclInvalidUsage, "cannot wait in a group")
        @test_throws MethodError Allreduce!(x, zeros(Float32, 3), +, c)
        for (call, text) in [
            (() -> Allreduce!(x, zeros(Float32, 3), +, c)) => "arrays of one element type",
            (() -> Allreduce!(view(x, 1:2:3), +, c)) => "collect(x) makes one",
            (() -> Bcast!(view(x, 1:2:3), c)) => "collect(x) makes one",
            (() -> Allreduce!(x, c)) => "an operation before the communicator",
            (() -> Reduce!(nothing, +, c)) => "Reduce! takes arrays; got a Nothing",
            (() -> Allreduce(nothing, +, c)) => "Allreduce takes arrays; got a Nothing",
            (() -> Allreduce!(3, +, c)) => "Allreduce! takes arrays; got a $Int",
            (() -> Comm(4)) => "Comm(size, id, rank) takes a UniqueId",
        ]
            e = try call(); nothing catch e; e end
            @test e isa MethodError && occursin(text, sprint(showerror, e))
        end
        # A rank waits for a message that nobody sends for as long as its bound says; other communicators go on.
        part = OxCCL.split(c, 0, 0)
        if c.rank == 0
            OxCCL.timeout!(part, 0.05)
            e = expect_error(() -> Recv!([0.0], 1, part), ncclRemoteError, "ms for rank 1")
            @test (e.rank, e.peer) == (0, 1)
        else
            OxCCL.timeout!(part, Inf)
        end
        @test Allreduce!([1], +, c) == [RANKS]
        abort(part)
        # Rank 0 waits for a message that nobody sends, until another task aborts.
        Allreduce!(x, +, c)
        if c.rank == 0
            @async abort(c)
            expect_error(() -> Recv!(x, 1, c), ncclInvalidUsage, "ncclCommAbort")
        else
            e = expect_error(() -> Recv!(x, 0, c), ncclRemoteError, "rank 0")
            @test e.peer == 0
        end
        close(c)
        @test repr(c) == "Comm(rank $(c.rank) of 4, closed)"
        foreach(end_ -> (@test end_(c) === nothing), (close, abort))
        for call in (c -> Allreduce!(x, +, c), c -> Allreduce!(x, +, c; stream = Stream()), c -> Send(x, 0, c),
                     c -> Allgatherv!(x, VBuffer(zeros(12), [3, 3, 3, 3]), c), c -> signal(0, 0, c), Barrier,
                     c -> OxCCL.split(c, 0, 0), c -> shrink(c, [1]), c -> grow(c, 5), grow_id, OxCCL.device, suspend,
                     c -> register(c, x), c -> Window(c, x), c -> premulsum(c, 2.0), c -> OxCCL.timeout!(c, 1))
            expect_error(() -> call(c), ncclInvalidUsage, "the communicator was closed or aborted")
        end
    end
    @test OxCCL.version().nccl == v"2.32.3"
end

# The extensions, with stand-ins for what they extend: before Julia 1.9 nothing loads extensions, and CUDA.jl
# needs a GPU.
push!(LOAD_PATH, joinpath(@__DIR__, "stand-ins"))
import CUDA, MPI
include("../ext/OxCCLCUDAExt.jl")
include("../ext/OxCCLMPIExt.jl")

@testset "extensions" begin
    values = Channel(RANKS)
    @sync for r in 0:RANKS-1
        @async begin
            c, own = Comm(MPI.Comm(r, RANKS, values)), Stream()
            task_local_storage(:stream, own.handle)
            @test c.rank == r
            x = CUDA.CuArray([1.0, r])
            Allreduce!(x, +, c)
            @test x.data == [4, 6]
            Allreduce!(x, max, c, stream = c.stream)
            synchronize(c.stream)
            @test Scatterv!(r == 0 ? VBuffer(x, [1, 1, 0, 0]) : nothing, CUDA.CuArray(zeros(r < 2 ? 1 : 0)), 0, c) ==
                  (r == 0 ? [4] : r == 1 ? [6] : [])
            synchronize(own)
            close(c)
        end
    end
    # A failure of rank 0 is everyone's.
    @test_throws ErrorException Comm(_ -> ErrorException("no id"), 2, 1)
end

# What is made again and again, dropped or closed, and calls that fail, leave nothing behind.
function make_and_drop(parent)
    alone, s, event = OxCCL.split(parent, 0, 0), Stream(), Event()
    # More than there is of addresses, if it is never given back.
    x = alloc(UInt8, 1 << 30)
    w, registered = Window(alone, x), register(alone, x)
    graph = capture(() -> Allreduce!(view(x, 1:9), max, alone, stream = s), s)
    launch(graph, s)
    synchronize(s)
    foreach(close, (registered, w, alone))
    for _ in 1:100
        expect_error(() -> Bcast!(x, 0, alone), ncclInvalidUsage, "closed")
    end
end

@testset "nothing leaks" begin
    if WORLD === nothing
        parent = Comm()
        entries(what) = length(readdir("/proc/self/$what"))
        rounds(n) = foreach(1:n) do _
            make_and_drop(parent)
            GC.gc()
        end
        rounds(3)
        before = entries.(("fd", "task"))
        rounds(60)
        # A thread may keep the last communicator that it used.
        @test all(entries.(("fd", "task")) .<= before .+ 16)
        # Streams that were dropped go when the next one is made.
        Stream()
        @test length(OxCCL.KEEPERS) < 16
        close(parent)
    end
end

WORLD === nothing || close(WORLD)
