# Arrays of CUDA.jl. A call without a stream goes behind what CUDA.jl does on the task's stream, and waits
# for its end; with `stream = s` call CUDA.synchronize() first.
module OxCCLCUDAExt

using OxCCL, CUDA

OxCCL.address(x::CuArray) = reinterpret(Ptr{Cvoid}, pointer(x))

function OxCCL.run(call, c::OxCCL.Comm, ::Nothing, first::CuArray, more...)
    OxCCL.may_wait()
    stream = CUDA.stream()
    GC.@preserve first more stream begin
        handle = reinterpret(Ptr{Cvoid}, Base.unsafe_convert(CUDA.CUstream, stream))
        OxCCL.check(call(handle))
        OxCCL.wait_until_done(handle)
    end
    return nothing
end

end
