"""The Python binding on four ranks: as processes where a launcher started them, else as threads.

Plain Python: `python test_oxccl.py`.
"""

import gc
import os
import threading

import numpy as np

import oxccl
from oxccl import AVG, MAX, MIN, PROD, SUM
from oxccl._gen import ncclResult_t

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
    same(comm.all_gather(own, wide), blocks)
    same(comm.reduce_scatter(blocks, out), full(4 * (rank + 1)))
    wide[:] = 0
    same(comm.all_to_all(full(rank + 1, n * RANKS), wide), blocks)
    wide[:] = 0
    same(comm.gather(own, wide, 1), blocks if rank == 1 else blocks * 0)
    same(comm.scatter(wide, out, 1), own)
    if rank == 0:
        comm.send(own, 1)
    elif rank == 1:
        same(comm.recv(out, 0), full(1))


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
    same(comm.all_reduce(np.array([1.0]), op=comm.premulsum(np.float64(comm.rank))), [6])
    same(comm.all_reduce(np.array([comm.rank / 1.0]), op=AVG), [1.5])
    # A view keeps the memory that its array had.
    part = oxccl.empty(1 << 16)[5:7]
    gc.collect()
    same(part, [0, 0])
    part[:] = 1


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


def errors(comm):
    x = np.zeros(3)
    failure = expect_error(oxccl.Error, "root", lambda: comm.broadcast(x, 4))
    assert failure.code == ncclResult_t.ncclInvalidArgument
    expect_error(ValueError, "expected 12", lambda: comm.all_gather(x, x))
    expect_error(ValueError, "not contiguous", lambda: comm.all_reduce(np.zeros(6)[::2]))
    expect_error(TypeError, "complex128", lambda: comm.all_reduce(np.zeros(3, complex)))
    expect_error(TypeError, "expected float64", lambda: comm.all_reduce(x, np.zeros(3, np.float32)))
    expect_error(TypeError, "a list", lambda: comm.all_reduce([1.0]))
    expect_error(ValueError, "shape", lambda: oxccl.empty(-1))
    expect_error(ValueError, "128 bytes", lambda: oxccl.UniqueId(b"x"))
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
    expect_error(oxccl.Error, "null", lambda: comm.all_reduce(x))


def rank(comm):
    for dtype in oxccl._TYPES:
        collectives(comm, dtype)
    streams_graphs_groups(comm)
    made_from_others(comm)
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
            if comm._handle:
                comm.abort()

    threads = [threading.Thread(target=guarded, args=(r,)) for r in range(RANKS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]


if __name__ == "__main__":
    assert oxccl.version()[0] == 23007
    if "OXCCL_RANK" in os.environ:
        rank(oxccl.Comm())
    else:
        on_threads()
    print("Python is right")
