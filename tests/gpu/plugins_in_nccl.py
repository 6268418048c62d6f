"""Our plugins inside NVIDIA's NCCL, through PyTorch, a process per GPU: the TCP transport between GPUs
that are hosts of their own, timed beside NCCL's own sockets; the tuner that reads a table, and the
profiler that writes a trace, on one host. Usage: plugins_in_nccl.py FOLDER [OUTPUT.json], where FOLDER
has the installed libraries. Every collective is checked on random integers."""

import json
import os
import subprocess
import sys
import tempfile
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


def job(n, port, variables):
    """Runs the ranks with the variables that a function gives for each of them; returns the result and
    the output of the first one."""
    ranks = []
    for rank in range(n):
        env = dict(os.environ, RANK=str(rank), WORLD_SIZE=str(n), MASTER_ADDR="127.0.0.1",
                   MASTER_PORT=str(29500 + os.getpid() % 1000 + port), NCCL_SOCKET_IFNAME="lo",
                   NCCL_NVLS_ENABLE="0", NCCL_DEBUG="INFO", PLUGINS_IN_NCCL_RANK="1", **variables(rank))
        ranks.append(subprocess.Popen([sys.executable, __file__], env=env, text=True,
                                      stdout=subprocess.PIPE, stderr=subprocess.STDOUT))
    outputs = [rank.communicate(timeout=300)[0] for rank in ranks]
    for rank, output in zip(ranks, outputs):
        if rank.returncode != 0:
            raise SystemExit(output[-6000:])
    result = next(line for line in outputs[0].splitlines() if line.startswith("RESULT "))
    return json.loads(result[len("RESULT "):]), outputs[0].splitlines()


def network(n, plugin):
    def variables(rank):
        net = {"NCCL_NET_PLUGIN": plugin} if plugin else {"NCCL_NET_PLUGIN": "none", "NCCL_NET": "Socket"}
        return dict(net, NCCL_HOSTID=f"host-{rank}", NCCL_DEBUG_SUBSYS="INIT,NET")

    result, lines = job(n, 1 if plugin else 0, variables)
    return result, [line for line in lines if "Using network" in line or "NET/Plugin" in line]


def tuned_and_profiled(n, folder):
    """A rule that NCCL would not choose, and a trace of all that it did."""
    with tempfile.TemporaryDirectory() as scratch:
        table = os.path.join(scratch, "rules.csv")
        with open(table, "w") as file:
            file.write("allreduce,0,1048576,tree,ll,-1,1,-1\n")
        given = {"NCCL_TUNER_PLUGIN": os.path.join(folder, "libnccl-tuner-oxccl-table.so"),
                 "NCCL_TUNER_CONFIG_FILE": table, "NCCL_DEBUG_SUBSYS": "INIT,TUNING",
                 "NCCL_PROFILER_PLUGIN": os.path.join(folder, "libnccl-profiler-oxccl-trace.so"),
                 "NCCL_PROFILE_DUMP_FILE": os.path.join(scratch, "trace")}
        _, lines = job(n, 2, lambda rank: given)
        chosen = [line for line in lines if "AllReduce: " in line]
        small = [line for line in chosen if int(line.split("AllReduce: ")[1].split()[0]) <= 1 << 20]
        if not small or not all("TREE" in line and "proto LL " in line for line in small):
            raise SystemExit("the rule is not taken:\n" + "\n".join(chosen + lines[:60]))
        traces = [name for name in os.listdir(scratch) if name.endswith(".json")]
        pages = [name for name in os.listdir(scratch) if name.endswith(".html")]
        if len(traces) != n or len(pages) != n:
            raise SystemExit("files are missing: " + ", ".join(os.listdir(scratch)))
        for name in traces:
            with open(os.path.join(scratch, name)) as file:
                events = json.load(file)["traceEvents"]
            count = lambda phase, of: sum(e["ph"] == phase and e["name"].startswith(of) for e in events)
            begun, ended = count("b", ""), count("e", "")
            found = {of: count("b", of) for of in ("AllReduce", "AllGather", "Send", "Recv", "channel")}
            if begun != ended or not all(found.values()):
                raise SystemExit(f"{name}: {begun} begins, {ended} ends, {found}")
        print(f"tuner: {len(small)} all_reduces by the rule, such as {small[0].split('] ', 1)[-1]}")
        print(f"profiler: {len(events)} events in a trace, of them {found}")


def main():
    import torch

    n, folder = torch.cuda.device_count(), os.path.abspath(sys.argv[1])
    tuned_and_profiled(n, folder)
    ours, used = network(n, os.path.join(folder, "libnccl-net-oxccl.so"))
    if not any("OxCCL-TCP" in line for line in used):
        raise SystemExit("the plugin is not used:\n" + "\n".join(used))
    theirs, _ = network(n, None)
    print("\n".join(sorted({line.split("] ", 1)[-1] for line in used})))
    print(f"NCCL {ours['nccl']}, {n} GPUs, each a host: every collective is right")
    print("| all_reduce, bytes | plugin, us | NCCL's sockets, us | ratio |\n|---|---|---|---|")
    for size in SIZES:
        own, other = (side["all_reduce_us"][str(size)] for side in (ours, theirs))
        print(f"| {size} | {own:.1f} | {other:.1f} | {other / own:.2f} |")
    if len(sys.argv) > 2:
        with open(sys.argv[2], "w") as file:
            json.dump({"plugin": ours, "sockets": theirs}, file, indent=1)


if os.environ.get("PLUGINS_IN_NCCL_RANK"):
    rank_main()
else:
    main()
