"""Matrix products beside running all-reduces: what each takes alone, and both at once.

    torch_beside.py [RANKS [MIB]]

With LD_PRELOAD=libnccl.so.2 it measures that library, else PyTorch's NCCL. NCCL_MAX_CTAS bounds the
thread blocks. Prints one line: ms of a product of 8192 x 8192 bfloat16 and of an all-reduce of MIB
(default 64) MiB, each alone, and beside the other.
"""

import os
import sys
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

ROUNDS, PRODUCTS = 5, 40


def measure(products, reductions, compute, network):
    """Returns ms per product and per all-reduce where both streams begin together, 0 for none."""
    best = [float("inf")] * 2
    for _ in range(ROUNDS):
        torch.cuda.synchronize()
        dist.barrier()
        torch.cuda.synchronize()
        begin = torch.cuda.Event(enable_timing=True)
        ends = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
        begin.record()
        for stream in (compute, network):
            stream.wait_event(begin)
        for step in range(max(products[1], reductions[1])):
            if step < products[1]:
                with torch.cuda.stream(compute):
                    products[0]()
            if step < reductions[1]:
                with torch.cuda.stream(network):
                    reductions[0]()
        ends[0].record(compute)
        ends[1].record(network)
        torch.cuda.synchronize()
        for which, (end, count) in enumerate(zip(ends, (products[1], reductions[1]))):
            best[which] = min(best[which], begin.elapsed_time(end) / max(count, 1))
    return best


def run(rank, ranks, mib):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29533")
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", rank=rank, world_size=ranks, device_id=torch.device("cuda", rank))
    left, right, product = (
        torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in range(3)
    )
    data = torch.ones(mib << 18, device="cuda")
    compute, network = torch.cuda.Stream(), torch.cuda.Stream(priority=-1)

    def multiply():
        torch.mm(left, right, out=product)

    def reduce():
        # PyTorch's stream of collectives waits for this one, which waits for it in turn.
        dist.all_reduce(data, op=dist.ReduceOp.MAX)

    for _ in range(3):
        multiply()
        reduce()
    none = (None, 0)
    alone = measure((multiply, PRODUCTS), none, compute, network)[0]
    single = measure(none, (reduce, PRODUCTS), compute, network)[1]
    # As many all-reduces as last as long as the products do, the same number on all ranks.
    wanted = torch.tensor([PRODUCTS * alone / single], device="cuda")
    dist.all_reduce(wanted, op=dist.ReduceOp.MAX)
    count = max(int(wanted.item()), 1)
    both = measure((multiply, PRODUCTS), (reduce, count), compute, network)
    if rank == 0:
        print(
            f"product {alone:.3f} ms, all-reduce {single:.3f} ms; beside each other "
            f"{both[0]:.3f} ms ({both[0] / alone:.2f}) and {both[1]:.3f} ms ({both[1] / single:.2f})",
            flush=True,
        )
    dist.destroy_process_group()


if __name__ == "__main__":
    ranks = int(sys.argv[1]) if len(sys.argv) > 1 else torch.cuda.device_count()
    mib = int(sys.argv[2]) if len(sys.argv) > 2 else 64
    mp.spawn(run, args=(ranks, mib), nprocs=ranks)
