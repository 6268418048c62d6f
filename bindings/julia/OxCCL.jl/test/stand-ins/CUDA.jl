# What the extension for CUDA.jl uses of it, on host memory: CUDA.jl itself runs on no machine without a GPU.
module CUDA

export CuArray

primitive type CuPtr{T} 64 end

struct CuArray{T,N} <: DenseArray{T,N}
    data::Array{T,N}
end

Base.size(x::CuArray) = size(x.data)
Base.getindex(x::CuArray, i::Int) = x.data[i]
Base.pointer(x::CuArray{T}) where {T} = reinterpret(CuPtr{T}, pointer(x.data))

primitive type CUstream 64 end

struct CuStream
    handle::Ptr{Cvoid}
end
Base.unsafe_convert(::Type{CUstream}, s::CuStream) = reinterpret(CUstream, s.handle)

# Each task has its own, which here the test makes.
stream() = CuStream(task_local_storage(:stream))

end
