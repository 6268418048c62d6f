# The sum of all ranks' numbers, on every rank: oxccl run -n 4 julia 01_hello.jl
using OxCCL
include("verdict.jl")

comm = Comm()
x = Float32[comm.rank + i for i in 0:999]
Allreduce!(x, +, comm)
n = comm.size
close(comm)
verdict(x == [n * (n - 1) ÷ 2 + n * i for i in 0:999], comm.rank, n, "sum")
