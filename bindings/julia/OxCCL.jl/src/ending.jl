# The communicators that nobody has ended when the process ends.

# The handles of those that are open, in the order of their making.
const OPEN = Ptr{Cvoid}[]
const OPEN_LOCK = ReentrantLock()

# Nanoseconds that the end of the process waits for ranks that do not come.
const PATIENCE = 5_000_000_000

opened(handle) = lock(() -> push!(OPEN, handle), OPEN_LOCK)
ended(handle) = lock(() -> filter!(!=(handle), OPEN), OPEN_LOCK)

# What a communicator is in.
function state_of(handle)
    state = Ref{Cint}()
    code = ncclCommGetAsyncError(handle, state)
    return code == Cint(ncclSuccess) ? state[] : code
end

# The exceptions that are on their way: Julia ends the process within the `catch` of its own.
exceptions() = isdefined(Base, :current_exceptions) ? Base.current_exceptions() : Base.catch_stack()

# Closes what is open, so that this rank is not lost to the others, which may still be at work. Not where the program
# failed: the others are to hear of it, and this process shall wait for none of them. From Julia 1.9 on the status of the
# process is passed.
function close_all(status = 0)
    status == 0 && isempty(exceptions()) || return nothing
    handles = filter(handle -> state_of(handle) == Cint(ncclSuccess), lock(() -> splice!(OPEN, 1:length(OPEN)), OPEN_LOCK))
    began = time_ns()
    foreach(ncclCommFinalize, handles)
    for handle in handles
        while state_of(handle) == Cint(ncclInProgress) && time_ns() - began < PATIENCE
            # Other tasks have nothing to do any more.
            Libc.systemsleep(0.001)
        end
        state = state_of(handle)
        # Ranks that did not come in time may be at work, and are told of what they lack.
        state == Cint(ncclInProgress) && continue
        failed = state != Cint(ncclSuccess)
        failed || (state = ncclCommDestroy(handle))
        state == Cint(ncclSuccess) && continue
        failure = last_error(state, failed ? info -> oxcclCommLastError(handle, info) : oxcclLastError)
        try
            # No exception could be caught any more.
            print(stderr, "OxCCL: at the end of the process: $(failure.text)\n")
        catch
            # Nobody reads it.
        end
    end
end

# What Julia shows by itself are addresses and what is kept.
Base.show(io::IO, s::Stream) = print(io, s.handle == C_NULL ? "Stream(closed)" : "Stream()")
Base.show(io::IO, ::Event) = print(io, "Event()")
