"""Our TCP transport as a plugin inside NVIDIA's NCCL, through PyTorch: a process per GPU, each a host
of its own. Usage: net_in_nccl.py PLUGIN [OUTPUT.json]. Every collective is checked on random integers,
and timed beside NCCL's own sockets."""

import json
import os
import subprocess
import sys
import time

SIZES = [8, 4096, 65536, 1 << 20, 8 << 20, 64 << 20]


def checked(torch, dist, rank, n, size):
    """Runs every collective on `size` elements and compares with sums computed here."""
    generators = [torch.Generator().manual_seed(1000 * size + r) for r in range(n)]
    inputs = [torch.randint(-1000, 1000, (n * size,), generator=g, dtype=torch.int32) for g in generators]
    own = inputs[rank].cuda()
    total = sum(inputs)

    def expect(name, got, want):
        if not torch.equal(got.cpu(), want):
            raise SystemExit(f"rank {rank}: {name} of {size} is wrong")

    out = own.clone()
    dist.all_reduce(out)
    expect("all_reduce", out, total)
    gathered = torch.full((n * n * size,), -1, dtype=torch.int32, device="cuda")
    dist.all_gather_into_tensor(gathered, own)
    expect("all_gather", gathered, torch.cat(inputs))
    part = torch.full((size,), -1, dtype=torch.int32, device="cuda")
    dist.reduce_scatter_tensor(part, own)
    expect("reduce_scatter", part, total[rank * size:(rank + 1) * size])
    out = own.clone()
    dist.broadcast(out, n - 1)
    expect("broadcast", out, inputs[n - 1])
    out = own.clone()
    dist.reduce(out, 0)
    if rank == 0:
        expect("reduce", out, total)
    out = torch.full_like(own, -1)
    dist.all_to_all_single(out, own)
    expect("all_to_all", out, torch.cat([x[rank * size:(rank + 1) * size] for x in inputs]))
    out = torch.full_like(own, -1)
    pairs = [dist.P2POp(dist.isend, own, (rank + 1) % n), dist.P2POp(dist.irecv, out, (rank - 1) % n)]
    for work in dist.batch_isend_irecv(pairs):
        work.wait()
    expect("send and receive", out, inputs[(rank - 1) % n])


def rank_main():
    import torch
    import torch.distributed as dist

    rank, n = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", device_id=torch.device("cuda", rank))
    for size in [1, 1000, 65537, 1 << 20]:
        checked(torch, dist, rank, n, size)
    rows = {}
    for size in SIZES:
        data = torch.zeros(size // 4 or 1, device="cuda")
        rounds = 200 if size <= 65536 else 20
        for _ in range(5):
            dist.all_reduce(data)
        torch.cuda.synchronize()
        dist.barrier()
        start = time.perf_counter()
        for _ in range(rounds):
            dist.all_reduce(data)
        torch.cuda.synchronize()
        rows[size] = (time.perf_counter() - start) / rounds * 1e6
    if rank == 0:
        print("RESULT " + json.dumps({"nccl": torch.cuda.nccl.version(), "all_reduce_us": rows}))
    dist.destroy_process_group()


def job(n, plugin):
    port = 29500 + os.getpid() % 1000 + (1 if plugin else 0)
    ranks = []
    for rank in range(n):
        env = dict(os.environ, RANK=str(rank), WORLD_SIZE=str(n), MASTER_ADDR="127.0.0.1",
                   MASTER_PORT=str(port), NCCL_HOSTID=f"host-{rank}", NCCL_SOCKET_IFNAME="lo",
                   NCCL_NET_PLUGIN=plugin or "none", NCCL_NET="" if plugin else "Socket",
                   NCCL_NVLS_ENABLE="0", NCCL_DEBUG="INFO", NCCL_DEBUG_SUBSYS="INIT,NET", NET_IN_NCCL_RANK="1")
        if plugin:
            del env["NCCL_NET"]
        ranks.append(subprocess.Popen([sys.executable, __file__], env=env, text=True,
                                      stdout=subprocess.PIPE, stderr=subprocess.STDOUT))
    outputs = [rank.communicate(timeout=300)[0] for rank in ranks]
    for rank, output in zip(ranks, outputs):
        if rank.returncode != 0:
            raise SystemExit(output[-6000:])
    used = [line for line in outputs[0].splitlines() if "Using network" in line or "NET/Plugin" in line]
    result = next(line for line in outputs[0].splitlines() if line.startswith("RESULT "))
    return json.loads(result[len("RESULT "):]), used


def main():
    import torch

    n = torch.cuda.device_count()
    ours, used = job(n, os.path.abspath(sys.argv[1]))
    if not any("OxCCL-TCP" in line for line in used):
        raise SystemExit("the plugin is not used:\n" + "\n".join(used))
    theirs, _ = job(n, None)
    print("\n".join(sorted({line.split("] ", 1)[-1] for line in used})))
    print(f"NCCL {ours['nccl']}, {n} GPUs, each a host: every collective is right")
    print("| all_reduce, bytes | plugin, us | NCCL's sockets, us | ratio |\n|---|---|---|---|")
    for size in SIZES:
        own, other = (side["all_reduce_us"][str(size)] for side in (ours, theirs))
        print(f"| {size} | {own:.1f} | {other:.1f} | {other / own:.2f} |")
    if len(sys.argv) > 2:
        with open(sys.argv[2], "w") as file:
            json.dump({"plugin": ours, "sockets": theirs}, file, indent=1)


if os.environ.get("NET_IN_NCCL_RANK"):
    rank_main()
else:
    main()
