"""PyTorch: the backend `oxccl` of torch.distributed, for tensors on the CPU.

    import oxccl.torch                                    # not needed where the wheel is installed
    torch.distributed.init_process_group("oxccl")         # or "cpu:oxccl,cuda:nccl"

Collectives run in the order of their calls. Messages of a tag from one rank to another wait for nothing
but each other: they have a communicator of their own, made when the first is sent or received.

PyTorch 2.15 does not ask backends written in Python whether a call is complete: `is_completed()` of an
asynchronous one stays false (`get_future().done()` tells). Older versions have no such backends: there
"oxccl" works, but not next to others. Receivers name their source.
"""

import ctypes
import queue
import threading
import time
from contextlib import contextmanager
from types import SimpleNamespace

import numpy as np
import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d

from . import AVG, MAX, MIN, PROD, SUM, Comm, Error, Group, MultipliedSum, Stream, UniqueId, _arrays, _gen
from ._library import _c, _check
from . import empty as _empty

__all__ = ["Backend", "empty", "register"]

_KINDS = {getattr(torch, name): kind for name, kind in _arrays.NAMES.items() if hasattr(torch, name)}
# Of logical values the sum is "or", the product "and".
_KINDS[torch.bool] = _KINDS[torch.uint8]
_LOGICAL = {int(SUM): int(MAX), int(PROD): int(MIN), int(MAX): int(MAX), int(MIN): int(MIN)}
# Tags in use from one rank to another.
_TAGS = 64
_Op = dist.ReduceOp.RedOpType
_OPS = {
    dist.ReduceOp(op): int(ours)
    for op, ours in ((_Op.SUM, SUM), (_Op.PRODUCT, PROD), (_Op.MAX, MAX), (_Op.MIN, MIN), (_Op.AVG, AVG))
}


# Options of calls that wait.
_WAITS = SimpleNamespace(asyncOp=False)


class Timeout(RuntimeError, TimeoutError):
    """A limit that is over. Programs for PyTorch expect a RuntimeError."""


def _told(error, begun, timeout):
    """An error of a call that began at a time, as programs for PyTorch expect it."""
    if time.monotonic() - begun < timeout.total_seconds():
        return error
    return Timeout(f"oxccl: Timed out within {timeout}, the timeout of the process group: {error}")


def empty(shape, dtype=torch.float32):
    """A tensor, all zero, in memory that other ranks of this host read and write in place."""
    shape = torch.Size((shape,) if isinstance(shape, int) else shape)
    return torch.from_numpy(_empty(shape.numel() * dtype.itemsize, np.uint8)).view(dtype).view(shape)


def _at(tensor):
    """Address, length and type of a tensor's elements."""
    kind = _KINDS.get(tensor.dtype)
    if kind is None:
        known = ", ".join(str(dtype) for dtype in _KINDS)
        raise TypeError(f"oxccl: a tensor has elements of type {tensor.dtype}; expected one of {known}")
    if not tensor.is_cpu:
        raise TypeError(f"oxccl: a tensor is on {tensor.device}; expected one on the CPU")
    if tensor.layout != torch.strided or not tensor.is_contiguous():
        raise ValueError("oxccl: a tensor is not contiguous; pass tensor.contiguous()")
    return tensor.data_ptr(), tensor.numel(), kind


def _like(name, tensor, count, kind):
    """The address of a tensor, which has to have so many elements of this type."""
    address, got, own = _at(tensor)
    if got != count:
        raise ValueError(f"oxccl: the {name} has {got} elements; expected {count}")
    if own != kind:
        raise TypeError(f"oxccl: the {name} has elements of type {tensor.dtype}, unlike the other tensors")
    return address


class _Parts:
    """One tensor for each rank, as parts of the memory from the first address on."""

    def __init__(self, name, tensors, ranks):
        if len(tensors) != ranks:
            raise ValueError(f"oxccl: {len(tensors)} {name} tensors; expected {ranks}, one for each rank")
        places = [_at(tensor) for tensor in tensors]
        self.kind, bytes_each = places[0][2], tensors[0].itemsize
        if any(kind != self.kind for _, _, kind in places):
            raise TypeError(f"oxccl: the {name} tensors have elements of several types")
        self.base = min((address for address, count, _ in places if count), default=0)
        if any((address - self.base) % bytes_each for address, count, _ in places if count):
            raise ValueError(f"oxccl: the {name} tensors are not aligned to their elements")
        sizes = ctypes.c_size_t * ranks
        self.counts = sizes(*(count for _, count, _ in places))
        self.displs = sizes(*((a - self.base) // bytes_each if count else 0 for a, count, _ in places))


def _rows(tensor, splits, ranks):
    """Parts of a tensor, cut along its first dimension; without sizes all are equal."""
    rows = tensor.size(0) if tensor.dim() else 1
    splits = list(splits) or [rows // ranks] * ranks
    if len(splits) != ranks or sum(splits) != rows:
        raise ValueError(f"oxccl: parts of {splits} rows; expected one for each of {ranks} ranks, {rows} together")
    return tensor.view(rows, -1).split(splits) if tensor.numel() else [tensor.view(-1)] * ranks


@contextmanager
def _host():
    """This thread's device is the host meanwhile."""
    kind, index = ctypes.c_int(), ctypes.c_int()
    _check(_c.oxcclDeviceGet(ctypes.byref(kind), ctypes.byref(index)))
    _check(_c.oxcclDeviceSet(_gen.oxcclDeviceKind_t.oxcclDeviceHost, 0))
    try:
        yield
    finally:
        _check(_c.oxcclDeviceSet(kind, index))


def _meet(store, rank, size, timeout):
    """A communicator of all who come to a store."""
    # All are here before anyone waits for the others, which the library does for a short time only.
    if store.add("came", 1) == size:
        store.set("all", b"1")
    store.wait(["all"], timeout)
    if rank == 0:
        unique_id = UniqueId()
        store.set("id", bytes(unique_id))
    else:
        unique_id = UniqueId(store.get("id"))
    with _host():
        comm = Comm(size, unique_id, rank)
    comm.set_timeout(timeout.total_seconds())
    return comm


def _settle(work, future):
    """Ends a future with the results of a work, or with what it failed with."""
    try:
        work.wait()
        future.set_result((work.results, None))
    except Exception as error:
        future.set_result((None, error))


def _settle_all(futures):
    while True:
        _settle(*futures.get())


def _outcome(future):
    results, error = future.value()
    if error is not None:
        raise error
    return results


class _Work(dist._Work):
    """A call under way, on a stream that is its own for so long."""

    def __init__(self, group, results):
        super().__init__()
        self.results = results
        self._group, self._stream, self._error = group, None, None
        self._lock = threading.Lock()

    def begin(self, call, kept):
        """Makes the call."""
        self._begun = time.monotonic()
        self._stream = self._group._stream()
        _check(call(self._stream._handle))
        self._stream._kept.extend(kept)

    def wait(self, timeout=None):
        with self._lock:
            if self._stream is not None:
                try:
                    if not self._stream.synchronize(timeout.total_seconds() if timeout else None):
                        raise Timeout(f"oxccl: Timed out within {timeout}")
                except Error as error:
                    self._error = _told(error, self._begun, self._group._timeout)
                self._group._streams.append(self._stream)
                self._stream = None
        if self._error is not None:
            raise self._error
        return True

    def is_completed(self):
        with self._lock:
            try:
                return self._stream is None or self._stream.done()
            except Error as error:
                self._error = _told(error, self._begun, self._group._timeout)
                return True

    def get_future(self):
        future = torch.futures.Future()
        outcome = future.then(_outcome)
        self._settle(future)
        return outcome

    def _settle(self, future):
        # These end in the order of their calls.
        self._group._waiter().put((self, future))


class _Message(_Work):
    """A message under way, of an edge that may still be opening."""

    def __init__(self, group, edge, tensors):
        super().__init__(group, tensors)
        self._edge = edge

    def wait(self, timeout=None):
        if not self._edge.opened.wait(timeout.total_seconds() if timeout else None):
            raise Timeout(f"oxccl: Timed out within {timeout}: the other rank has not come")
        return super().wait(timeout)

    def is_completed(self):
        return self._edge.opened.is_set() and super().is_completed()

    def _settle(self, future):
        threading.Thread(target=_settle, args=(self, future), daemon=True).start()


class _Edge:
    """Messages of one tag from one rank to another. Nothing waits for the other rank to come."""

    def __init__(self, group, source, to, tag):
        self.opened, self.last = threading.Event(), None
        self._comm, self._error, self._waiting, self._lock = None, None, [], threading.Lock()
        store = dist.PrefixStore(f"{source}>{to}/{tag}/", group._store.clone())
        here = (store, 0 if group._rank == source else 1, 2, group._timeout)
        threading.Thread(target=self._open, args=here, daemon=True).start()

    def _open(self, *here):
        try:
            comm, error = _meet(*here), None
        except Exception as failure:
            comm, error = None, failure
        with self._lock:
            self._comm, self._error = comm, error
            for waiting in self._waiting:
                self._begin(*waiting)
            self._waiting = None
        self.opened.set()

    def submit(self, message, call, tensor):
        """Sends or receives a tensor: whatever comes before it on this edge does so first."""
        place = _at(tensor)
        with self._lock:
            if self._waiting is None:
                self._begin(message, call, tensor, place)
            else:
                self._waiting.append((message, call, tensor, place))
        return message

    def _begin(self, message, call, tensor, place):
        try:
            if self._error is not None:
                raise self._error
            other, self.last = 1 - self._comm.rank, message
            message.begin(lambda stream: call(*place, other, self._comm._handle, stream), [tensor])
        except Exception as error:
            message._error = error

    def end(self, end):
        with self._lock:
            if self._comm is not None:
                end(self._comm)


# Older versions take no backends in Python, but whole process groups.
_IN_PYTHON = hasattr(c10d.Backend, "supports_window")


class Backend(c10d.Backend if _IN_PYTHON else dist.ProcessGroup):
    """A process group's part for tensors on the CPU."""

    # PyTorch's own answer to what a class in Python does not answer is to ask it again.
    supports_splitting = supports_coalescing = supports_shrinking = supports_reconfigure = False
    supports_window = _supports_time_estimate = False

    def __init__(self, store, rank, size, timeout):
        super().__init__(rank, size)
        self._store, self._timeout = store, timeout
        self._rank, self._size = rank, size
        self._comm = _meet(store, rank, size, timeout)
        self._handle = self._comm._handle
        # That of calls that wait, and those of asynchronous calls that are over.
        with _host():
            self._own = Stream()
        self._streams, self._edges, self._futures = [], {}, None
        self._lock = threading.Lock()
        self._token = torch.zeros(1, dtype=torch.uint8)
        done = torch.futures.Future()
        done.set_result(None)
        self._done = c10d._create_work_from_future(done)

    def getBackendName(self):
        return "oxccl"

    if not _IN_PYTHON:
        # Names stand in backends, which this group has none of.
        def _set_group_name(self, name):
            self._name = name

        @property
        def group_name(self):
            return self._name

    @property
    def options(self):
        return c10d.Backend.Options("oxccl", timeout=self._timeout)

    def set_timeout(self, timeout):
        self._timeout = timeout
        self._comm.set_timeout(timeout.total_seconds())

    def _waiter(self):
        """The queue of a thread that settles futures."""
        with self._lock:
            if self._futures is None:
                self._futures = queue.SimpleQueue()
                threading.Thread(target=_settle_all, args=(self._futures,), daemon=True).start()
            return self._futures

    def shutdown(self):
        # A message that never came is no reason to wait.
        for edge in self._edges.values():
            edge.end(Comm.close if edge.last is None or edge.last.is_completed() else Comm.abort)
        self._edges = {}
        if self._comm._place:
            self._comm.close()

    def abort(self):
        for edge in self._edges.values():
            edge.end(Comm.abort)
        self._comm.abort()

    def _stream(self):
        """A stream that nobody uses."""
        try:
            return self._streams.pop()
        except IndexError:
            with _host():
                return Stream()

    def _run(self, opts, results, kept, call):
        """Does a call on a stream, and waits for it unless it is asynchronous."""
        if not opts.asyncOp:
            stream, begun = self._own, time.monotonic()
            _check(call(stream._handle))
            stream._kept.extend(kept)
            try:
                stream.synchronize()
            except Error as error:
                raise _told(error, begun, self._timeout) from None
            return self._done
        work = _Work(self, results)
        work.begin(call, kept)
        return work

    def _reduce(self, opts, results, kept, call):
        """The same for a call with an operation."""
        op = self._op(opts.reduceOp, results[0])
        try:
            return self._run(opts, results, kept, lambda stream: call(op, stream))
        finally:
            if isinstance(op, MultipliedSum):
                op.close()

    def _op(self, reduce_op, tensor):
        op = _OPS.get(reduce_op)
        if op is None:
            if reduce_op == _Op.PREMUL_SUM:
                factor = torch.as_tensor(reduce_op.__getstate__()[1], dtype=tensor.dtype, device="cpu")
                return MultipliedSum(self._comm, factor)
            known = ", ".join(op.op.name for op in _OPS)
            raise ValueError(f"oxccl: the operation is {reduce_op.op.name}; expected one of {known}, PREMUL_SUM")
        if tensor.dtype != torch.bool:
            return op
        if op not in _LOGICAL:
            raise ValueError("oxccl: there is no average of torch.bool; expected SUM, PRODUCT, MAX or MIN")
        return _LOGICAL[op]

    def allreduce(self, tensors, opts=c10d.AllreduceOptions()):
        if len(tensors) > 1:
            return self.allreduce_coalesced(tensors, opts)
        if tensors[0].is_sparse:
            return self._sum_sparse(tensors, opts)
        address, count, kind = _at(tensors[0])
        return self._reduce(opts, tensors, tensors, lambda op, stream: _c.ncclAllReduce(
            address, address, count, kind, op, self._handle, stream))

    def _sum_sparse(self, tensors, opts):
        """Sums sparse tensors of one size: all ranks get the elements of all. Waits in any case."""
        if opts.reduceOp != _Op.SUM:
            raise ValueError(f"oxccl: the operation is {opts.reduceOp.op.name}; expected SUM for sparse tensors")
        tensor, own = tensors[0], tensors[0].coalesce()
        shape = torch.tensor([own.indices().size(1), own.sparse_dim(), *own.size()])
        shapes = torch.empty((self._size, len(shape)), dtype=torch.int64)
        self.all_gather_single(shapes, shape, _WAITS)
        for rank, other in enumerate(shapes):
            if not torch.equal(other[1:], shape[1:]):
                raise ValueError(f"oxccl: rank {rank} sums a tensor of {other[2:].tolist()}; here it is one of "
                                 f"{shape[2:].tolist()}")
        counts, parts = shapes[:, 0].tolist(), []
        for part in (own.indices().t().contiguous(), own.values().contiguous()):
            parts.append(part.new_empty((sum(counts), *part.shape[1:])))
            self.allgather([parts[-1].split(counts)], [part], _WAITS)
        total = torch.sparse_coo_tensor(parts[0].t(), parts[1], tensor.size())
        tensor.copy_(total.coalesce())
        if not opts.asyncOp:
            return self._done
        future = torch.futures.Future()
        future.set_result(tensors)
        return c10d._create_work_from_future(future)

    def allreduce_coalesced(self, tensors, opts=c10d.AllreduceCoalescedOptions()):
        places = [_at(tensor) for tensor in tensors]
        if any(tensor.dtype != tensors[0].dtype for tensor in tensors):
            raise TypeError("oxccl: the tensors have elements of several types")
        return self._reduce(opts, tensors, tensors, lambda op, stream: _all(
            places, lambda address, count, kind: _c.ncclAllReduce(
                address, address, count, kind, op, self._handle, stream)))

    def broadcast(self, tensors, opts=c10d.BroadcastOptions()):
        address, count, kind = _at(tensors[opts.rootTensor])
        return self._run(opts, tensors, tensors, lambda stream: _c.ncclBcast(
            address, count, kind, opts.rootRank, self._handle, stream))

    def reduce(self, tensors, opts=c10d.ReduceOptions()):
        address, count, kind = _at(tensors[opts.rootTensor])
        return self._reduce(opts, tensors, tensors, lambda op, stream: _c.ncclReduce(
            address, address, count, kind, op, opts.rootRank, self._handle, stream))

    def all_gather_single(self, output, input, opts=c10d.AllgatherOptions()):
        return self.all_gather_single_coalesced([output], [input], opts)

    def all_gather_single_coalesced(self, outputs, inputs, opts=c10d.AllgatherOptions()):
        places = []
        for out, own in zip(outputs, inputs, strict=True):
            address, count, kind = _at(own)
            places.append((address, _like("output", out, count * self._size, kind), count, kind))
        return self._run(opts, outputs, (outputs, inputs), lambda stream: _all(
            places, lambda *place: _c.ncclAllGather(*place, self._handle, stream)))

    def allgather_coalesced(self, outputs, inputs, opts=c10d.AllgatherOptions()):
        # Here it is a list for each rank, in the other one for each input.
        return self.allgather(list(zip(*outputs, strict=True)), inputs, opts)

    def allgather(self, outputs, inputs, opts=c10d.AllgatherOptions()):
        places = []
        for out, own in zip(outputs, inputs, strict=True):
            parts = _Parts("output", out, self._size)
            count = parts.counts[self._rank]
            places.append((_like("input", own, count, parts.kind), count, parts))
        return self._run(opts, [t for out in outputs for t in out], (outputs, inputs), lambda stream: _all(
            places, lambda own, count, parts: _c.oxcclAllGatherv(
                own, count, parts.base, parts.counts, parts.displs, parts.kind, self._handle, stream)))

    def gather(self, outputs, inputs, opts=c10d.GatherOptions()):
        address, count, kind = _at(inputs[0])
        root, base, counts, displs = opts.rootRank, None, None, None
        results = outputs[0] if self._rank == root else []
        if self._rank == root:
            parts = _Parts("output", results, self._size)
            _like("input", inputs[0], parts.counts[root], parts.kind)
            base, counts, displs = parts.base, parts.counts, parts.displs
        return self._run(opts, results, (outputs, inputs), lambda stream: _c.oxcclGatherv(
            address, count, base, counts, displs, kind, root, self._handle, stream))

    def scatter(self, outputs, inputs, opts=c10d.ScatterOptions()):
        address, count, kind = _at(outputs[0])
        root, base, counts, displs = opts.rootRank, None, None, None
        if self._rank == root:
            parts = _Parts("input", inputs[0], self._size)
            _like("output", outputs[0], parts.counts[root], parts.kind)
            base, counts, displs = parts.base, parts.counts, parts.displs
        return self._run(opts, outputs, (outputs, inputs), lambda stream: _c.oxcclScatterv(
            base, counts, displs, address, count, kind, root, self._handle, stream))

    def reduce_scatter_single(self, output, input, opts=c10d.ReduceScatterOptions()):
        return self.reduce_scatter_single_coalesced([output], [input], opts)

    def reduce_scatter_single_coalesced(self, outputs, inputs, opts=c10d.ReduceScatterOptions()):
        places = []
        for out, own in zip(outputs, inputs, strict=True):
            address, count, kind = _at(out)
            places.append((_like("input", own, count * self._size, kind), address, count, kind))
        return self._reduce(opts, outputs, (outputs, inputs), lambda op, stream: _all(
            places, lambda *place: _c.ncclReduceScatter(*place, op, self._handle, stream)))

    def reduce_scatter(self, outputs, inputs, opts=c10d.ReduceScatterOptions()):
        for own in inputs:
            _Parts("input", own, self._size)
        return self.reduce_scatter_single_coalesced(
            outputs, [torch.cat([t.reshape(-1) for t in own]) for own in inputs], opts)

    def all_to_all_single(self, output, input, output_splits, input_splits, opts=c10d.AllToAllOptions()):
        if output_splits or input_splits:
            return self.alltoall(_rows(output, output_splits, self._size), _rows(input, input_splits, self._size), opts)
        address, count, kind = _at(input)
        into = _like("output", output, count, kind)
        if count % self._size:
            raise ValueError(f"oxccl: the input has {count} elements; expected equal parts for {self._size} ranks")
        return self._run(opts, [output], (output, input), lambda stream: _c.ncclAlltoAll(
            address, into, count // self._size, kind, self._handle, stream))

    def alltoall(self, outputs, inputs, opts=c10d.AllToAllOptions()):
        out, into = _Parts("input", inputs, self._size), _Parts("output", outputs, self._size)
        if out.kind != into.kind:
            raise TypeError("oxccl: the output tensors have elements of another type than the input tensors")
        return self._run(opts, outputs, (outputs, inputs), lambda stream: _c.oxcclAlltoAllv(
            out.base, out.counts, out.displs, into.base, into.counts, into.displs, out.kind, self._handle, stream))

    def barrier(self, opts=c10d.BarrierOptions()):
        token = self._token.data_ptr()
        return self._run(opts, [], [], lambda stream: _c.ncclAllReduce(
            token, token, 1, _KINDS[torch.uint8], int(MAX), self._handle, stream))

    def _edge(self, *key):
        with self._lock:
            if key not in self._edges:
                if sum(other[:2] == key[:2] for other in self._edges) == _TAGS:
                    raise ValueError(f"oxccl: the tag is {key[2]}; expected one of the {_TAGS} used before")
                self._edges[key] = _Edge(self, *key)
            return self._edges[key]

    def send(self, tensors, to, tag):
        edge = self._edge(self._rank, to, tag)
        return edge.submit(_Message(self, edge, tensors), _c.ncclSend, tensors[0])

    def recv(self, tensors, source, tag):
        edge = self._edge(source, self._rank, tag)
        return edge.submit(_Message(self, edge, tensors), _c.ncclRecv, tensors[0])

    # The names of PyTorch 2.14 and older.
    _allgather_base = all_gather_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced
    _reduce_scatter_base = reduce_scatter_single
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced
    alltoall_base = all_to_all_single

    def recv_anysource(self, tensors, tag):
        raise NotImplementedError("oxccl: a receive from any rank; expected the rank that sends")


def _all(places, call):
    """The same call for each of several places, launched together."""
    if len(places) == 1:
        return call(*places[0])
    with Group():
        for place in places:
            _check(call(*place))
    return 0


def register():
    """Makes the backend known to torch.distributed; importing this module does it."""
    dist.Backend.register_backend("oxccl", Backend, devices=["cpu"])


register()
