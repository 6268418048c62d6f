"""The sum of all ranks' numbers, on every rank: oxccl run -n 4 python3 01_hello.py"""
import numpy as np
import oxccl
from verdict import verdict

with oxccl.Comm() as comm:
    n = comm.size
    x = np.arange(1000, dtype=np.float32) + comm.rank
    comm.all_reduce(x)
verdict(np.array_equal(x, n * (n - 1) // 2 + n * np.arange(1000)), comm.rank, n, "sum")
