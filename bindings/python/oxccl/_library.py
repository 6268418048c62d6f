"""The loaded library, and the errors of its calls."""

from __future__ import annotations

import ctypes
import operator
import os
from pathlib import Path

from . import _gen
from ._gen import ncclResult_t


def _load():
    beside, named = Path(__file__).with_name("liboxccl.so.2"), os.environ.get("OXCCL_LIBRARY")
    if named:
        path, where = named, f"OXCCL_LIBRARY names {named}"
    elif beside.exists():
        path, where = str(beside), f"OXCCL_LIBRARY is not set, and {beside} is there"
    else:
        path = "liboxccl.so.2"
        where = (f"OXCCL_LIBRARY is not set, {beside} is not there, and the system (LD_LIBRARY_PATH, ldconfig) "
                 f"has no {path} that loads")
    try:
        library = ctypes.CDLL(path)
    except OSError as error:
        raise ImportError(
            f"the library of oxccl cannot be loaded: {error}; {where}. Set OXCCL_LIBRARY to the path of liboxccl.so.2, "
            "as `cargo xtask install` puts it into PREFIX/lib, or install the wheel, which has it"
        ) from None
    for name, (result, parameters) in _gen.PROTOTYPES.items():
        function = getattr(library, name, None)
        if function is None:
            raise ImportError(
                f"{path} has no {name}: it is no library of OxCCL, or one of another version than this package, "
                f"{_gen.VERSION}. Set OXCCL_LIBRARY to the path of liboxccl.so.2"
            )
        function.restype, function.argtypes = result, parameters
    return library


_c = _load()


class Error(RuntimeError):
    """What failed: `code`, the `rank` that reports, the `peer` at fault (-1: unknown), and the text."""

    def __init__(self, code, text, rank=-1, peer=-1):
        super().__init__(text)
        self.code, self.rank, self.peer = ncclResult_t(code), rank, peer

    def __reduce__(self):
        # As for pools of processes, which hand errors over.
        return Error, (int(self.code), str(self), self.rank, self.peer)


# Where users find it.
Error.__module__ = "oxccl"


def _last_error(fill):
    info = _gen.oxcclErrorInfo_t(size=ctypes.sizeof(_gen.oxcclErrorInfo_t))
    fill(ctypes.byref(info))
    return Error(info.code, info.text.decode(errors="replace"), info.rank, info.peer)


# Enumerators of Python take longer to look at than a call takes.
_SUCCESS, _IN_PROGRESS = int(ncclResult_t.ncclSuccess), int(ncclResult_t.ncclInProgress)


def _check(code):
    """Raises what a call failed with; tells whether it is complete."""
    if code == _SUCCESS:
        return True
    if code == _IN_PROGRESS:
        return False
    raise _last_error(_c.oxcclLastError)


def _int(name, value):
    """A number as C takes it; ctypes would silently cut off what is beyond 32 bits."""
    try:
        value = operator.index(value)
    except TypeError:
        raise TypeError(f"{name} is {value!r}; expected an integer of 32 bits") from None
    if not -(2**31) < value < 2**31:
        raise ValueError(f"{name} is {value}; expected an integer of 32 bits")
    return value


def _number(name, value):
    """A number of any size."""
    try:
        return operator.index(value)
    except TypeError:
        raise TypeError(f"{name} is {value!r}; expected an integer") from None


def _nanoseconds(seconds):
    """A time as C takes it, where None is no bound."""
    if seconds is None:
        return -1
    if not isinstance(seconds, (int, float)) or not seconds >= 0:
        raise ValueError(f"the limit is {seconds!r}; expected seconds, 0 or more, or None for no limit")
    return int(min(seconds * 1e9, 2**63 - 1))
