"""Options of communicators and of calls."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Union

from . import _gen
from ._library import _int

if TYPE_CHECKING:
    from . import Event

#: The value of an option of a communicator, and of one call.
Option = Union[int, float, str, bytes, None]
CallOption = Union[int, str, bytes, "Event"]

#: What a communicator can be asked for: the fields of ncclConfig_t. It is Python that decides whether calls wait.
OPTIONS = {field[0]: field[1] for field in _gen.ncclConfig_t._fields_[4:]}


def _configure(options):
    size, magic = ctypes.sizeof(_gen.ncclConfig_t), _gen.NCCL_API_MAGIC
    config = _gen.ncclConfig_t(size, magic, _gen.NCCL_VERSION_CODE, 1)
    for name, kind in OPTIONS.items():
        # As NCCL_CONFIG_INITIALIZER has it.
        setattr(config, name, None if kind is ctypes.c_char_p else -(2**31))
    for name, value in options.items():
        if name not in OPTIONS:
            known = ", ".join((*OPTIONS, "init_timeout"))
            raise TypeError(f"{name} is no option of a communicator; expected one of {known}")
        setattr(config, name, _field(name, OPTIONS[name], value))
    return config


def _field(name, kind, value):
    """A field as C takes it. ctypes would take a number for the place of a text."""
    if kind is ctypes.c_char_p:
        return None if value is None else _text(name, value)
    return _int(name, value)


def _text(name, value):
    if not isinstance(value, (str, bytes)):
        raise TypeError(f"{name} is {value!r}; expected a text")
    value = value.encode() if isinstance(value, str) else value
    if 0 in value:
        raise ValueError(f"{name} is {value!r}; expected a text without zeros")
    return value


#: What one collective can be asked for: the fields of ncclCollConfig_t.
CALL_OPTIONS = {field[0]: field[1] for field in _gen.ncclCollConfig_t._fields_[4:]}


class CallOptions:
    """Options of one collective, alike on all ranks: the fields in CALL_OPTIONS, such as
    CallOptions(maxCTAs=4, algSelection="ring"), and options of this library: `deadline_ms`, how long the
    call may wait for a peer, `deterministic` for the same bits always, `plan`, the algorithm by its name.

    `launchCompletionEvent` is an Event that is recorded on the call's stream behind the call. Either all ranks
    give an event, or none; in a Group at most one call of a communicator has one."""

    def __init__(self, *, deadline_ms: int | None = None, deterministic: bool | None = None,
                 plan: str | None = None, **fields: CallOption) -> None:
        size, magic = ctypes.sizeof(_gen.ncclCollConfig_t), _gen.NCCL_API_MAGIC
        self._config, self._kept = _gen.ncclCollConfig_t(size, magic, _gen.NCCL_VERSION_CODE), []
        # As NCCL_COLLCONFIG_INITIALIZER has it.
        unset = {"forceAlgSelection": 1, "userProfilerTag": 0, "algSelection": None, "launchCompletionEvent": None}
        for name in CALL_OPTIONS:
            setattr(self._config, name, unset.get(name, -(2**31)))
        given = dict(fields, deadline_ms=deadline_ms, deterministic=deterministic, plan=plan)
        self._given = {name: value for name, value in given.items() if value is not None}
        for name, value in fields.items():
            if name not in CALL_OPTIONS:
                known = ", ".join(("plan", "deterministic", "deadline_ms", *CALL_OPTIONS))
                raise TypeError(f"{name} is no option of a call; expected one of {known}")
            setattr(self._config, name, self._value(name, value))
        of, extension = _gen.oxcclCallOption_t, _gen.ncclConfigExtValue_t
        if plan is not None:
            self._add(of.oxcclOptionPlan, extension(s=_text("plan", plan)))
        if deterministic is not None:
            self._add(of.oxcclOptionDeterministic, extension(i=_int("deterministic", deterministic)))
        if deadline_ms is not None:
            if _int("deadline_ms", deadline_ms) < 1:
                raise ValueError(f"deadline_ms is {deadline_ms}; expected 1 ms or more")
            self._add(of.oxcclOptionDeadlineMs, extension(i=_int("deadline_ms", deadline_ms)))

    def __repr__(self) -> str:
        return f"CallOptions({', '.join(f'{name}={value!r}' for name, value in self._given.items())})"

    def _value(self, name, value):
        """A field as C takes it."""
        if name == "userProfilerTag":
            if not isinstance(value, int) or not 0 <= value < 2**63:
                raise ValueError(f"{name} is {value!r}; expected an integer of 63 bits, 0 or more")
            return value
        if name == "launchCompletionEvent":
            # That file needs this one.
            from . import Event

            if not isinstance(value, Event):
                raise TypeError(f"{name} is {value!r}; expected an oxccl.Event")
            self._kept.append(value)
            return value._handle
        return _field(name, CALL_OPTIONS[name], value)

    def _add(self, option, value):
        key = _gen.ncclConfigExtKey_t(_gen.OXCCL_VENDOR_ID, option)
        option = _gen.ncclConfigExt(self._config.ext, key, value)
        # The list points to them, and to the texts.
        self._kept += [option, value]
        self._config.ext = ctypes.pointer(option)


def _call(options, plain, configured, *arguments):
    """Calls a collective, with options where there are any."""
    if options is None:
        return plain(*arguments)
    if not isinstance(options, CallOptions):
        raise TypeError(f"options is {options!r}; expected oxccl.CallOptions")
    return configured(*arguments, ctypes.byref(options._config))


# As users see it.
CallOptions.__module__ = "oxccl"
