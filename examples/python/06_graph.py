"""An all-reduce is captured once and launched many times: oxccl run -n 4 python3 06_graph.py"""
import numpy as np
import oxccl
from verdict import verdict

with oxccl.Comm() as comm:
    stream, x = oxccl.Stream(), np.array([1])
    graph = oxccl.capture(stream, lambda: comm.all_reduce(x, stream=stream))  # noted, not done
    for _ in range(10):
        graph.launch(stream)
    stream.synchronize()
verdict(x[0] == comm.size**10, comm.rank, comm.size, "ten launches")
