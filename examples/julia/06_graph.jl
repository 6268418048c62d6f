# An all-reduce is captured once and launched many times: oxccl run -n 4 julia 06_graph.jl
using OxCCL
include("verdict.jl")

comm, stream, x = Comm(), Stream(), [1]
graph = capture(stream) do
    Allreduce!(x, +, comm, stream = stream) # noted, not done
end
for _ in 1:10
    launch(graph, stream)
end
synchronize(stream)
close(comm)
verdict(x == [comm.size^10], comm.rank, comm.size, "ten launches")
