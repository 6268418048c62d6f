"""PyTorch on two GPUs; the processes end as a user's do: with and without destroying the group."""

import os
import sys

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def run(rank, size, destroys):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29517")
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", rank=rank, world_size=size)
    x = torch.ones(1 << 20, device="cuda")
    dist.all_reduce(x)
    torch.cuda.synchronize()
    assert x[0].item() == size
    if destroys:
        dist.destroy_process_group()


if __name__ == "__main__":
    for destroys in (True, False):
        mp.spawn(run, args=(2, destroys), nprocs=2)
    sys.exit(0)
