# Heat in a rod that is cut into a piece per rank. In each step neighbours exchange the cells at their
# edges: oxccl run -n 4 julia 04_halo.jl
using OxCCL
include("verdict.jl")

const CELLS, STEPS = 64, 200

initial(cell) = cell % 17 == 0 ? 100.0 : float(cell % 5)
# The cells between those of the neighbours.
step(u) = [u[i] + 0.25 * (u[i-1] - 2u[i] + u[i+1]) for i in 2:length(u)-1]

function heat(comm)
    stream, edge = Stream(), alloc(Float64, 4) # to the left and right, and from them
    u = initial.(comm.rank * CELLS .+ (1:CELLS))
    for _ in 1:STEPS
        edge[1], edge[2] = u[1], u[end]
        group() do # in a group, sends and receives wait for no order
            for (side, peer) in enumerate((comm.rank - 1, comm.rank + 1))
                0 <= peer < comm.size || continue
                Send(view(edge, side:side), peer, comm, stream = stream)
                Recv!(view(edge, 2+side:2+side), peer, comm, stream = stream)
            end
        end
        synchronize(stream)
        u = step([edge[3]; u; edge[4]]) # 0 at the ends of the rod
    end
    return u
end

function whole(n)
    u = initial.(1:n*CELLS)
    for _ in 1:STEPS
        u = step([0.0; u; 0.0])
    end
    return u
end

comm = Comm()
u = heat(comm)
close(comm)
own = comm.rank * CELLS .+ (1:CELLS)
verdict(u == whole(comm.size)[own], comm.rank, comm.size, "heat")
