"""Collective communication between processes and hosts, on NumPy arrays.

Calls wait until they are complete, unless a stream is passed: then they return at once, are complete
when the stream's synchronize() returns, and the stream keeps the arrays until then. Waiting lets other
threads run.

The library is the one that the environment variable OXCCL_LIBRARY names, else the one beside this
package's files, else the system's liboxccl.so.2.
"""

import ctypes
import os
import weakref
from pathlib import Path

import numpy as np

from . import _gen
from ._gen import ncclDataType_t, ncclRedOp_t, ncclResult_t

__all__ = [
    "Comm", "Error", "Event", "Graph", "Group", "Stream", "UniqueId", "capture", "empty", "version",
    "SUM", "PROD", "MAX", "MIN", "AVG", "NO_COLOR",
]

SUM, PROD, MAX, MIN, AVG = (ncclRedOp_t(i) for i in range(ncclRedOp_t.ncclNumOps))
NO_COLOR = _gen.NCCL_SPLIT_NOCOLOR


def _load():
    beside = Path(__file__).with_name("liboxccl.so.2")
    path = os.environ.get("OXCCL_LIBRARY") or (str(beside) if beside.exists() else "liboxccl.so.2")
    library = ctypes.CDLL(path)
    for name, (result, parameters) in _gen.PROTOTYPES.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, parameters
    return library


_c = _load()


class Error(RuntimeError):
    """What failed: `code`, the `rank` that reports, the `peer` at fault (-1: unknown), and the text."""

    def __init__(self, code, text, rank=-1, peer=-1):
        super().__init__(text)
        self.code, self.rank, self.peer = ncclResult_t(code), rank, peer


def _last_error(fill):
    info = _gen.oxcclErrorInfo_t(size=ctypes.sizeof(_gen.oxcclErrorInfo_t))
    fill(ctypes.byref(info))
    return Error(info.code, info.text.decode(errors="replace"), info.rank, info.peer)


def _check(code):
    """Raises what a call failed with; tells whether it is complete."""
    if code == ncclResult_t.ncclSuccess:
        return True
    if code == ncclResult_t.ncclInProgress:
        return False
    raise _last_error(_c.oxcclLastError)


def version():
    """The versions of NCCL's interface and of OxCCL, as numbers."""
    nccl, oxccl = ctypes.c_int(), ctypes.c_int()
    _check(_c.ncclGetVersion(ctypes.byref(nccl)))
    _check(_c.oxcclGetVersion(ctypes.byref(oxccl)))
    return nccl.value, oxccl.value


_TYPES = {
    np.dtype(name): ncclDataType_t["nccl" + name.capitalize()]
    for name in ("int8", "uint8", "int32", "uint32", "int64", "uint64", "float16", "float32", "float64")
}


def _type(name, array):
    try:
        return _TYPES[array.dtype]
    except KeyError:
        known = ", ".join(str(t) for t in _TYPES)
        raise TypeError(f"{name} has elements of type {array.dtype}; expected one of {known}") from None


def _array(name, array, like=None, writable=False):
    if not isinstance(array, np.ndarray):
        raise TypeError(f"{name} is a {type(array).__name__}; expected a NumPy array")
    if not (array.flags.c_contiguous or array.flags.f_contiguous):
        raise ValueError(f"{name} is not contiguous; pass a copy")
    if writable and not array.flags.writeable:
        raise ValueError(f"{name} is read-only")
    if like is not None and like.dtype != array.dtype:
        raise TypeError(f"{name} has elements of type {array.dtype}; expected {like.dtype}")
    return array


def _length(name, array, expected):
    if array.size != expected:
        raise ValueError(f"{name} has {array.size} elements; expected {expected}")


def empty(shape, dtype=np.float32):
    """An array, all zero, in memory that other ranks of this host read and write in place."""
    dtype, place = np.dtype(dtype), ctypes.c_void_p()
    shape = (shape,) if isinstance(shape, int) else tuple(shape)
    count = int(np.prod(shape, dtype=object))
    if count < 0:
        raise ValueError(f"shape is {shape}; expected lengths of 0 or more")
    _check(_c.oxcclMemAlloc(ctypes.byref(place), count * dtype.itemsize))
    memory = (ctypes.c_char * (count * dtype.itemsize)).from_address(place.value or 0)
    # Arrays and views of it keep `memory`.
    weakref.finalize(memory, _c.oxcclMemFree, place).atexit = False
    return np.frombuffer(memory, dtype).reshape(shape)


class _Owner:
    """A handle that is ended with its owner."""

    def __init__(self, create, end):
        place = ctypes.c_void_p()
        _check(create(ctypes.byref(place)))
        self._handle = place
        # Not at the end of the process: the library may be gone then.
        weakref.finalize(self, end, place).atexit = False


class Event(_Owner):
    """A mark in a stream."""

    def __init__(self):
        super().__init__(_c.oxcclEventCreate, _c.oxcclEventDestroy)

    def record(self, stream):
        """Marks the present end of a stream."""
        _check(_c.oxcclEventRecord(self._handle, stream._handle))

    def done(self):
        """Whether the stream has come to it."""
        return _check(_c.oxcclEventQuery(self._handle))

    def since(self, start):
        """Seconds since another event; both must have come up."""
        ms = ctypes.c_float()
        _check(_c.oxcclEventElapsedTime(ctypes.byref(ms), start._handle, self._handle))
        return ms.value / 1000


# Streams that were dropped while they had work, and the arrays of that.
_busy = []


def _end_stream(handle, kept):
    if kept and _c.oxcclStreamQuery(handle) == ncclResult_t.ncclInProgress:
        _busy.append((handle, kept))
    else:
        _c.oxcclStreamDestroy(handle)


class Stream(_Owner):
    """Work in order. It keeps the arrays of its calls until it has been synchronized, and also when it is
    dropped before."""

    def __init__(self):
        for _ in range(len(_busy)):
            _end_stream(*_busy.pop(0))
        # Always the same list, which outlives the stream.
        self._kept = kept = []
        super().__init__(_c.oxcclStreamCreate, lambda handle: _end_stream(handle, kept))

    def synchronize(self):
        """Waits until everything is done; raises what the work failed with."""
        # Another thread may add to them meanwhile.
        done = len(self._kept)
        try:
            _check(_c.oxcclStreamSynchronize(self._handle, -1))
        finally:
            del self._kept[:done]

    def done(self):
        """Whether everything is done."""
        return _check(_c.oxcclStreamQuery(self._handle))

    def wait(self, event):
        """Makes what the stream does from now on wait for an event."""
        _check(_c.oxcclStreamWaitEvent(self._handle, event._handle))


class Graph(_Owner):
    """What a stream was asked to do, ready to be done again; it keeps the arrays."""

    def __init__(self, captured, kept):
        self._kept = kept
        super().__init__(
            lambda place: _c.oxcclGraphInstantiate(place, captured),
            lambda handle: _c.oxcclGraphDestroy(None, handle),
        )

    def launch(self, stream):
        """Does it once, in the order of the stream."""
        _check(_c.oxcclGraphLaunch(self._handle, stream._handle))
        stream._kept.append(self)


def capture(stream, function):
    """Puts what a function calls on the stream into a graph, instead of having it done."""
    _check(_c.oxcclStreamBeginCapture(stream._handle, _gen.oxcclCaptureMode_t.oxcclCaptureRelaxed))
    before = len(stream._kept)
    captured = ctypes.c_void_p()
    try:
        function()
    finally:
        kept = stream._kept[before:]
        del stream._kept[before:]
        code = _c.oxcclStreamEndCapture(stream._handle, ctypes.byref(captured))
        # Of the function, when both failed.
        graph = Graph(captured, kept) if code == ncclResult_t.ncclSuccess else None
        _c.oxcclGraphDestroy(captured, None)
    _check(code)
    return graph


class Group:
    """`with Group():` launches together what is called in it with a stream; sends and receives then
    need no order."""

    def __enter__(self):
        _check(_c.ncclGroupStart())
        return self

    def __exit__(self, kind, *_):
        code = _c.ncclGroupEnd()
        if kind is None:
            _check(code)


class UniqueId:
    """Names a communicator that is to be made; give its bytes to all ranks, and keep them secret."""

    def __init__(self, data=None):
        self._raw = _gen.ncclUniqueId()
        if data is None:
            _check(_c.ncclGetUniqueId(ctypes.byref(self._raw)))
        elif len(data) != ctypes.sizeof(self._raw):
            raise ValueError(f"an id has {ctypes.sizeof(self._raw)} bytes; got {len(data)}")
        else:
            ctypes.memmove(ctypes.byref(self._raw), bytes(data), len(data))

    def __bytes__(self):
        return ctypes.string_at(ctypes.byref(self._raw), ctypes.sizeof(self._raw))


class Comm:
    """This rank's part of a communicator: of all processes that oxccl run, mpirun, srun or torchrun
    started, or of `size` ranks that have the same id. Waits until all have come.

    End it by close(), which waits for the other ranks, or by abort(); `with` closes it, and aborts
    while an exception is on its way, so that the others are told. Collection does neither: to end a
    communicator is communication.
    """

    def __init__(self, size=None, unique_id=None, rank=None):
        if size is None:
            self._create(lambda place: _c.oxcclCommInitEnv(place, None))
        else:
            self._create(lambda place: _c.ncclCommInitRank(place, size, unique_id._raw, rank))

    def _create(self, begin):
        self._handle = ctypes.c_void_p()
        _check(begin(ctypes.byref(self._handle)))
        if self._handle:
            rank, size = ctypes.c_int(), ctypes.c_int()
            _check(_c.ncclCommUserRank(self._handle, ctypes.byref(rank)))
            _check(_c.ncclCommCount(self._handle, ctypes.byref(size)))
            self.rank, self.size = rank.value, size.value
            self._stream = Stream()

    @classmethod
    def _from(cls, begin):
        comm = cls.__new__(cls)
        comm._create(begin)
        return comm if comm._handle else None

    def split(self, color, key=0):
        """Communicators of the ranks with equal color, ordered by key; None for NO_COLOR."""
        return Comm._from(lambda place: _c.ncclCommSplit(self._handle, color, key, place, None))

    def shrink(self, exclude):
        """One without some ranks, which need not be alive; all others call. Ends this one's operations."""
        ranks = (ctypes.c_int * len(exclude))(*exclude)
        flags = _gen.NCCL_SHRINK_ABORT
        return Comm._from(
            lambda place: _c.ncclCommShrink(self._handle, ranks, len(exclude), place, None, flags)
        )

    def error(self):
        """Why the communicator failed; None where it did not."""
        found = _last_error(lambda info: _check(_c.oxcclCommLastError(self._handle, info)))
        return None if found.code == ncclResult_t.ncclSuccess else found

    def set_timeout(self, seconds):
        """Bounds how long an operation may wait for a rank without getting anywhere; None is no bound."""
        bound = -1 if seconds is None else int(seconds * 1e9)
        _check(_c.oxcclCommSetTimeout(self._handle, bound))

    def abort(self):
        """Ends the communicator at once, also for other threads; the other ranks are told."""
        handle, self._handle = self._handle, ctypes.c_void_p()
        _check(_c.ncclCommAbort(handle))

    def close(self):
        """Completes all operations and ends the communicator; waits for the other ranks."""
        handle, self._handle = self._handle, ctypes.c_void_p()
        _check(_c.ncclCommDestroy(handle))

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        self.close() if kind is None else self.abort()

    def premulsum(self, factor):
        """An operation: a sum in which this rank's elements are first multiplied by a NumPy scalar of
        their type."""
        op, scalar = ctypes.c_int(), np.asarray(factor)
        now = _gen.ncclScalarResidence_t.ncclScalarHostImmediate
        place = ctypes.cast(ctypes.byref(op), ctypes.POINTER(ctypes.c_int))
        kind = _type("factor", scalar)
        _check(_c.ncclRedOpCreatePreMulSum(place, scalar.ctypes.data, kind, now, self._handle))
        return op.value

    def _run(self, stream, call, *arrays):
        on = stream or self._stream
        _check(call(on._handle))
        on._kept.extend(arrays)
        if stream is None:
            on.synchronize()
        return arrays[-1]

    def all_reduce(self, send, recv=None, op=SUM, stream=None):
        """The reduction of all ranks' `send`, in every rank's `recv` (in `send` where there is none)."""
        send = _array("send", send)
        recv = _array("recv", send if recv is None else recv, send, True)
        _length("recv", recv, send.size)
        kind = _type("send", send)
        return self._run(stream, lambda on: _c.ncclAllReduce(
            send.ctypes.data, recv.ctypes.data, send.size, kind, op, self._handle, on), send, recv)

    def broadcast(self, data, root=0, stream=None):
        """The root's elements, on every rank."""
        data = _array("data", data, writable=True)
        kind = _type("data", data)
        return self._run(stream, lambda on: _c.ncclBcast(
            data.ctypes.data, data.size, kind, root, self._handle, on), data)

    def reduce(self, send, recv, root=0, op=SUM, stream=None):
        """The reduction of all ranks' `send` in the root's `recv`, which is ignored elsewhere."""
        send, recv = _array("send", send), _array("recv", recv, send, True)
        if self.rank == root:
            _length("recv", recv, send.size)
        kind = _type("send", send)
        return self._run(stream, lambda on: _c.ncclReduce(
            send.ctypes.data, recv.ctypes.data, send.size, kind, op, root, self._handle, on), send, recv)

    def all_gather(self, send, recv, stream=None):
        """Every rank's elements, one behind the other, on every rank."""
        send, recv = _array("send", send), _array("recv", recv, send, True)
        _length("recv", recv, send.size * self.size)
        kind = _type("send", send)
        return self._run(stream, lambda on: _c.ncclAllGather(
            send.ctypes.data, recv.ctypes.data, send.size, kind, self._handle, on), send, recv)

    def reduce_scatter(self, send, recv, op=SUM, stream=None):
        """Block r of the reduction of all ranks' `send`, in the `recv` of rank r."""
        send, recv = _array("send", send), _array("recv", recv, send, True)
        _length("send", send, recv.size * self.size)
        kind = _type("send", send)
        return self._run(stream, lambda on: _c.ncclReduceScatter(
            send.ctypes.data, recv.ctypes.data, recv.size, kind, op, self._handle, on), send, recv)

    def all_to_all(self, send, recv, stream=None):
        """Block r of `send` becomes the block of this rank in the `recv` of rank r."""
        send, recv = _array("send", send), _array("recv", recv, send, True)
        count = send.size // self.size
        _length("send", send, count * self.size)
        _length("recv", recv, send.size)
        kind = _type("send", send)
        return self._run(stream, lambda on: _c.ncclAlltoAll(
            send.ctypes.data, recv.ctypes.data, count, kind, self._handle, on), send, recv)

    def gather(self, send, recv, root=0, stream=None):
        """Every rank's elements, one behind the other, in the root's `recv`, which is ignored elsewhere."""
        send, recv = _array("send", send), _array("recv", recv, send, True)
        if self.rank == root:
            _length("recv", recv, send.size * self.size)
        kind = _type("send", send)
        return self._run(stream, lambda on: _c.ncclGather(
            send.ctypes.data, recv.ctypes.data, send.size, kind, root, self._handle, on), send, recv)

    def scatter(self, send, recv, root=0, stream=None):
        """Block r of the root's `send`, which is ignored elsewhere, in the `recv` of rank r."""
        send, recv = _array("send", send), _array("recv", recv, send, True)
        if self.rank == root:
            _length("send", send, recv.size * self.size)
        kind = _type("send", send)
        return self._run(stream, lambda on: _c.ncclScatter(
            send.ctypes.data, recv.ctypes.data, recv.size, kind, root, self._handle, on), send, recv)

    def send(self, data, to, stream=None):
        """To a rank, which receives as many elements."""
        data = _array("data", data)
        kind = _type("data", data)
        self._run(stream, lambda on: _c.ncclSend(
            data.ctypes.data, data.size, kind, to, self._handle, on), data)

    def recv(self, data, source, stream=None):
        """From a rank, which sends as many elements."""
        data = _array("data", data, writable=True)
        kind = _type("data", data)
        return self._run(stream, lambda on: _c.ncclRecv(
            data.ctypes.data, data.size, kind, source, self._handle, on), data)
