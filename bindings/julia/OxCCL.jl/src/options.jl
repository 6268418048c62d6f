# Options of one collective, and the encryption of connections.

# The fields of ncclCollConfig_t behind those that are filled here.
const CALL_FIELDS = fieldnames(ncclCollConfig_t)[5:end]
"""
The names of the options of one collective, which are keywords of the eight that NCCL gives options, alike on
all ranks: the fields of `ncclCollConfig_t`, such as `maxCTAs = 4` or `algSelection = "ring,tree"`; `plan`, the
algorithm by a name of `oxccl plan`; `deterministic = true` for the same bits always; and `deadline`, the
seconds that the call may wait for another rank.

`launchCompletionEvent = e` takes an `Event`, which is recorded on the call's stream behind the call. Either all
ranks give an event, or none; in a group at most one call of a communicator has one.
"""
const CALL_OPTIONS = (CALL_FIELDS..., :plan, :deterministic, :deadline)

# Calls a collective, with options where there are any.
@inline configured(plain, with, options, arguments...) =
    isempty(options) ? plain(arguments...) : lend(config -> with(arguments..., config), options)

# Calls f with options as C has them, which are valid until it returns.
function lend(f, options)
    for name in keys(options)
        name in CALL_OPTIONS || throw(ArgumentError(
            "$name is no option of a call; expected one of $(join(CALL_OPTIONS, ", ")), or a keyword of the call itself, such as stream, or root where there is one"))
    end
    # As NCCL_COLLCONFIG_INITIALIZER has it.
    unset(name, T) = name === :forceAlgSelection ? T(1) : name === :userProfilerTag ? T(0) :
                     T === Cstring ? "" : T === Ptr{Cvoid} ? nothing : typemin(T)
    given = Dict{Symbol,Any}(name => value isa AbstractString ? String(value) : value for (name, value) in options)
    field(name, T) = value_for_c(T, name, get(given, name, unset(name, T)))
    own = Tuple{oxcclCallOption_t,Ptr{Cvoid}}[]
    haskey(given, :plan) && push!(own, (oxcclOptionPlan, convert(Ptr{Cvoid}, text_for_c(:plan, given[:plan]))))
    haskey(given, :deterministic) && push!(own, (oxcclOptionDeterministic, integer(switch(:deterministic, given))))
    haskey(given, :deadline) && push!(own, (oxcclOptionDeadlineMs, integer(milliseconds(:deadline, given[:deadline]))))
    list = Vector{ncclConfigExt}(undef, length(own))
    GC.@preserve given list begin
        next = Ptr{ncclConfigExt}(C_NULL)
        for (i, (option, value)) in enumerate(own)
            key = ncclConfigExtKey_t(OXCCL_VENDOR_ID, Cint(option))
            list[i] = ncclConfigExt(next, key, ncclConfigExtValue_t(value))
            next = pointer(list, i)
        end
        fields = (field(name, fieldtype(ncclCollConfig_t, name)) for name in CALL_FIELDS)
        config = Ref(ncclCollConfig_t(
            sizeof(ncclCollConfig_t), NCCL_API_MAGIC, NCCL_VERSION_CODE, next, fields...))
        return f(config)
    end
end

# C's value; of a text, which must live as long, where it lies.
value_for_c(T, name, value) = whole(T, name, value)
value_for_c(::Type{Cstring}, name, value) = text_for_c(name, value)
# The only pointers among the fields are events.
value_for_c(::Type{Ptr{Cvoid}}, name, ::Nothing) = C_NULL
value_for_c(::Type{Ptr{Cvoid}}, name, event::Event) = event.handle
value_for_c(::Type{Ptr{Cvoid}}, name, other) =
    throw(ArgumentError("$name is $(repr(other)); expected an OxCCL.Event"))

function switch(name, given)
    given[name] in (true, false) && return Bool(given[name])
    throw(ArgumentError("$name is $(repr(given[name])); expected true or false"))
end

# An integer in the place of a pointer: in its first bytes.
integer(value) = Ptr{Cvoid}(UInt(ENDIAN_BOM == 0x04030201 ? reinterpret(UInt32, Cint(value)) :
                                 UInt(reinterpret(UInt32, Cint(value))) << 32))

milliseconds(name, time) = Cint(clamp(ceil(1000 * seconds(name, time)), typemin(Cint), typemax(Cint)))

"""
    set_encryption!(key)

Encrypts the connections by which communicators are made from now on, with a key of at least 16 bytes that
all ranks have and nobody can guess; `nothing` ends that. Only ranks of one host can have encrypted
connections.
"""
function set_encryption!(key::Union{AbstractString,Nothing})
    text = key === nothing ? nothing : String(key)
    mode = text === nothing ? NCCL_ENCRYPTION_MODE_NONE : NCCL_ENCRYPTION_MODE_PSK
    GC.@preserve text begin
        psk = text === nothing ? Cstring(C_NULL) : Base.unsafe_convert(Cstring, text)
        size = sizeof(ncclEncryptionConfig_t)
        check(ncclSetEncryption(Ref(ncclEncryptionConfig_t(
            size, NCCL_API_MAGIC, NCCL_VERSION_CODE, Cint(mode), psk))))
    end
    return nothing
end
