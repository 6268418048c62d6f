"""The Python binding on four ranks, NumPy arrays: as processes where a launcher started them, else as threads.

Plain Python: `python test_oxccl.py`.
"""

import ctypes
import gc
import inspect
import os
import pickle
import signal
import threading
import time

import numpy as np

import oxccl
from oxccl._arrays import NAMES
from oxccl import AVG, MAX, MIN, PROD, SUM
from oxccl._gen import ncclCollConfig_t, ncclResult_t

RANKS = 4


def same(got, expected):
    np.testing.assert_array_equal(got, expected)


def expect_error(kind, text, call):
    try:
        call()
    except kind as error:
        assert text in str(error), error
        return error
    raise AssertionError(f"no error; expected {text}")


def collectives(comm, dtype):
    n, rank = 3, comm.rank

    def full(value, count=n):
        return np.full(count, value, dtype)

    own, out, wide = full(rank + 1), full(0), full(0, n * RANKS)
    blocks = np.repeat(np.arange(1, 5, dtype=dtype), n)
    same(comm.all_reduce(own, out), full(10))
    same(comm.all_reduce(own, out, PROD), full(24))
    same(comm.all_reduce(own, out, MAX), full(4))
    same(comm.all_reduce(own.copy(), op=MIN), full(1))
    same(comm.broadcast(own.copy(), 2), full(3))
    out[:] = 0
    same(comm.reduce(own, out, 3), full(10 if rank == 3 else 0))
    # What is ignored may be missing.
    out[:] = 0
    got = comm.reduce(own, out if rank == 3 else None, 3)
    same(out if got is None else got, full(10 if rank == 3 else 0))
    same(comm.all_gather(own, wide), blocks)
    same(comm.reduce_scatter(blocks, out), full(4 * (rank + 1)))
    wide[:] = 0
    same(comm.all_to_all(full(rank + 1, n * RANKS), wide), blocks)
    wide[:] = 0
    same(comm.gather(own, wide, 1), blocks if rank == 1 else blocks * 0)
    same(comm.scatter(wide, out, 1), own)
    got = comm.gather(own, wide if rank == 1 else None, 1)
    assert (got is wide) == (rank == 1)
    same(comm.scatter(wide if rank == 1 else None, out, 1), own)
    if rank == 0:
        comm.send(own, 1)
    elif rank == 1:
        same(comm.recv(out, 0), full(1))
    last = (rank + RANKS - 1) % RANKS
    same(comm.send_recv(own, (rank + 1) % RANKS, out, last), full(last + 1))


def large_circle(comm):
    # So large that no send is complete before its receive; the types need not be the same.
    to, source = (comm.rank + 1) % RANKS, (comm.rank + RANKS - 1) % RANKS
    kinds = [np.int64, np.float32, np.int64, np.float32]
    sent, got = np.full(1 << 21, comm.rank, kinds[comm.rank]), np.full(1 << 21, -1, kinds[source])
    assert comm.send_recv(sent, to, got, source) is got
    same(got, np.full(1 << 21, source, kinds[source]))
    stream = oxccl.Stream()
    comm.send_recv(got, source, sent, to, stream=stream)
    stream.synchronize()
    same(sent, np.full(1 << 21, comm.rank, kinds[comm.rank]))
    expect_error(oxccl.Error, "peer", lambda: comm.send_recv(sent, RANKS, got, source))
    comm.all_reduce(np.zeros(1))


def streams_graphs_groups(comm):
    stream, x = oxccl.Stream(), oxccl.empty((2, 2), np.float32)
    same(x, np.zeros((2, 2)))
    graph = oxccl.capture(stream, lambda: comm.all_reduce(x, stream=stream))
    x[:] = 1
    begin, end = oxccl.Event(), oxccl.Event()
    begin.record(stream)
    for _ in range(3):
        graph.launch(stream)
    end.record(stream)
    stream.synchronize()
    same(x, np.full((2, 2), 64))
    assert end.done() and stream.done() and end.since(begin) >= 0
    y = np.ones((2, 2), np.float32)
    graph.update(stream, lambda: comm.all_reduce(y, stream=stream))
    stream.copy(y, x)
    graph.launch(stream)
    stream.clear(x)
    stream.synchronize()
    same(y, np.full((2, 2), 256))
    same(x, np.zeros((2, 2)))
    expect_error(oxccl.Error, "node 0 is broadcast", lambda: graph.update(
        stream, lambda: comm.broadcast(y, stream=stream)))
    expect_error(ValueError, "to has 1", lambda: stream.copy(np.zeros(1, np.float32), x))
    assert 0 < oxccl.estimate(lambda: comm.all_reduce(x, stream=stream)) < 1
    expect_error(oxccl.Error, "root", lambda: oxccl.estimate(lambda: comm.broadcast(x, 4, stream)))
    # In a group nothing is there when a call returns.
    def grouped(call):
        with oxccl.Group(), oxccl.Group():
            call()
    expect_error(oxccl.Error, "cannot wait in a Group", lambda: grouped(lambda: comm.all_reduce(x)))
    expect_error(oxccl.Error, "cannot be made in a Group", lambda: grouped(lambda: comm.split(0)))
    one = np.zeros(1, np.float32)
    wrong = lambda: comm.all_reduce(x, one, stream=stream)
    expect_error(ValueError, "recv has 1 elements; expected 4", lambda: oxccl.capture(stream, wrong))
    sent, received = np.array([comm.rank]), np.array([-1])
    with oxccl.Group():
        comm.recv(received, (comm.rank - 1) % RANKS, stream)
        comm.send(sent, (comm.rank + 1) % RANKS, stream)
    # The stream keeps what nobody else does.
    for i in range(100):
        comm.all_reduce(np.ones(1000), np.zeros(1000), stream=stream)
    gc.collect()
    # Also when it is dropped itself: the others' part comes when they have done all of the above.
    dropped = oxccl.Stream()
    comm.all_reduce(np.ones(100_000), np.zeros(100_000), stream=dropped)
    del dropped
    oxccl.Stream()
    end.record(stream)
    other = oxccl.Stream()
    other.wait(end)
    other.synchronize()
    stream.synchronize()
    same(received, [(comm.rank - 1) % RANKS])
    with comm.multiplied_sum(np.float64(comm.rank)) as op:
        same(comm.all_reduce(np.array([1.0]), op=op), [6])
    same(comm.all_reduce(np.array([comm.rank / 1.0]), op=AVG), [1.5])
    # A view keeps the memory that its array had.
    part = oxccl.empty(1 << 16)[5:7]
    gc.collect()
    same(part, [0, 0])
    part[:] = 1


def lengths_per_rank(comm, dtype):
    rank, counts = comm.rank, [2, 0, 3, 1]
    own = np.full(counts[rank], rank + 1, dtype)
    packed = np.repeat(np.arange(1, 5, dtype=dtype), counts)
    same(comm.all_gatherv(own, np.zeros(6, dtype), counts), packed)
    # Parts may lie anywhere, and where a part without elements lies is nobody's business.
    spread = comm.all_gatherv(own, np.zeros(9, dtype), counts, [7, -5, 3, 0])
    same(spread, np.array([4, 0, 0, 3, 3, 3, 0, 1, 1], dtype))
    same(comm.reduce_scatterv(packed, np.zeros(counts[rank], dtype), counts), own * 4)
    # Rank r sends r + 1 elements to rank 0, one to every other.
    send_counts = [rank + 1, 1, 1, 1]
    send = np.arange(rank + 4, dtype=dtype)
    recv_counts = [1, 2, 3, 4] if rank == 0 else [1] * 4
    got = comm.all_to_allv(send, send_counts, np.zeros(sum(recv_counts), dtype), recv_counts)
    same(got, np.concatenate([np.arange(r + 1) for r in range(4)]) if rank == 0 else np.arange(4) + rank)
    gathered = comm.gatherv(own, np.zeros(6, dtype), counts, root=2)
    same(gathered, packed if rank == 2 else packed * 0)
    scattered = comm.scatterv(packed, np.zeros(counts[rank], dtype), counts if rank == 2 else None, root=2)
    same(scattered, own)


def registered_and_windows(comm):
    rank, memory = comm.rank, oxccl.empty(RANKS, np.int32)
    before, after = (rank - 1) % RANKS, (rank + 1) % RANKS
    with comm.register(memory):
        same(comm.all_reduce(memory), [0] * RANKS)
    with comm.window(memory) as window:
        window.put(np.array([rank + 1], np.int32), after, at=rank, signal=3)
        comm.signal(before, 15)
        comm.wait_signals((before, 3, 1), (after, 15, 1))
        same(memory, [before + 1 if r == before else 0 for r in range(RANKS)])
        expect_error(oxccl.Error, "16", lambda: comm.signal(after, 16))
        for at in (-1, 1 << 62, -(1 << 62)):
            expect_error(ValueError, f"at is {at}; expected", lambda: window.put(memory, after, at=at))
            expect_error(ValueError, f"at is {at * 8}; expected", lambda: window.put(memory[:0], after, at=at * 8))
        expect_error(oxccl.Error, "16", lambda: window.put(memory, after, at=1))
        for wide in (1 << 32, -(1 << 32)):
            got = f"is {wide}; expected an integer of 32 bits"
            expect_error(ValueError, f"to {got}", lambda: window.put(memory, wide))
            expect_error(ValueError, f"signal {got}", lambda: window.put(memory, after, signal=wide))
            expect_error(ValueError, f"to {got}", lambda: comm.signal(wide))
            expect_error(ValueError, f"signal {got}", lambda: comm.signal(after, wide))
            for wrong in ((wide, 0, 1), (after, wide, 1), (after, 0, wide)):
                expect_error(ValueError, got, lambda: comm.wait_signals(wrong))
        comm.all_reduce(np.zeros(1))
    expect_error(oxccl.Error, "window was closed", lambda: window.put(memory, after))
    window.close()


def made_from_others(comm):
    part = comm.split(oxccl.NO_COLOR if comm.rank == 3 else comm.rank % 2, -comm.rank)
    if comm.rank == 3:
        assert part is None
    else:
        with part:
            assert part.size == 2 - comm.rank % 2
    with comm.split(0) as world:
        if world.rank != 2:
            with world.shrink([2]) as fewer:
                same(fewer.all_reduce(np.ones(1)), [3])
        world.abort()
    # Two ranks leave, and come back as new ones.
    with comm.split(0 if comm.rank < 2 else 1) as half:
        place = np.zeros(128, np.uint8)
        growth_id = half.growth_id() if comm.rank == 0 else None
        if growth_id is not None:
            place[:] = np.frombuffer(bytes(growth_id), np.uint8)
        comm.broadcast(place)
        if comm.rank < 2:
            grown = half.grow(RANKS, growth_id)
        else:
            grown = oxccl.Comm.join(RANKS, oxccl.UniqueId(place.tobytes()), comm.rank)
        with grown:
            assert (grown.rank, grown.size) == (comm.rank, RANKS)
            same(grown.all_reduce(np.ones(1)), [RANKS])
            # Not while others are still at it.
            comm.all_reduce(np.zeros(1))
            grown.revoke()
            expect_error(oxccl.Error, "revoke", lambda: grown.all_reduce(np.ones(1)))


def made_on_host(function, make):
    """Expects that what makes something calls a function of the library where the host is the device."""
    call, kinds = getattr(oxccl._c, function), []

    def watched(*arguments):
        kinds.append(oxccl._device()[0])
        return call(*arguments)

    setattr(oxccl._c, function, watched)
    try:
        make()
    finally:
        setattr(oxccl._c, function, call)
    assert set(kinds) == {oxccl._HOST}, (function, kinds)


def options_and_devices(comm):
    with comm.split(0, numRmaCtx=0, commName="quiet") as without:
        expect_error(oxccl.Error, "numRmaCtx", lambda: without.signal(0))
        same(without.all_reduce(np.ones(1)), [RANKS])
        assert without.memory() > 0
        without.suspend()
        expect_error(oxccl.Error, "suspended", lambda: without.all_reduce(np.ones(1)))
        without.resume()
        before = without.in_place()
        without.all_reduce(oxccl.empty(1 << 20))
        assert without.in_place() == before + 1 and without.by_copy_engines() == 0
    expect_error(oxccl.Error, "minCTAs", lambda: comm.split(0, minCTAs=0))
    expect_error(TypeError, "blocking is no option", lambda: comm.split(0, blocking=0))
    expect_error(ValueError, "without zeros", lambda: comm.split(0, commName="a\0b"))
    expect_error(ValueError, "32 bits", lambda: comm.split(0, maxCTAs=1 << 40))
    assert oxccl.device_count() >= 1
    with oxccl.on_device(3), oxccl.Comm(1, oxccl.UniqueId(), 0) as alone:
        assert alone.device() == 3
    expect_error(oxccl.Error, "index", oxccl.on_device(-1).__enter__)
    # As if this thread had a GPU: what is made is the host's nevertheless, and the thread keeps it.
    device, chosen = oxccl._device, threading.get_ident()
    on_gpu = lambda: (1, 0) if threading.get_ident() == chosen else device()
    if "OXCCL_RANK" in os.environ:
        oxccl._device = on_gpu
        with comm.split(0) as part:
            same(part.all_reduce(oxccl.empty(3)), [0] * 3)
            expect_error(oxccl.Error, "minCTAs", lambda: comm.split(0, minCTAs=0))
        made_on_host("oxcclStreamCreate", oxccl.Stream)
        made_on_host("oxcclEventCreate", oxccl.Event)
        made_on_host("oxcclMemAlloc", lambda: oxccl.empty(1))
        made_on_host("ncclCommSplit", lambda: comm.split(0).close())
        oxccl._device = device
    oxccl.set_log_level(2)


def options_of_calls(comm):
    """The same results as without, and what is wrong is named."""
    n, one = comm.size, np.arange(4 * comm.size, dtype=np.int32)
    part, whole = one[:4].copy(), np.zeros(4 * n, np.int32)
    for options in (
        oxccl.CallOptions(maxCTAs=2, userProfilerTag=2**40, CTAPolicy=1),
        oxccl.CallOptions(algSelection="^ring", forceAlgSelection=0),
        oxccl.CallOptions(plan="one_shot", deterministic=True, deadline_ms=60_000),
    ):
        for call, *arrays in (
            (comm.all_reduce, one, whole),
            (comm.broadcast, one.copy()),
            (comm.reduce, one, whole),
            (comm.all_gather, part, whole),
            (comm.reduce_scatter, one, part.copy()),
            (comm.all_to_all, one, whole),
            (comm.gather, part, whole),
            (comm.scatter, one, part.copy()),
        ):
            expected = call(*arrays).copy()
            same(call(*arrays, options=options), expected)
    known = "size is no option of a call; expected one of plan, deterministic, deadline_ms, minCTAs"
    expect_error(TypeError, known, lambda: oxccl.CallOptions(size=1))
    expect_error(ValueError, "userProfilerTag is -1", lambda: oxccl.CallOptions(userProfilerTag=-1))
    expect_error(ValueError, "without zeros", lambda: oxccl.CallOptions(plan="a\0b"))
    for text, options in (
        ("argument oxcclOptionPlan is \"no_such\"", oxccl.CallOptions(plan="no_such")),
        ("argument maxCTAs is 65", oxccl.CallOptions(maxCTAs=65)),
        ("no algorithm that the call selects serves", oxccl.CallOptions(algSelection="SYMK_ST")),
    ):
        expect_error(oxccl.Error, text, lambda: comm.all_reduce(one, options=options))


def every_field_is_an_option():
    """Each field of C's structure but those that the library fills can be given, and arrives there."""

    def fields(options):
        data = bytes(options._config)
        places = {name: getattr(ncclCollConfig_t, name) for name, _ in ncclCollConfig_t._fields_}
        return {name: data[place.offset:place.offset + place.size] for name, place in places.items()}

    plain = fields(oxccl.CallOptions())
    for name, kind in ncclCollConfig_t._fields_:
        if name in ("size", "magic", "version", "ext"):
            continue
        value = {ctypes.c_char_p: "ring", ctypes.c_void_p: oxccl.Event()}.get(kind, 2)
        options = oxccl.CallOptions(**{name: value})
        differing = [field for field, value in fields(options).items() if value != plain[field]]
        assert differing == [name], (name, differing)


def event_of_a_call(comm):
    """The event comes up behind its call, for which rank 0 waits until the others call, too."""
    part, stream, event, x = comm.split(0), oxccl.Stream(), oxccl.Event(), np.ones(3)
    assert event.done()
    options = oxccl.CallOptions(launchCompletionEvent=event)
    if comm.rank == 0:
        part.all_reduce(x, stream=stream, options=options)
        assert not event.done()
    comm.broadcast(np.zeros(1))
    if comm.rank != 0:
        part.all_reduce(x, stream=stream, options=options)
    stream.synchronize()
    assert event.done()
    same(x, [RANKS] * 3)

    def twice():
        with oxccl.Group():
            part.all_reduce(x, stream=stream, options=options)
            part.all_reduce(x, stream=stream, options=options)

    expect_error(oxccl.Error, "two calls of a group have a launchCompletionEvent", twice)
    wrong = "launchCompletionEvent is 5; expected an oxccl.Event"
    expect_error(TypeError, wrong, lambda: oxccl.CallOptions(launchCompletionEvent=5))
    part.close()


def wrong_types(comm):
    """ctypes would take a number for an address, and cut off others."""
    x, texts = np.zeros(3), "expected a text"
    new = lambda **options: oxccl.Comm(1, oxccl.UniqueId(), 0, **options)
    for wrong, text, call in (
        (TypeError, f"commName is 3; {texts}", lambda: new(commName=3)),
        (TypeError, f"netName is 5; {texts}", lambda: new(netName=5)),
        (TypeError, f"commName is ['a']; {texts}", lambda: comm.split(0, commName=["a"])),
        (TypeError, f"algSelection is 3; {texts}", lambda: oxccl.CallOptions(algSelection=3)),
        (TypeError, f"plan is 4; {texts}", lambda: oxccl.CallOptions(plan=4)),
        (TypeError, "maxCTAs is '8'; expected an integer of 32 bits", lambda: new(maxCTAs="8")),
        (TypeError, "maxCTAs is 2.5; expected an integer of 32 bits", lambda: oxccl.CallOptions(maxCTAs=2.5)),
        (TypeError, "deterministic is 'no'; expected", lambda: oxccl.CallOptions(deterministic="no")),
        (ValueError, "userProfilerTag is 'a'; expected", lambda: oxccl.CallOptions(userProfilerTag="a")),
        (TypeError, "needs the size", lambda: oxccl.Comm(rank=0)),
        (TypeError, "needs the size", lambda: oxccl.Comm(unique_id=oxccl.UniqueId(), rank=0)),
        (TypeError, "unique_id is 'a'; expected", lambda: comm.grow(2, "a")),
        (TypeError, "data is 'a'; expected the bytes", lambda: oxccl.UniqueId("a")),
        (TypeError, "a count of recv is 3.7; expected", lambda: comm.all_gatherv(x, x, [3.7] * 4)),
        (ValueError, "the limit is 'x'; expected seconds", lambda: comm.set_timeout("x")),
        (ValueError, "the limit is -1; expected seconds", lambda: comm.set_timeout(-1)),
        (TypeError, "tag is 1.5; expected", lambda: oxccl.set_tag(1.5)),
    ):
        expect_error(wrong, text, call)
    with oxccl.Comm(1, bytes(oxccl.UniqueId()), 0, maxCTAs=np.int64(2)) as one:
        assert one.size == 1
    assert oxccl.empty(np.int64(3)).shape == (3,)


def not_numbers(comm):
    """MAX and MIN prefer a number to a NaN."""
    x = np.array([np.nan if comm.rank == 0 else comm.rank, np.nan])
    same(comm.all_reduce(x.copy(), op=MAX), [RANKS - 1, np.nan])
    same(comm.all_reduce(x.copy(), op=MIN), [1, np.nan])


def encrypted():
    expect_error(oxccl.Error, "argument psk is a text of 5 bytes", lambda: oxccl.set_encryption("short"))
    oxccl.set_encryption("a key of many letters")
    with oxccl.Comm(1, oxccl.UniqueId(), 0) as comm:
        same(comm.all_reduce(np.ones(3)), np.ones(3))
    oxccl.set_encryption(None)


def beyond_32_bits(comm, x):
    """None of these is taken for rank 0, or for the color 0."""
    wide, wider = 1 << 32, np.zeros(12)
    for name, call in (
        ("root", lambda: comm.broadcast(x, wide)),
        ("root", lambda: comm.reduce(x, x, wide)),
        ("root", lambda: comm.gather(x, wider, wide)),
        ("root", lambda: comm.scatter(wider, x, wide)),
        ("root", lambda: comm.gatherv(x, wider, root=wide)),
        ("root", lambda: comm.scatterv(wider, x, root=wide)),
        ("to", lambda: comm.send(x, wide)),
        ("source", lambda: comm.recv(x, wide)),
        ("color", lambda: comm.split(wide)),
        ("key", lambda: comm.split(0, wide)),
        ("a rank of exclude", lambda: comm.shrink([wide])),
        ("size", lambda: comm.grow(wide)),
        ("size", lambda: oxccl.Comm.join(wide, oxccl.UniqueId(), 0)),
        ("rank", lambda: oxccl.Comm.join(1, oxccl.UniqueId(), wide)),
        ("size", lambda: oxccl.Comm(wide, oxccl.UniqueId(), 0)),
        ("rank", lambda: oxccl.Comm(1, oxccl.UniqueId(), wide)),
        ("index", oxccl.on_device(wide).__enter__),
        ("level", lambda: oxccl.set_log_level(wide)),
    ):
        expect_error(ValueError, f"{name} is {wide}; expected an integer of 32 bits", call)


def errors(comm):
    x = np.zeros(3)
    failure = expect_error(oxccl.Error, "root", lambda: comm.broadcast(x, 4))
    assert failure.code == ncclResult_t.ncclInvalidArgument
    counts = [1] * 4
    expect_error(ValueError, "counts of recv", lambda: comm.all_gatherv(x, x, [1, 1]))
    expect_error(ValueError, "part of rank 3 in recv", lambda: comm.all_gatherv(x, x, counts))
    expect_error(ValueError, "part of rank 0 in recv", lambda: comm.all_gatherv(x, x, counts, [-1, 0, 1, 2]))
    expect_error(ValueError, "expected 1", lambda: comm.reduce_scatterv(np.zeros(4), x, counts))
    expect_error(ValueError, "factor", lambda: comm.multiplied_sum(x))
    expect_error(TypeError, "expected one of int8", lambda: comm.all_reduce(x.astype(">f8")))
    expect_error(ValueError, "expected 12", lambda: comm.all_gather(x, x))
    expect_error(ValueError, "not contiguous", lambda: comm.all_reduce(np.zeros(6)[::2]))
    columns = np.asfortranarray(np.ones((2, 3)))
    expect_error(ValueError, "send is not contiguous, row by row", lambda: comm.all_reduce(columns, np.ones((2, 3))))
    expect_error(ValueError, "recv is not contiguous, row by row", lambda: comm.all_reduce(np.ones((2, 3)), columns))
    of_root = "is None; this rank is the root, and needs an array of "
    expect_error(TypeError, f"recv {of_root}3 elements", lambda: comm.reduce(x, None, comm.rank))
    expect_error(TypeError, f"recv {of_root}12 elements", lambda: comm.gather(x, root=comm.rank))
    expect_error(TypeError, f"send {of_root}12 elements", lambda: comm.scatter(None, x, comm.rank))
    expect_error(TypeError, f"recv {of_root}all ranks' parts", lambda: comm.gatherv(x, root=comm.rank))
    handed_over = pickle.loads(pickle.dumps(failure))
    assert [getattr(handed_over, name) for name in ("args", "code", "rank", "peer")] == [
        failure.args, failure.code, failure.rank, failure.peer]
    expect_error(TypeError, "complex128", lambda: comm.all_reduce(np.zeros(3, complex)))
    expect_error(TypeError, "expected float64", lambda: comm.all_reduce(x, np.zeros(3, np.float32)))
    expect_error(TypeError, "a list", lambda: comm.all_reduce([1.0]))
    masked = np.ma.array(np.ones(3), mask=[0, 1, 0])
    expect_error(TypeError, "send is a masked array, whose mask would be ignored", lambda: comm.all_reduce(masked))
    expect_error(TypeError, "recv is a masked array", lambda: comm.all_reduce(x, masked))
    expect_error(TypeError, "root is 0.5; expected an integer of 32 bits", lambda: comm.broadcast(x, 0.5))
    expect_error(TypeError, "stream is 5; expected an oxccl.Stream", lambda: comm.all_reduce(x, stream=5))
    expect_error(TypeError, "options is 5; expected oxccl.CallOptions", lambda: comm.all_reduce(x, options=5))
    assert comm.broadcast(x, np.int64(0)) is x
    expect_error(ValueError, "shape", lambda: oxccl.empty(-1))
    expect_error(ValueError, "128 bytes", lambda: oxccl.UniqueId(b"x"))
    beyond_32_bits(comm, x)
    # A rank waits for a message that nobody sends for as long as its bound says; other communicators go on.
    part = comm.split(0)
    if comm.rank == 0:
        part.set_timeout(0.05)
        failure = expect_error(oxccl.Error, "ms for rank 1", lambda: part.recv(np.zeros(1), 1))
        assert (failure.code, failure.rank, failure.peer) == (ncclResult_t.ncclRemoteError, 0, 1)
    else:
        part.set_timeout(None)
    # 2^64 ns are not 0.
    assert [oxccl._nanoseconds(t) for t in (None, 0.05, 2**64 / 1e9, np.inf)] == [-1, 50_000_000] + 2 * [2**63 - 1]
    same(comm.all_reduce(np.ones(1)), [RANKS])
    part.abort()
    assert comm.error() is None
    fixed = np.zeros(3)
    fixed.flags.writeable = False
    expect_error(ValueError, "read-only", lambda: comm.all_reduce(x, fixed))
    # Rank 0 waits for a message that nobody sends, until another thread aborts.
    if comm.rank == 0:
        comm.all_reduce(x)
        aborting = threading.Thread(target=comm.abort)
        stream = oxccl.Stream()
        comm.recv(x, 1, stream)
        aborting.start()
        expect_error(oxccl.Error, "ncclCommAbort", stream.synchronize)
        aborting.join()
    else:
        # Either may be the one that hears of it.
        failure = expect_error(oxccl.Error, "rank 0", lambda: (comm.all_reduce(x), comm.recv(x, 0)))
        assert failure.code == ncclResult_t.ncclRemoteError and failure.peer == 0
        assert comm.error().peer == 0
        comm.abort()
    expect_error(oxccl.Error, "closed or aborted", lambda: comm.all_reduce(x))


def dropped_streams(comm):
    """Work of a stream that nobody has any more fails: the end of its communicator tells."""
    part = comm.split(0)
    if comm.rank == 0:
        part.set_timeout(0.05)
        part.recv(np.zeros(1), 1, stream=oxccl.Stream())
        while oxccl._dropped.busy:
            oxccl.Stream()
        expect_error(oxccl.Error, "ms for rank 1", part.close)
    comm.all_reduce(np.zeros(1))
    part.abort()


def in_use():
    """Descriptors, threads, and kB of memory of this process."""
    with open("/proc/self/status") as status:
        memory = next(int(line.split()[1]) for line in status if line.startswith("VmRSS:"))
    return len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task")), memory


def make_and_drop():
    """Everything that can be made, closed or only dropped, and calls that fail."""
    with oxccl.Comm(1, oxccl.UniqueId(), 0) as comm, comm.split(0):
        # More than there is of addresses, if it is never given back.
        stream, x, mark = oxccl.Stream(), oxccl.empty(1 << 28), oxccl.Event()
        with comm.register(x), comm.window(x), comm.multiplied_sum(np.float32(2)):
            graph = oxccl.capture(stream, lambda: comm.all_reduce(x[:9], stream=stream))
            graph.update(stream, lambda: comm.all_reduce(x[1:9], stream=stream))
            graph.launch(stream)
            mark.record(stream)
            expect_error(ValueError, "to has", lambda: oxccl.capture(stream, lambda: stream.copy(x[:1], x[:2])))
            for _ in range(100):
                expect_error(oxccl.Error, "root", lambda: comm.broadcast(x, -1))
            stream.synchronize()


def nothing_leaks():
    for _ in range(3):
        make_and_drop()
    before = in_use()
    for _ in range(100):
        make_and_drop()
    gc.collect()
    after = in_use()
    # A thread may keep the last communicator that it used.
    allowed = [had + more for had, more in zip(before, (16, 16, 32 << 10))]
    assert all(now <= most for now, most in zip(after, allowed)), (before, after)


def taken_by_another_thread():
    """A thread that makes a stream finds the dropped ones gone that another thread has just taken."""

    class Taken(list):
        def __len__(self):
            return 1

    known, oxccl._dropped.busy = oxccl._dropped.busy, Taken()
    try:
        oxccl.Stream()
    finally:
        oxccl._dropped.busy = known


def dtypes():
    """All types that there are: NumPy has those of 8 and the second of 16 bits by another package."""
    try:
        import ml_dtypes
    except ImportError:
        ml_dtypes = None
    found = [getattr(np, name, None) or getattr(ml_dtypes, name, None) for name in NAMES]
    return [np.dtype(dtype) for dtype in found if dtype is not None]


def rank(comm):
    for dtype in dtypes():
        collectives(comm, dtype)
        lengths_per_rank(comm, dtype)
    registered_and_windows(comm)
    large_circle(comm)
    streams_graphs_groups(comm)
    made_from_others(comm)
    options_and_devices(comm)
    options_of_calls(comm)
    event_of_a_call(comm)
    not_numbers(comm)
    wrong_types(comm)
    dropped_streams(comm)
    errors(comm)


def on_threads():
    unique_id = bytes(oxccl.UniqueId())
    failures = []

    def guarded(r):
        comm = oxccl.Comm(RANKS, oxccl.UniqueId(unique_id), r)
        try:
            rank(comm)
        except BaseException as failure:
            failures.append(failure)
            comm.abort()

    threads = [threading.Thread(target=guarded, args=(r,)) for r in range(RANKS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]


def interface():
    """Everything that is offered has types, and what is wrong or closed says so."""
    assert oxccl.version()[0] == 23203 and oxccl.__version__.count(".") == 2
    offered = [getattr(oxccl, name) for name in oxccl.__all__]
    for kind in [kind for kind in offered if inspect.isclass(kind)]:
        special = ("__init__", "__enter__", "__exit__")
        own = [function for name, function in vars(kind).items() if not name.startswith("_") or name in special]
        offered += [getattr(function, "__func__", function) for function in own if not isinstance(function, property)]
    functions = [function for function in offered if inspect.isfunction(function)]
    assert len(functions) > 60, functions
    for function in functions:
        # Nobody makes graphs, or calls what a communicator made, but by methods.
        if function.__module__ != "oxccl" or function.__qualname__ in ("Graph.__init__", "_Made.__init__"):
            continue
        named = [name for name in inspect.signature(function).parameters if name not in ("self", "cls")]
        hints = function.__annotations__
        bare = [name for name in named if name not in hints]
        assert not bare and "return" in hints, (function, bare)
        # Callers know more of what they pass and get than that it is something.
        vague = [name for name, hint in hints.items() if "Any" in hint.replace("AnyArray", "")]
        assert not vague, (function, vague)
    comm = oxccl.Comm(1, oxccl.UniqueId(), 0)
    for name, op in {"sum": SUM, "Prod": PROD, "max": MAX, "min": MIN, "avg": AVG}.items():
        same(comm.all_reduce(np.full(3, 2.0), op=name), comm.all_reduce(np.full(3, 2.0), op=op))
    for wrong in ("mean", 2, None):
        expect_error(ValueError, f"op is {wrong!r}; expected", lambda: comm.all_reduce(np.zeros(3), op=wrong))
    assert repr(comm) == "<oxccl.Comm, rank 0 of 1>"
    assert repr(oxccl.UniqueId()) == "<oxccl.UniqueId>" and repr(oxccl.Stream()).startswith("<oxccl.Stream at 0x")
    for name in ("rank", "size"):
        expect_error(AttributeError, "", lambda: setattr(comm, name, 5))
    with comm.multiplied_sum(np.float64(2)) as double:
        same(comm.all_reduce(np.ones(3), op=double), np.full(3, 2.0))
    expect_error(oxccl.Error, "operation was closed", lambda: comm.all_reduce(np.ones(3), op=double))
    with comm.register(np.zeros(4)) as registered:
        assert repr(registered) == "<oxccl.Registration>"
        comm.close()
    registered.close()
    assert repr(registered) == "<oxccl.Registration, closed>"
    comm.close()
    comm.abort()
    assert repr(comm) == "<oxccl.Comm, rank 0 of 1, closed>"
    closed = expect_error(oxccl.Error, "closed or aborted", lambda: comm.all_reduce(np.zeros(3)))
    assert closed.code == ncclResult_t.ncclInvalidUsage
    expect_error(TypeError, "needs the unique_id", lambda: oxccl.Comm(4))
    expect_error(TypeError, "size is 'a'", lambda: oxccl.Comm("a"))
    assert repr(oxccl.CallOptions(maxCTAs=4, plan="ring")) == "CallOptions(maxCTAs=4, plan='ring')"
    expect_error(ValueError, "deadline_ms is 0; expected 1", lambda: oxccl.CallOptions(deadline_ms=0))


def interrupted():
    """Who waits for ranks that do not come can be interrupted."""
    # Ignored where a shell has started this beside others.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    start = time.monotonic()
    threading.Timer(0.2, signal.raise_signal, (signal.SIGINT,)).start()
    expect_error(KeyboardInterrupt, "", lambda: oxccl.Comm(2, oxccl.UniqueId(), 0, init_timeout=100))
    assert time.monotonic() - start < 50


if __name__ == "__main__":
    interface()
    every_field_is_an_option()
    if "OXCCL_RANK" in os.environ:
        rank(oxccl.Comm())
    else:
        on_threads()
        encrypted()
        late = lambda: oxccl.Comm(2, oxccl.UniqueId(), 0, init_timeout=0.001)
        expect_error(oxccl.Error, "1 of 2 ranks did not come", late)
        nothing_leaks()
        taken_by_another_thread()
        interrupted()
    print("Python is right")
