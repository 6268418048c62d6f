"""Collective communication between processes and hosts, on NumPy arrays and PyTorch tensors of the CPU.

Calls wait until they are complete, unless a stream is passed: then they return at once, are complete
when the stream's synchronize() returns, and the stream keeps the arrays until then. Waiting lets other
threads run.

The library is the one that the environment variable OXCCL_LIBRARY names, else the one beside this
package's files, else the system's liboxccl.so.2.
"""

from __future__ import annotations

import ctypes
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, wait
from contextlib import contextmanager
from typing import TYPE_CHECKING, Union

import numpy as np

from . import _dropped, _ending, _gen
from ._arrays import NO_PARTS, AnyArray, Array, Counts, Parts, Place, place
from ._gen import ncclRedOp_t, ncclResult_t
from ._library import _SUCCESS, Error, _c, _check, _int, _last_error, _nanoseconds, _number
from ._made import Factor, MultipliedSum, Registration, Window
from ._options import CALL_OPTIONS, OPTIONS, CallOptions, Option, _call, _configure, _text

__all__ = [
    "AnyArray", "CALL_OPTIONS", "CallOptions", "Comm", "Error", "Event", "Graph", "Group", "MultipliedSum", "OPTIONS",
    "Registration", "Stream", "UniqueId", "Window", "__version__", "capture", "device_count", "empty", "estimate",
    "on_device", "set_encryption", "set_log_level", "set_tag", "version",
    "SUM", "PROD", "MAX", "MIN", "AVG", "NO_COLOR",
]

if TYPE_CHECKING:
    from numpy.typing import DTypeLike
    from typing_extensions import Self

__version__ = _gen.VERSION

#: The reductions. MAX and MIN ignore NaN as long as a rank has a number there.
SUM, PROD, MAX, MIN, AVG = (ncclRedOp_t(i) for i in range(ncclRedOp_t.ncclNumOps))
NO_COLOR = _gen.NCCL_SPLIT_NOCOLOR

#: A reduction: SUM and its like, their names, or what multiplied_sum() returns.
Op = Union[ncclRedOp_t, str, MultipliedSum]

_NAMED = {"sum": SUM, "prod": PROD, "max": MAX, "min": MIN, "avg": AVG}


def _operation(op):
    """An operation as C takes it."""
    if isinstance(op, MultipliedSum) and op._handle is None:
        raise Error(ncclResult_t.ncclInvalidUsage, "the operation was closed")
    if isinstance(op, (ncclRedOp_t, MultipliedSum)):
        return op
    named = _NAMED.get(op.lower()) if isinstance(op, str) else None
    if named is None:
        names = ", ".join(f'"{name}"' for name in _NAMED)
        raise ValueError(f"op is {op!r}; expected {names}, or what multiplied_sum() returns")
    return named


def version() -> tuple[int, int]:
    """The versions of NCCL's interface and of OxCCL, as numbers."""
    nccl, oxccl = ctypes.c_int(), ctypes.c_int()
    _check(_c.ncclGetVersion(ctypes.byref(nccl)))
    _check(_c.oxcclGetVersion(ctypes.byref(oxccl)))
    return nccl.value, oxccl.value


def set_log_level(level: int) -> None:
    """Sets what is logged: 0 nothing, 1 the version, 2 warnings, 3 information, 5 everything."""
    _check(_c.oxcclSetLog(_int("level", level), _gen.oxcclLogFn_t(), None))


def set_encryption(key: str | bytes | None) -> None:
    """Encrypts the connections by which communicators are made from now on with a key of 16 bytes or more
    that all ranks have; None for none. Only ranks of one host can have encrypted connections."""
    modes, size = _gen.ncclEncryptionMode_t, ctypes.sizeof(_gen.ncclEncryptionConfig_t)
    config = _gen.ncclEncryptionConfig_t(size, _gen.NCCL_API_MAGIC, _gen.NCCL_VERSION_CODE)
    config.mode = modes.NCCL_ENCRYPTION_MODE_NONE if key is None else modes.NCCL_ENCRYPTION_MODE_PSK
    config.psk = None if key is None else _text("key", key)
    _check(_c.ncclSetEncryption(ctypes.byref(config)))


def set_tag(tag: int) -> None:
    """Sets the number by which later operations of this thread are known in `oxccl ras`, such as the
    number of a training step; 0 for none."""
    if not 0 <= _number("tag", tag) < 2**64:
        raise ValueError(f"tag is {tag}; expected an integer of 64 bits, 0 or more")
    _check(_c.oxcclTag(tag))


_HOST = int(_gen.oxcclDeviceKind_t.oxcclDeviceHost)


def _device():
    kind, index = ctypes.c_int(), ctypes.c_int()
    _check(_c.oxcclDeviceGet(ctypes.byref(kind), ctypes.byref(index)))
    return kind.value, index.value


def _on_host(make, waits=False):
    """Has something made on the host, whose memory arrays are, also where there are GPUs. Where it waits for
    other ranks, signals need not."""
    kind, index = _device()
    waits = waits and threading.current_thread() is threading.main_thread()
    if kind == _HOST and not waits:
        return make()
    made: Future = Future()

    def work():
        try:
            _check(_c.oxcclDeviceSet(_HOST, index if kind == _HOST else 0))
            made.set_result(make())
        except BaseException as error:
            made.set_exception(error)

    # In a thread of its own: devices belong to threads, and this one's GPU is that of others, as of PyTorch.
    # Nobody waits for it at the end of the process.
    threading.Thread(target=work, daemon=True).start()
    while not wait([made], _SLICE).done:
        # Python hears of signals between the slices.
        pass
    return made.result()


def device_count() -> int:
    """The number of devices of the host: its processors."""
    count = ctypes.c_int()
    _check(_c.oxcclDeviceCount(_HOST, ctypes.byref(count)))
    return count.value


@contextmanager
def on_device(index: int) -> Iterator[None]:
    """`with on_device(1):` makes communicators, streams and arrays for a device of the host; any index will do,
    so that a laptop can stand for a larger machine."""
    before = _device()
    _check(_c.oxcclDeviceSet(_HOST, _int("index", index)))
    try:
        yield
    finally:
        _check(_c.oxcclDeviceSet(*before))


def empty(shape: int | Sequence[int], dtype: DTypeLike = np.float32) -> np.ndarray:
    """An array, all zero, in memory that other ranks of this host read and write in place."""
    dtype, place = np.dtype(dtype), ctypes.c_void_p()
    shape = (shape,) if isinstance(shape, (int, np.integer)) else tuple(shape)
    count = int(np.prod(shape, dtype=object))
    if count < 0:
        raise ValueError(f"shape is {shape}; expected lengths of 0 or more")
    _on_host(lambda: _check(_c.oxcclMemAlloc(ctypes.byref(place), count * dtype.itemsize)))
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

    def __repr__(self) -> str:
        return f"<oxccl.{type(self).__name__} at {id(self):#x}>"


class Event(_Owner):
    """A mark in a stream."""

    def __init__(self) -> None:
        _on_host(lambda: super(Event, self).__init__(_c.oxcclEventCreate, _c.oxcclEventDestroy))

    def record(self, stream: Stream) -> None:
        """Marks the present end of a stream."""
        _check(_c.oxcclEventRecord(self._handle, stream._handle))

    def done(self) -> bool:
        """Whether the stream has come to it."""
        return _check(_c.oxcclEventQuery(self._handle))

    def since(self, start: Event) -> float:
        """Seconds since another event; both must have come up."""
        ms = ctypes.c_float()
        _check(_c.oxcclEventElapsedTime(ctypes.byref(ms), start._handle, self._handle))
        return ms.value / 1000


# Seconds that a thread waits at a time.
_SLICE = 0.1

class Stream(_Owner):
    """Work in order. It keeps the arrays of its calls until it has been synchronized, and also when it is
    dropped before."""

    def __init__(self) -> None:
        _dropped.forget_done()
        # Always the same list, which outlives the stream.
        self._kept = kept = []
        end = Event()
        drop = lambda handle: _dropped.drop(handle, end, kept)
        _on_host(lambda: super(Stream, self).__init__(_c.oxcclStreamCreate, drop))

    def synchronize(self, timeout: float | None = None) -> bool:
        """Waits until everything is done, at most so many seconds; tells whether it is, and raises what
        the work failed with."""
        # Another thread may add to them meanwhile.
        done, end = len(self._kept), None if timeout is None else time.monotonic() + timeout
        complete = False
        while not complete:
            # In slices: Python hears of signals between them.
            left = _SLICE if end is None else min(_SLICE, max(0, end - time.monotonic()))
            complete = _check(_c.oxcclStreamSynchronize(self._handle, int(left * 1e9)))
            if left == 0:
                break
        if complete:
            del self._kept[:done]
        return complete

    def done(self) -> bool:
        """Whether everything is done."""
        return _check(_c.oxcclStreamQuery(self._handle))

    def copy(self, to: AnyArray, source: AnyArray) -> None:
        """Copies an array to another of the same type and length, in the order of the stream."""
        s = place("source", source)
        t = place("to", to, s, True)
        t.length("to", s.count)
        _check(_c.oxcclMemcpyAsync(t.address, s.address, s.bytes, self._handle))
        self._kept += to, source

    def clear(self, array: AnyArray) -> None:
        """Makes all elements zero, in the order of the stream."""
        at = place("array", array, writable=True)
        _check(_c.oxcclMemsetAsync(at.address, 0, at.bytes, self._handle))
        self._kept.append(array)

    def wait(self, event: Event) -> None:
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

    def update(self, stream: Stream, function: Callable[[], object]) -> None:
        """Puts what a function calls on the stream in the place of what the graph does: the same calls in the
        same order, in which arrays, lengths and roots may differ. Launches under way keep theirs."""

        def use(captured, kept):
            _check(_c.oxcclGraphExecUpdate(self._handle, captured))
            # What is under way still needs the old ones.
            stream._kept.append(self._kept)
            self._kept = kept

        _captured(stream, function, use)

    def launch(self, stream: Stream) -> None:
        """Does it once, in the order of the stream."""
        _check(_c.oxcclGraphLaunch(self._handle, stream._handle))
        stream._kept.append((self, self._kept))


def _captured(stream, function, use):
    """Captures what a function calls; what is made of the graph, and the arrays of the calls."""
    _check(_c.oxcclStreamBeginCapture(stream._handle, _gen.oxcclCaptureMode_t.oxcclCaptureRelaxed))
    before, graph = len(stream._kept), ctypes.c_void_p()

    def end():
        kept = stream._kept[before:]
        del stream._kept[before:]
        return kept, _c.oxcclStreamEndCapture(stream._handle, ctypes.byref(graph))

    try:
        function()
    except BaseException:
        end()
        _c.oxcclGraphDestroy(graph, None)
        raise
    kept, code = end()
    _check(code)
    try:
        return use(graph, kept)
    finally:
        _c.oxcclGraphDestroy(graph, None)


def capture(stream: Stream, function: Callable[[], object]) -> Graph:
    """Puts what a function calls on the stream into a graph, instead of having it done."""
    return _captured(stream, function, Graph)


class _Groups(threading.local):
    open = 0


# Of each thread.
_groups = _Groups()


class Group:
    """`with Group():` launches together what is called in it with a stream; sends and receives then
    need no order. Calls without a stream fail in it, as nothing is complete before its end."""

    def __enter__(self) -> Self:
        _check(_c.ncclGroupStart())
        _groups.open += 1
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        _groups.open -= 1
        code = self._end()
        if kind is None:
            _check(code)

    def _end(self):
        return _c.ncclGroupEnd()


class _Simulation(Group):
    def _end(self):
        # As NCCL_SIM_INFO_INITIALIZER has it.
        size = ctypes.sizeof(_gen.ncclSimInfo_t)
        self.info = _gen.ncclSimInfo_t(size, 0x74685283, _gen.NCCL_VERSION_CODE, 0)
        return _c.ncclGroupSimulateEnd(ctypes.byref(self.info))


def estimate(function: Callable[[], object]) -> float:
    """The seconds that a group of what a function calls would take, by the library's model of the machine;
    nothing is launched."""
    with _Simulation() as group:
        function()
    return group.info.estimatedTime / 1e6


def _not_in_group(what, hint):
    if _groups.open:
        raise Error(ncclResult_t.ncclInvalidUsage, f"{what} in a Group; {hint}")


class UniqueId:
    """Names a communicator that is to be made; give its bytes to all ranks, and keep them secret."""

    def __init__(self, data: bytes | None = None) -> None:
        self._raw = _gen.ncclUniqueId()
        if data is None:
            _check(_c.ncclGetUniqueId(ctypes.byref(self._raw)))
        elif not isinstance(data, (bytes, bytearray, memoryview)):
            raise TypeError(f"data is {data!r}; expected the bytes of an id")
        elif len(data) != ctypes.sizeof(self._raw):
            raise ValueError(f"an id has {ctypes.sizeof(self._raw)} bytes; got {len(data)}")
        else:
            ctypes.memmove(ctypes.byref(self._raw), bytes(data), len(data))

    def __repr__(self) -> str:
        return "<oxccl.UniqueId>"

    def __bytes__(self) -> bytes:
        return ctypes.string_at(ctypes.byref(self._raw), ctypes.sizeof(self._raw))


def _raw_id(unique_id):
    """An id as C takes it; its bytes will do, too."""
    if isinstance(unique_id, (bytes, bytearray)):
        unique_id = UniqueId(unique_id)
    if not isinstance(unique_id, UniqueId):
        raise TypeError(f"unique_id is {unique_id!r}; expected an oxccl.UniqueId, or its bytes")
    return unique_id._raw


# The place of the handle of an ended communicator.
_ENDED = ctypes.c_void_p()


class Comm:
    """This rank's part of a communicator: of all processes that oxccl run, mpirun, srun or torchrun
    started, or of `size` ranks that have the same id. Waits until all have come.

    Options are OPTIONS, as commName="weights", and init_timeout, the seconds that the ranks wait for one that
    does not come; what nobody asks for is as NCCL has it, whatever communicator one is made of. It is on the
    host, also where there are GPUs.

    End it by close(), which waits for the other ranks, or by abort(); `with` closes it, and aborts
    while an exception is on its way, so that the others are told. Collection does neither: to end a
    communicator is communication. The end of the process closes what is open, waiting for no rank longer
    than 5 s, but not after an exception that nobody caught.
    """

    def __init__(self, size: int | None = None, unique_id: UniqueId | None = None, rank: int | None = None,
                 **options: Option) -> None:
        if size is None and (unique_id is not None or rank is not None):
            raise TypeError("a communicator with a unique_id or a rank needs the size, too; without any of them it is "
                            "that of all processes that a launcher started")
        if size is None:
            self._create(options, _c.oxcclCommInitEnv)
        elif unique_id is None or rank is None:
            raise TypeError(f"a communicator of {_int('size', size)} ranks needs the unique_id that they share, and this one's rank")
        else:
            self._create(options, lambda place, config: _c.ncclCommInitRankConfig(
                place, _int("size", size), _raw_id(unique_id), _int("rank", rank), config))

    def _create(self, options, begin):
        # The group's end would write to a place that is no more.
        _not_in_group("a communicator cannot be made", "make it before or after")
        options = dict(options)
        limit = options.pop("init_timeout", None)
        self._place, config = ctypes.c_void_p(), _configure(options)

        def make():
            # Of this thread, until it is taken back.
            _check(_c.oxcclSetInitTimeout(_nanoseconds(limit)))
            try:
                _check(begin(ctypes.byref(self._place), ctypes.byref(config)))
            finally:
                _c.oxcclSetInitTimeout(-1)

        _on_host(make, waits=True)
        if self._place:
            rank, size = ctypes.c_int(), ctypes.c_int()
            _check(_c.ncclCommUserRank(self._handle, ctypes.byref(rank)))
            _check(_c.ncclCommCount(self._handle, ctypes.byref(size)))
            self._rank, self._size = rank.value, size.value
            self._stream = Stream()
            _ending.opened(self._place)

    @property
    def rank(self) -> int:
        """This rank, from 0 on."""
        return self._rank

    @property
    def size(self) -> int:
        """The number of ranks."""
        return self._size

    @property
    def _handle(self):
        if not self._place:
            raise Error(ncclResult_t.ncclInvalidUsage, "the communicator was closed or aborted; make a new one")
        return self._place

    def __repr__(self) -> str:
        return f"<oxccl.Comm, rank {self.rank} of {self.size}{'' if self._place else ', closed'}>"

    @classmethod
    def _from(cls, options, begin):
        comm = cls.__new__(cls)
        comm._create(options, begin)
        return comm if comm._place else None

    def split(self, color: int, key: int = 0, **options: Option) -> Comm | None:
        """Communicators of the ranks with equal color, ordered by key; None for NO_COLOR."""
        return Comm._from(options, lambda place, config: _c.ncclCommSplit(
            self._handle, _int("color", color), _int("key", key), place, config))

    def shrink(self, exclude: Sequence[int], **options: Option) -> Comm:
        """One without some ranks, which need not be alive; all others call. Ends this one's operations."""
        ranks = (ctypes.c_int * len(exclude))(*(_int("a rank of exclude", rank) for rank in exclude))
        flags = _gen.NCCL_SHRINK_ABORT
        return Comm._from(options, lambda place, config: _c.ncclCommShrink(
            self._handle, ranks, len(exclude), place, config, flags))

    def growth_id(self) -> UniqueId:
        """An id for the ranks that join(); made on one rank, the root, which then grows with it."""
        made = UniqueId.__new__(UniqueId)
        made._raw = _gen.ncclUniqueId()
        _check(_c.ncclCommGetUniqueId(self._handle, ctypes.byref(made._raw)))
        return made

    def grow(self, size: int, unique_id: UniqueId | None = None, **options: Option) -> Comm:
        """One of `size` ranks, of which these keep their numbers; the root passes the growth_id()."""
        raw = None if unique_id is None else ctypes.byref(_raw_id(unique_id))
        return Comm._from(options, lambda place, config: _c.ncclCommGrow(
            self._handle, _int("size", size), raw, -1, place, config))

    @classmethod
    def join(cls, size: int, unique_id: UniqueId, rank: int, **options: Option) -> Comm:
        """A new rank's part of a communicator that others grow to `size` ranks."""
        raw = ctypes.byref(_raw_id(unique_id))
        return cls._from(options, lambda place, config: _c.ncclCommGrow(
            None, _int("size", size), raw, _int("rank", rank), place, config))

    def error(self) -> Error | None:
        """Why the communicator failed; None where it did not."""
        found = _last_error(lambda info: _check(_c.oxcclCommLastError(self._handle, info)))
        return None if found.code == ncclResult_t.ncclSuccess else found

    def set_timeout(self, seconds: float | None) -> None:
        """Bounds how long an operation may wait for a rank without getting anywhere; None is no bound."""
        _check(_c.oxcclCommSetTimeout(self._handle, _nanoseconds(seconds)))

    def abort(self) -> None:
        """Ends the communicator at once, also for other threads; the other ranks are told. Nothing if it is ended."""
        self._end(_c.ncclCommAbort)

    def close(self) -> None:
        """Completes all operations and ends the communicator; waits until the other ranks have what was sent to
        them. Nothing if it is ended."""
        self._end(_c.ncclCommDestroy)

    def _end(self, end):
        # In one step: another thread may end it, too.
        place, self._place = self._place, _ENDED
        if place:
            _ending.ended(place)
            _check(end(place))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.close() if kind is None else self.abort()

    def revoke(self) -> None:
        """Ends all operations; after it the communicator can only be split, shrunk, closed or aborted."""
        _check(_c.ncclCommRevoke(self._handle, _gen.NCCL_REVOKE_DEFAULT))

    def suspend(self) -> None:
        """Gives memory back to the system; until resume() it takes no operations, and none may be under way."""
        _check(_c.ncclCommSuspend(self._handle, _gen.NCCL_SUSPEND_MEM))

    def resume(self) -> None:
        """Lets a suspended communicator take operations again."""
        _check(_c.ncclCommResume(self._handle))

    def memory(self) -> int:
        """How many bytes of memory it takes in this process."""
        count, total = ctypes.c_uint64(), _gen.ncclCommMemStat_t.ncclStatGpuMemTotal
        _check(_c.ncclCommMemStats(self._handle, total, ctypes.byref(count)))
        return count.value

    def in_place(self) -> int:
        """How many collectives so far read or wrote the other ranks' buffers where they lie."""
        count = ctypes.c_uint64()
        _check(_c.oxcclCommInPlace(self._handle, ctypes.byref(count)))
        return count.value

    def by_copy_engines(self) -> int:
        """How many operations so far had their data moved by copy engines of a GPU."""
        count = ctypes.c_uint64()
        _check(_c.oxcclCommByCopyEngines(self._handle, ctypes.byref(count)))
        return count.value

    def device(self) -> int:
        """The index of the device that it works on."""
        index = ctypes.c_int()
        _check(_c.ncclCommCuDevice(self._handle, ctypes.byref(index)))
        return index.value

    def multiplied_sum(self, factor: Factor) -> MultipliedSum:
        """An operation: a sum in which this rank's elements are first multiplied by a NumPy scalar, or a
        tensor of one element, of their type."""
        return MultipliedSum(self, factor)

    def register(self, array: AnyArray) -> Registration:
        """Tells the communicator of an array that it will often be given."""
        return Registration(self, array)

    def window(self, array: AnyArray) -> Window:
        """Makes a window of an array. All ranks call, in the same order; each then holds all ranks' windows
        by this one. Memory from empty() is best; at most 64 at a time."""
        return Window(self, array)

    def _of_root(self, root, name, array, like, times=None, writable=False):
        """Where an array is that only the root needs, so many times as long as `like`: the others may pass None."""
        if array is not None:
            return place(name, array, like, writable)
        if self.rank != root:
            return Place(None, 0, 0, like.kind, 0)
        needs = "all ranks' parts" if times is None else f"{times * like.count} elements"
        raise TypeError(f"{name} is None; this rank is the root, and needs an array of {needs}")

    def _run(self, stream, call, *arrays):
        if stream is None:
            _not_in_group("a call cannot wait", "name a stream, and wait for that")
        elif not isinstance(stream, Stream):
            raise TypeError(f"stream is {stream!r}; expected an oxccl.Stream")
        on = stream or self._stream
        _check(call(on._handle))
        on._kept.extend(arrays)
        if stream is None:
            on.synchronize()
        return arrays[-1] if arrays else None

    def all_reduce(self, send: Array, recv: Array | None = None, op: Op = SUM, stream: Stream | None = None,
                   options: CallOptions | None = None) -> Array:
        """The reduction of all ranks' `send`, in every rank's `recv` (in `send` where there is none). MAX and MIN
        ignore NaN as long as a rank has a number there."""
        s = r = place("send", send, writable=recv is None)
        if recv is not None:
            r = place("recv", recv, s, True)
            r.length("recv", s.count)
        return self._run(stream, lambda on: _call(
            options, _c.ncclAllReduce, _c.ncclAllReduceConfig,
            s.address, r.address, s.count, s.kind, _operation(op), self._handle, on), send, r.array)

    def broadcast(self, data: Array, root: int = 0, stream: Stream | None = None,
                  options: CallOptions | None = None) -> Array:
        """The root's elements, on every rank."""
        d = place("data", data, writable=True)
        return self._run(stream, lambda on: _call(
            options, _c.ncclBroadcast, _c.ncclBroadcastConfig,
            d.address, d.address, d.count, d.kind, _int("root", root), self._handle, on), data)

    def reduce(self, send: AnyArray, recv: Array | None = None, root: int = 0, op: Op = SUM,
               stream: Stream | None = None, options: CallOptions | None = None) -> Array | None:
        """The reduction of all ranks' `send` in the root's `recv`, which is ignored elsewhere."""
        s = place("send", send)
        r = self._of_root(root, "recv", recv, s, 1, writable=True)
        if self.rank == root:
            r.length("recv", s.count)
        return self._run(stream, lambda on: _call(
            options, _c.ncclReduce, _c.ncclReduceConfig,
            s.address, r.address, s.count, s.kind, _operation(op), _int("root", root), self._handle, on), send, recv)

    def all_gather(self, send: AnyArray, recv: Array, stream: Stream | None = None,
                   options: CallOptions | None = None) -> Array:
        """Every rank's elements, one behind the other, on every rank."""
        s = place("send", send)
        r = place("recv", recv, s, True)
        r.length("recv", s.count * self.size)
        return self._run(stream, lambda on: _call(
            options, _c.ncclAllGather, _c.ncclAllGatherConfig,
            s.address, r.address, s.count, s.kind, self._handle, on), send, recv)

    def reduce_scatter(self, send: AnyArray, recv: Array, op: Op = SUM, stream: Stream | None = None,
                       options: CallOptions | None = None) -> Array:
        """Block r of the reduction of all ranks' `send`, in the `recv` of rank r."""
        s = place("send", send)
        r = place("recv", recv, s, True)
        s.length("send", r.count * self.size)
        return self._run(stream, lambda on: _call(
            options, _c.ncclReduceScatter, _c.ncclReduceScatterConfig,
            s.address, r.address, r.count, s.kind, _operation(op), self._handle, on), send, recv)

    def all_to_all(self, send: AnyArray, recv: Array, stream: Stream | None = None,
                   options: CallOptions | None = None) -> Array:
        """Block r of `send` becomes the block of this rank in the `recv` of rank r."""
        s = place("send", send)
        r = place("recv", recv, s, True)
        count = s.count // self.size
        s.length("send", count * self.size)
        r.length("recv", s.count)
        return self._run(stream, lambda on: _call(
            options, _c.ncclAlltoAll, _c.ncclAlltoAllConfig,
            s.address, r.address, count, s.kind, self._handle, on), send, recv)

    def gather(self, send: AnyArray, recv: Array | None = None, root: int = 0, stream: Stream | None = None,
               options: CallOptions | None = None) -> Array | None:
        """Every rank's elements, one behind the other, in the root's `recv`, which is ignored elsewhere."""
        s = place("send", send)
        r = self._of_root(root, "recv", recv, s, self.size, writable=True)
        if self.rank == root:
            r.length("recv", s.count * self.size)
        return self._run(stream, lambda on: _call(
            options, _c.ncclGather, _c.ncclGatherConfig,
            s.address, r.address, s.count, s.kind, _int("root", root), self._handle, on), send, recv)

    def scatter(self, send: AnyArray | None, recv: Array, root: int = 0, stream: Stream | None = None,
                options: CallOptions | None = None) -> Array:
        """Block r of the root's `send`, which is ignored elsewhere, in the `recv` of rank r."""
        r = place("recv", recv, writable=True)
        s = self._of_root(root, "send", send, r, self.size)
        if self.rank == root:
            s.length("send", r.count * self.size)
        return self._run(stream, lambda on: _call(
            options, _c.ncclScatter, _c.ncclScatterConfig,
            s.address, r.address, r.count, s.kind, _int("root", root), self._handle, on), send, recv)

    def send(self, data: AnyArray, to: int, stream: Stream | None = None) -> None:
        """To a rank, which receives as many elements. Calls of one communicator run one behind the other, also
        those of several threads, and a large send waits for its receive: ranks that send to each other, or in a
        circle, use send_recv() or a Group, else they wait for ever."""
        d = place("data", data)
        self._run(stream, lambda on: _c.ncclSend(
            d.address, d.count, d.kind, _int("to", to), self._handle, on), data)

    def recv(self, data: Array, source: int, stream: Stream | None = None) -> Array:
        """From a rank, which sends as many elements. Where that rank receives from this one before it sends, use
        send_recv() or a Group: see send()."""
        d = place("data", data, writable=True)
        return self._run(stream, lambda on: _c.ncclRecv(
            d.address, d.count, d.kind, _int("source", source), self._handle, on), data)

    def send_recv(self, send: AnyArray, to: int, recv: Array, source: int, stream: Stream | None = None) -> Array:
        """Sends to a rank and receives from a rank, which may be another, both at once; the arrays must not
        overlap."""
        s, r = place("send", send), place("recv", recv, writable=True)

        def both(on):
            with Group():
                _check(_c.ncclSend(s.address, s.count, s.kind, _int("to", to), self._handle, on))
                _check(_c.ncclRecv(r.address, r.count, r.kind, _int("source", source), self._handle, on))
            return _SUCCESS

        return self._run(stream, both, send, recv)

    # With a length per rank: part r has counts[r] elements and begins at element displs[r]; without
    # displs the parts lie one behind the other.

    def all_gatherv(self, send: AnyArray, recv: Array, counts: Counts, displs: Counts | None = None,
                    stream: Stream | None = None) -> Array:
        """The `send` of rank r, of counts[r] elements, as part r of every rank's `recv`. Every rank sends
        its elements directly to every other one."""
        s = place("send", send)
        r = place("recv", recv, s, True)
        parts = Parts("recv", r, self.size, counts, displs)
        return self._run(stream, lambda on: _c.oxcclAllGatherv(
            s.address, s.count, r.address, parts.counts, parts.displs, s.kind, self._handle, on), send, recv)

    def reduce_scatterv(self, send: AnyArray, recv: Array, counts: Counts, op: Op = SUM,
                        stream: Stream | None = None) -> Array:
        """Block r of the reduction of all ranks' `send`, of counts[r] elements, in the `recv` of rank r. A
        reduce per block: with equal counts reduce_scatter() is faster."""
        s = place("send", send)
        r = place("recv", recv, s, True)
        parts = Parts("send", s, self.size, counts)
        s.length("send", sum(parts.counts))
        r.length("recv", parts.counts[self.rank])
        return self._run(stream, lambda on: _c.oxcclReduceScatterv(
            s.address, r.address, parts.counts, s.kind, _operation(op), self._handle, on), send, recv)

    def all_to_allv(self, send: AnyArray, send_counts: Counts, recv: Array, recv_counts: Counts,
                    send_displs: Counts | None = None, recv_displs: Counts | None = None,
                    stream: Stream | None = None) -> Array:
        """Part r of `send` becomes the part of this rank in the `recv` of rank r."""
        s = place("send", send)
        r = place("recv", recv, s, True)
        out = Parts("send", s, self.size, send_counts, send_displs)
        into = Parts("recv", r, self.size, recv_counts, recv_displs)
        return self._run(stream, lambda on: _c.oxcclAlltoAllv(
            s.address, out.counts, out.displs, r.address, into.counts, into.displs, s.kind, self._handle, on),
            send, recv)

    def gatherv(self, send: AnyArray, recv: Array | None = None, counts: Counts | None = None,
                displs: Counts | None = None, root: int = 0, stream: Stream | None = None) -> Array | None:
        """The `send` of rank r as part r of the root's `recv`; what describes that is ignored elsewhere."""
        s = place("send", send)
        r = self._of_root(root, "recv", recv, s, writable=True)
        parts = Parts("recv", r, self.size, counts, displs) if self.rank == root else NO_PARTS
        return self._run(stream, lambda on: _c.oxcclGatherv(
            s.address, s.count, r.address, parts.counts, parts.displs, s.kind, _int("root", root), self._handle, on),
            send, recv)

    def scatterv(self, send: AnyArray | None, recv: Array, counts: Counts | None = None, displs: Counts | None = None,
                 root: int = 0, stream: Stream | None = None) -> Array:
        """Part r of the root's `send` in the `recv` of rank r; what describes that is ignored elsewhere."""
        r = place("recv", recv, writable=True)
        s = self._of_root(root, "send", send, r)
        parts = Parts("send", s, self.size, counts, displs) if self.rank == root else NO_PARTS
        return self._run(stream, lambda on: _c.oxcclScatterv(
            s.address, parts.counts, parts.displs, r.address, r.count, s.kind, _int("root", root), self._handle, on),
            send, recv)

    def signal(self, to: int, signal: int = 0, stream: Stream | None = None) -> None:
        """Counts up a signal (0 to 15) of a rank of this host. What was put there before is there when
        it is seen."""
        self._run(stream, lambda on: _c.ncclSignal(
            _int("to", to), _int("signal", signal), 0, 0, self._handle, on))

    def wait_signals(self, *signals: tuple[int, int, int], stream: Stream | None = None) -> None:
        """Waits until signals have come: each a tuple of the rank that sends them, the signal, and how many
        of those that nobody has waited for yet."""
        wanted = (_gen.ncclWaitSignalDesc_t * len(signals))(*(
            _gen.ncclWaitSignalDesc_t(
                opCnt=_int("a number of signals", n), peer=_int("a source", source), sigIdx=_int("a signal", signal))
            for source, signal, n in signals
        ))
        self._run(stream, lambda on: _c.ncclWaitSignal(len(signals), wanted, self._handle, on))
