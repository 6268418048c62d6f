# One process drives many devices, a task for each: julia 02_devices.jl
using OxCCL
include("verdict.jl")

function sum_on(device, n, id)
    comm = on_device(() -> Comm(n, id, device), OxCCL.oxcclDeviceHost, device)
    x = [device + 1]
    Allreduce!(x, +, comm) # other tasks run meanwhile
    close(comm)
    return x[1]
end

n, id = 4, UniqueId()
sums = fetch.([@async sum_on(device, n, id) for device in 0:n-1])
verdict(all(sums .== n * (n + 1) ÷ 2), 0, 1, "sums on all devices")
