"""PyTorch on OxCCL instead of NCCL: all collectives and types, graphs, messages, subgroups, DDP.

Run with LD_PRELOAD of OxCCL's libnccl.so.2: `torch_nccl.py [RANKS]`, one GPU per rank.
"""

import ctypes
import os
import sys
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def check(name, got, want):
    if not torch.equal(got, want):
        raise AssertionError(f"{name}: {got.flatten()[:4]} instead of {want.flatten()[:4]}")


def only_oxccl():
    """PyTorch may load its own NCCL by path beside it, but what it calls is OxCCL's."""

    class Info(ctypes.Structure):
        _fields_ = [("file", ctypes.c_char_p), ("base", ctypes.c_void_p),
                    ("name", ctypes.c_char_p), ("at", ctypes.c_void_p)]

    program = ctypes.CDLL(None)
    for name in ("ncclCommInitRankConfig", "ncclAllReduce", "ncclSend", "ncclGroupEnd"):
        info = Info()
        assert program.dladdr(ctypes.cast(getattr(program, name), ctypes.c_void_p), ctypes.byref(info))
        assert b"oxccl" in info.file, f"{name} is that of {info.file}"


def graph_first(rank, size, device):
    """The very first collective of the group is captured."""
    x = torch.full((1000,), float(rank + 1), device=device)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        dist.all_reduce(x)
    x.fill_(float(rank + 1))
    graph.replay()
    torch.cuda.synchronize()
    check("captured all_reduce", x, torch.full_like(x, size * (size + 1) / 2))


def collectives(rank, size, device):
    types = [torch.int8, torch.uint8, torch.int32, torch.int64, torch.float16, torch.bfloat16,
             torch.float32, torch.float64]
    total = size * (size + 1) // 2
    for dtype in types:
        for count in (1, 1000, 300_000):
            mine = torch.full((count,), rank + 1, dtype=dtype, device=device)
            x = mine.clone()
            dist.all_reduce(x)
            check(f"all_reduce {dtype}", x, torch.full_like(x, total))
            x = mine.clone()
            dist.all_reduce(x, op=dist.ReduceOp.MAX)
            check(f"all_reduce max {dtype}", x, torch.full_like(x, size))
            x = mine.clone()
            dist.broadcast(x, src=size - 1)
            check(f"broadcast {dtype}", x, torch.full_like(x, size))
            x = mine.clone()
            dist.reduce(x, dst=0)
            if rank == 0:
                check(f"reduce {dtype}", x, torch.full_like(x, total))
            parts = [torch.empty_like(mine) for _ in range(size)]
            dist.all_gather(parts, mine)
            for peer, part in enumerate(parts):
                check(f"all_gather {dtype}", part, torch.full_like(part, peer + 1))
            out = torch.empty_like(mine)
            dist.reduce_scatter(out, [mine.clone() for _ in range(size)])
            check(f"reduce_scatter {dtype}", out, torch.full_like(out, total))
            outs = [torch.empty_like(mine) for _ in range(size)]
            dist.all_to_all(outs, [mine.clone() for _ in range(size)])
            for peer, part in enumerate(outs):
                check(f"all_to_all {dtype}", part, torch.full_like(part, peer + 1))
    x = torch.full((8,), float(rank), device=device)
    gathered = [torch.empty_like(x) for _ in range(size)] if rank == 0 else None
    dist.gather(x, gathered, dst=0)
    if rank == 0:
        for peer, part in enumerate(gathered):
            check("gather", part, torch.full_like(part, float(peer)))
    y = torch.empty_like(x)
    dist.scatter(y, [torch.full_like(x, float(p)) for p in range(size)] if rank == 0 else None, src=0)
    check("scatter", y, torch.full_like(y, float(rank)))
    dist.barrier()


def messages(rank, size, device):
    out = torch.empty(500_000, device=device)
    mine = torch.full_like(out, float(rank))
    for _ in range(5):
        requests = dist.batch_isend_irecv([
            dist.P2POp(dist.isend, mine, (rank + 1) % size),
            dist.P2POp(dist.irecv, out, (rank - 1) % size),
        ])
        for request in requests:
            request.wait()
    check("batch_isend_irecv", out, torch.full_like(out, float((rank - 1) % size)))


def subgroups(rank, size, device):
    groups = [dist.new_group(list(range(size))[i::2]) for i in range(2)]
    own = groups[rank % 2]
    x = torch.full((100,), float(rank), device=device)
    dist.all_reduce(x, group=own)
    check("subgroup", x, torch.full_like(x, float(sum(range(rank % 2, size, 2)))))


def ddp(rank, size, device):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(20, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1)).to(device)
    model = torch.nn.parallel.DistributedDataParallel(model, device_ids=[device.index])
    optimiser = torch.optim.SGD(model.parameters(), lr=0.05)
    torch.manual_seed(rank + 1)
    x = torch.randn(256, 20, device=device)
    y = x.sum(dim=1, keepdim=True)
    first = last = None
    for _ in range(60):
        optimiser.zero_grad()
        loss = torch.nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimiser.step()
        last = loss.item()
        first = first if first is not None else last
    assert last < first / 4, f"it does not learn: {first} to {last}"
    flat = torch.cat([p.detach().flatten() for p in model.parameters()])
    all_flat = [torch.empty_like(flat) for _ in range(size)]
    dist.all_gather(all_flat, flat)
    for other in all_flat:
        check("DDP weights", other, flat)


def run(rank, size):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=os.environ.get("PORT", "29511"))
    device = torch.device("cuda", rank)
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", rank=rank, world_size=size, device_id=device)
    only_oxccl()
    for step in (graph_first, collectives, messages, subgroups, ddp):
        start = time.time()
        step(rank, size, device)
        torch.cuda.synchronize()
        if rank == 0:
            print(f"| PyTorch: {step.__name__:<12} | passed | {time.time() - start:6.1f} s |", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    ranks = int(sys.argv[1]) if len(sys.argv) > 1 else torch.cuda.device_count()
    mp.spawn(run, args=(ranks,), nprocs=ranks)
