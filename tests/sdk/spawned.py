"""Four ranks that multiprocessing starts and nobody closes: spawned.py METHOD END, in which rank 1 fails where END
is "broken"."""

import multiprocessing
import sys
import time

import numpy as np

import oxccl


def rank_main(rank, unique_id, broken):
    comm, x = oxccl.Comm(4, oxccl.UniqueId(unique_id), rank), np.ones(1)
    comm.all_reduce(x)
    if broken and rank == 1:
        raise ValueError("broken")
    if broken:
        comm.all_reduce(x)
    # The others end before it.
    time.sleep(1 if rank == 0 else 0)


if __name__ == "__main__":
    method, broken = sys.argv[1], sys.argv[2] == "broken"
    start = multiprocessing.get_context(method).Process
    unique_id = bytes(oxccl.UniqueId())
    ranks = [start(target=rank_main, args=(rank, unique_id, broken)) for rank in range(4)]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join()
    sys.exit(any(process.exitcode for process in ranks))
