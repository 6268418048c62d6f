"""What communicators make of arrays: registrations, windows and operations."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Union

import numpy as np

from . import _gen
from ._arrays import AnyArray, place
from ._gen import ncclResult_t
from ._library import Error, _c, _check, _int

if TYPE_CHECKING:
    from typing_extensions import Self

    from . import Comm, Stream

#: The factor of a multiplied_sum().
Factor = Union[float, np.generic, AnyArray]


class _Made:
    """What a communicator made of something, which this keeps. End it by close(), or `with`, before the
    communicator ends; a second close() does nothing."""

    def __init__(self, comm, kept, handle):
        self._comm, self._kept, self._handle = comm, kept, handle

    def __repr__(self) -> str:
        return f"<oxccl.{type(self).__name__}{', closed' if self._handle is None else ''}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _end(self, end):
        handle, self._handle, self._kept = self._handle, None, None
        # With the communicator it has ended, too.
        if handle is not None and self._comm._place:
            _check(end(self._comm._handle, handle))


class Registration(_Made):
    """An array that a communicator was told of."""

    def __init__(self, comm: Comm, array: AnyArray) -> None:
        at, handle = place("array", array), ctypes.c_void_p()
        _check(_c.ncclCommRegister(comm._handle, at.address, at.bytes, ctypes.byref(handle)))
        super().__init__(comm, array, handle)

    def close(self) -> None:
        """Ends the registration."""
        self._end(_c.ncclCommDeregister)


class Window(_Made):
    """Memory of each rank, into which the other ranks of its host write."""

    def __init__(self, comm: Comm, array: AnyArray) -> None:
        at, handle = place("array", array, writable=True), ctypes.c_void_p()
        flags = _gen.NCCL_WIN_DEFAULT
        _check(_c.ncclCommWindowRegister(comm._handle, at.address, at.bytes, ctypes.byref(handle), flags))
        super().__init__(comm, array, handle)

    def put(self, data: AnyArray, to: int, at: int = 0, signal: int = 0, stream: Stream | None = None) -> None:
        """Writes elements into a rank's window, from its element `at` on, then counts up a signal (0 to
        15) of that rank."""
        d = place("data", data)
        offset = at * (d.bytes // d.count if d.count else 1)
        if not 0 <= offset < 2**64:
            raise ValueError(f"at is {at}; expected an element of the window, 0 or more")
        if self._handle is None:
            raise Error(ncclResult_t.ncclInvalidUsage, "the window was closed")
        self._comm._run(stream, lambda on: _c.ncclPutSignal(
            d.address, d.count, d.kind, _int("to", to), self._handle, offset, _int("signal", signal), 0, 0,
            self._comm._handle, on), data)

    def close(self) -> None:
        """Ends the window, into which no rank may still write."""
        self._end(_c.ncclCommWindowDeregister)


class MultipliedSum(_Made):
    """A sum in which this rank's elements are first multiplied; pass it as an operation."""

    def __init__(self, comm: Comm, factor: Factor) -> None:
        at, op = place("factor", factor if hasattr(factor, "numel") else np.asarray(factor)), ctypes.c_int()
        at.length("factor", 1)
        now = _gen.ncclScalarResidence_t.ncclScalarHostImmediate
        _check(_c.ncclRedOpCreatePreMulSum(ctypes.byref(op), at.address, at.kind, now, comm._handle))
        super().__init__(comm, None, op)

    @property
    def _as_parameter_(self):
        return self._handle

    def close(self) -> None:
        """Ends the operation; calls made before keep it."""
        self._end(lambda comm, op: _c.ncclRedOpDestroy(op, comm))


# As users see them.
for _class in (Registration, Window, MultipliedSum):
    _class.__module__ = "oxccl"
