# Softmax regression on Fisher's irises: every rank has a part of the flowers, and all add up their
# gradients in each step: oxccl run -n 4 julia 05_training.jl ../data/iris.csv
using DelimitedFiles, OxCCL
include("verdict.jl")

# Lengths, centred and scaled, with a one for the bias; and a one at each flower's kind.
function load(path)
    table = readdlm(path, ',', skipstart = 1)
    x = Float64.(table[:, 1:4])
    centre(c) = c .- sum(c) / length(c)
    scale(c) = c ./ sqrt(sum(c .^ 2) / length(c))
    return hcat([scale(centre(x[:, j])) for j in 1:4]..., ones(size(x, 1))), table[:, 5] .== (0:2)'
end

function train(comm, x, y)
    w, n = zeros(5, 3), size(x, 1)
    own, guessed = comm.rank+1:comm.size:n, 0.0
    for _ in 1:300
        p = exp.(x[own, :] * w)
        p ./= sum(p, dims = 2)
        good = count(argmax(p[i, :]) == argmax(y[own[i], :]) for i in eachindex(own))
        sums = [vec(x[own, :]' * (p - y[own, :])); good]
        Allreduce!(sums, +, comm)
        w -= 0.5 * reshape(sums[1:15], 5, 3) / n
        guessed = sums[end]
    end
    return w, guessed
end

comm = Comm()
x, y = load(ARGS[1])
w, guessed = train(comm, x, y)
most = copy(w)
Allreduce!(most, max, comm) # all ranks have come to the same weights
close(comm)
right = w == most && 0.95 * 150 <= guessed <= 150
verdict(right, comm.rank, comm.size, "$(Int(guessed)) of $(size(x, 1)) flowers")
