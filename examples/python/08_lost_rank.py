"""The last rank vanishes; the others learn which one it was and go on without it:
oxccl run -n 4 python3 08_lost_rank.py"""
import os
import sys

import numpy as np
import oxccl
from verdict import verdict


def count(comm):
    """The number of ranks by an all-reduce."""
    return int(comm.all_reduce(np.array([1]))[0])


comm = oxccl.Comm()
if comm.size < 2:
    sys.exit("start it on two ranks or more")
right = count(comm) == comm.size
if comm.rank == comm.size - 1:
    os._exit(0)  # without a word to anyone
try:
    while True:
        count(comm)
except oxccl.Error as error:
    right = right and error.code == oxccl.ncclResult_t.ncclRemoteError
    lost = error.peer
right = right and lost == comm.size - 1
with comm.shrink([lost]) as rest:
    comm.abort()
    right = right and count(rest) == comm.size - 1
verdict(right, comm.rank, comm.size, "count of those who are left")
