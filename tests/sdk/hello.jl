# An all-reduce of all ranks; alone where nobody started more.
using OxCCL

comm = Comm(commName = "greeting", minCTAs = 8)
x = [1.0, comm.rank]
Allreduce!(x, +, comm)
x == [comm.size, comm.size * (comm.size - 1) ÷ 2] || error("$x is wrong")
println("rank $(comm.rank) of $(comm.size): all right")
close(comm)
