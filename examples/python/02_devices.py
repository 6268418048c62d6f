"""One process drives many devices, a thread for each: python3 02_devices.py"""
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import oxccl
from verdict import verdict

N = 4
unique_id = oxccl.UniqueId()


def sum_on(device):
    with oxccl.on_device(device), oxccl.Comm(N, unique_id, device) as comm:
        return int(comm.all_reduce(np.array([device + 1]))[0])


with ThreadPoolExecutor(N) as threads:
    sums = list(threads.map(sum_on, range(N)))
verdict(sums == [N * (N + 1) // 2] * N, 0, 1, "sums on all devices")
