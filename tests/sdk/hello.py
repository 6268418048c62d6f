"""An all-reduce that checks itself, with what is installed."""

import numpy as np

import oxccl

with oxccl.Comm(commName="greeting", minCTAs=8) as comm:
    x = comm.all_reduce(np.full(1000, comm.rank + 1.0))
    assert (x == comm.size * (comm.size + 1) / 2).all(), x
    print(f"rank {comm.rank} of {comm.size}: all right, by {oxccl.__file__}")
