"""Times all-reduces through PyTorch; run it with and without LD_PRELOAD of OxCCL's libnccl.so.2.

Prints a line per size: bytes and µs, the median of ten batches.
"""

import os
import sys

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def run(rank, size):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=os.environ.get("PORT", "29513"))
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", rank=rank, world_size=size, device_id=torch.device("cuda", rank))
    bytes_ = 8
    while bytes_ <= 1 << 28:
        x = torch.zeros(bytes_ // 4, device="cuda")
        graph = torch.cuda.CUDAGraph()
        calls = 50 if bytes_ <= 1 << 20 else 10
        dist.all_reduce(x)
        torch.cuda.synchronize()
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            for _ in range(calls):
                dist.all_reduce(x)
        # Buffers of graphs are mapped in the background.
        for _ in range(30):
            graph.replay()
        torch.cuda.synchronize()
        times = []
        for _ in range(11):
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            begin.record()
            graph.replay()
            end.record()
            torch.cuda.synchronize()
            times.append(begin.elapsed_time(end) * 1e3 / calls)
        if rank == 0:
            print(f"{bytes_:>10} {sorted(times[1:])[5]:>10.2f}", flush=True)
        bytes_ *= 8
    dist.destroy_process_group()


if __name__ == "__main__":
    ranks = int(sys.argv[1]) if len(sys.argv) > 1 else torch.cuda.device_count()
    mp.spawn(run, args=(ranks,), nprocs=ranks)
