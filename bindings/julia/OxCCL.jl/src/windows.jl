# One-sided operations.

"""
    Window(comm, data)

Makes a window of an array, which it keeps; the other ranks of this host write into it by [`put`](@ref). All
ranks call, in the same order. `close` it when nobody writes into it any more.
"""
struct Window{T}
    comm::Comm
    handle::Ptr{Cvoid}
    data::Elements{T}
end

function Window(c::Comm, data::Elements{T}) where {T}
    place = Ref{Ptr{Cvoid}}()
    check(ncclCommWindowRegister(open_handle(c), address(data), sizeof(T) * length(data), place, NCCL_WIN_DEFAULT))
    return Window{T}(c, place[], data)
end

Base.close(w::Window) = check(ncclCommWindowDeregister(open_handle(w.comm), w.handle))

"""
    put(data, window, to, at, number)

Writes an array into the window of rank `to`, from its element `at` on (1 is the first), and then counts up
that rank's signal of this number, 0 to 15.
"""
function put(data::Elements{T}, w::Window{T}, to::Integer, at::Integer, number::Integer; stream = nothing) where {T}
    0 < at <= typemax(Int) ÷ sizeof(T) || throw(OxCCLError(
        ncclInvalidArgument, -1, -1, "put: at is $at; expected an element of the window, 1 or more"))
    offset = (at - 1) * sizeof(T)
    return run(w.comm, stream, data, w) do on
        ncclPutSignal(address(data), length(data), datatype(T), to, w.handle, offset, number, 0, 0,
                      open_handle(w.comm), on)
    end
end

"`signal(to, number, comm)`: counts up a signal, 0 to 15, of a rank; what was put there before is there when it is seen."
signal(to::Integer, number::Integer, c::Comm; stream = nothing) =
    run(on -> ncclSignal(to, number, 0, 0, open_handle(c), on), c, stream)

"""
    wait_signals(comm, (from, number, count)...)

Waits until rank `from` has sent so many signals of this number that nobody has waited for yet; with
`stream = s`, makes the stream wait.
"""
function wait_signals(c::Comm, signals::Tuple{Integer,Integer,Integer}...; stream = nothing)
    list = map(collect(signals)) do (from, number, count)
        ncclWaitSignalDesc_t(whole(Cint, "count", count), whole(Cint, "from", from), whole(Cint, "number", number), 0)
    end
    return run(on -> ncclWaitSignal(length(list), list, open_handle(c), on), c, stream)
end
