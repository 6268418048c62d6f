"""Python's side of binding-overhead."""

import time

import numpy as np

import oxccl

BATCHES, CALLS = 300, 500


def measure(name, call, drain):
    ns = []
    for _ in range(BATCHES):
        start = time.perf_counter_ns()
        for _ in range(CALLS):
            call()
        ns.append((time.perf_counter_ns() - start) / CALLS)
        drain()
    ns.sort()
    print(f"{name} {ns[0]:.1f} {ns[BATCHES // 2]:.1f}")


with oxccl.Comm() as comm:
    stream, x = oxccl.Stream(), oxccl.empty(2, np.float32)
    measure("queued", lambda: comm.all_reduce(x, stream=stream), stream.synchronize)
    measure("waited", lambda: comm.all_reduce(x), lambda: None)
