# Julia's side of binding-overhead.
using OxCCL, Printf

const BATCHES, CALLS = 300, 500

# Compiled for each call.
function measure(name, call::F, drain) where {F}
    ns = map(1:BATCHES) do _
        start = time_ns()
        for _ in 1:CALLS
            call()
        end
        stop = time_ns()
        drain()
        return (stop - start) / CALLS
    end
    sort!(ns)
    @printf("%s %.1f %.1f\n", name, ns[1], ns[BATCHES÷2])
end

function main()
    comm, stream, x = Comm(), Stream(), alloc(Float32, 2)
    measure("queued", () -> Allreduce!(x, +, comm, stream = stream), () -> synchronize(stream))
    measure("waited", () -> Allreduce!(x, +, comm), () -> nothing)
    close(comm)
end

main()
