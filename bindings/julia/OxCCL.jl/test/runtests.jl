using OxCCL
using OxCCL: ncclAvg, ncclInvalidArgument, ncclInvalidUsage, ncclRemoteError, NCCL_SPLIT_NOCOLOR
using Test

const RANKS = 4

# Processes each compile every method again, which takes longer than all else.
const TYPES = haskey(ENV, "OXCCL_RANK") ? (Int32, Float64) :
    (Int8, UInt8, Int32, UInt32, Int64, UInt64, Float16, Float32, Float64)

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

# Rank r has the value r + 1.
function collectives(c, ::Type{T}) where {T}
    n, rank = 3, c.rank
    own, out, wide = fill(T(rank + 1), n), zeros(T, n), zeros(T, n * RANKS)
    blocks = repeat(T[1, 2, 3, 4], inner = n)
    @test Allreduce!(own, out, +, c) == fill(T(10), n)
    @test Allreduce!(own, out, *, c) == fill(T(24), n)
    @test Allreduce!(own, out, max, c) == fill(T(4), n)
    @test Allreduce!(copy(own), min, c) == fill(T(1), n)
    @test Bcast!(copy(own), 2, c) == fill(T(3), n)
    fill!(out, 0)
    @test Reduce!(own, out, +, 3, c) == fill(T(rank == 3 ? 10 : 0), n)
    @test Allgather!(own, wide, c) == blocks
    @test Reduce_scatter!(blocks, out, +, c) == fill(T(4 * (rank + 1)), n)
    fill!(wide, 0)
    @test Alltoall!(fill(T(rank + 1), n * RANKS), wide, c) == blocks
    fill!(wide, 0)
    @test Gather!(own, wide, 1, c) == (rank == 1 ? blocks : zero(blocks))
    @test Scatter!(wide, out, 1, c) == own
    if rank == 0
        Send(own, 1, c)
    elseif rank == 1
        @test Recv!(out, 0, c) == fill(T(1), n)
    end
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
        @test Allreduce!([1.0], premulsum(c, Float64(c.rank)), c) == [6]
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

@testset "errors" begin
    on_ranks() do c
        x = zeros(3)
        expect_error(() -> Bcast!(x, 4, c), ncclInvalidArgument, "root")
        expect_error(() -> Allgather!(x, x, c), ncclInvalidArgument, "recv has 3 elements; expected 12")
        @test_throws MethodError Allreduce!(ComplexF64[1], +, c)
        @test_throws MethodError Allreduce!(x, zeros(Float32, 3), +, c)
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
        expect_error(() -> Allreduce!(x, +, c), ncclInvalidArgument, "null")
    end
    @test OxCCL.version().nccl == v"2.30.7"
end

# What the binding adds to a call, printed only: an all-reduce of one rank, of nothing.
@testset "overhead" begin
    if WORLD === nothing
        c, none, s = Comm(), Float32[], Stream()
        calls(n) = for _ in 1:n
            Allreduce!(none, +, c, stream = s)
        end
        calls(10)
        synchronize(s)
        seconds = @elapsed calls(10_000)
        synchronize(s)
        println("a call takes ", round(Int, seconds * 1e5), " ns")
        close(c)
    end
end
WORLD === nothing || close(WORLD)
