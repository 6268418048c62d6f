"""Times PyTorch's calls on plain tensors, outside of graphs, with NVIDIA's NCCL and with OxCCL in its
place. Usage: torch_eager.py LIB [--json FILE], where LIB is OxCCL's libnccl.so.2; a process per GPU.

The ranks are started once with and once without LD_PRELOAD of LIB, in two rounds. Each figure is the
mean of the rounds and ranks, and each of those is the median of ten batches of 20 calls, between events.
Every call is checked once per size on integers that are computed here. Prints a table; a ratio above 1
says that OxCCL is faster. The file has a line for each row, for `oxccl perf --compare OLD NEW`."""

import argparse
import ctypes
import json
import math
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time

OPERATIONS = ["all_reduce", "all_gather_into_tensor", "reduce_scatter_tensor", "all_to_all_single",
              "broadcast", "reduce", "batch_isend_irecv"]
SIZES = [8 << 3 * step for step in range(9)] + [256 << 20]
ROUNDS, BATCHES, CALLS, WARMUP = 2, 10, 20, 10
LIMIT_S = 300
PARENT = "TORCH_EAGER_PARENT"


def data(torch, rank, count):
    """Integers that differ from rank to rank and from place to place; their sums are exact."""
    index = torch.arange(count, device="cuda", dtype=torch.int64)
    return ((index * 7919 + rank * 104729) % 2001 - 1000).to(torch.float32)


def prepare(torch, dist, operation, rank, n, own):
    """Returns a function that calls the operation once, and the tensor in which its result will be."""
    part = own.numel() // n
    out = torch.full_like(own[:part] if operation == "reduce_scatter_tensor" else own, -1)
    if operation == "all_reduce":
        return lambda: dist.all_reduce(own), own
    if operation == "all_gather_into_tensor":
        mine = own[rank * part:(rank + 1) * part].clone()
        return lambda: dist.all_gather_into_tensor(out, mine), out
    if operation == "reduce_scatter_tensor":
        return lambda: dist.reduce_scatter_tensor(out, own), out
    if operation == "all_to_all_single":
        return lambda: dist.all_to_all_single(out, own), out
    if operation == "broadcast":
        return lambda: dist.broadcast(own, n - 1), own
    if operation == "reduce":
        return lambda: dist.reduce(own, 0), own

    def ring():
        pairs = [dist.P2POp(dist.isend, own, (rank + 1) % n), dist.P2POp(dist.irecv, out, (rank - 1) % n)]
        for work in dist.batch_isend_irecv(pairs):
            work.wait()

    return ring, out


def expected(torch, operation, rank, n, count):
    """Returns what has to be in the result of the operation; None for what nobody promises."""
    part = slice(rank * (count // n), (rank + 1) * (count // n))
    if operation == "reduce" and rank != 0:
        return None
    if operation in ("all_reduce", "reduce", "reduce_scatter_tensor"):
        total = sum(data(torch, peer, count) for peer in range(n))
        return total[part] if operation == "reduce_scatter_tensor" else total
    if operation == "all_gather_into_tensor":
        return torch.cat([data(torch, peer, count).view(n, -1)[peer] for peer in range(n)])
    if operation == "all_to_all_single":
        return torch.cat([data(torch, peer, count)[part] for peer in range(n)])
    return data(torch, n - 1 if operation == "broadcast" else (rank - 1) % n, count)


def timed(torch, dist, call):
    """Returns the median time of a call in µs."""
    for _ in range(WARMUP):
        call()
    times = []
    for _ in range(BATCHES):
        dist.barrier()
        torch.cuda.synchronize()
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        for _ in range(CALLS):
            call()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end) * 1e3 / CALLS)
    return statistics.median(times)


def rank_main():
    # No rank outlives the parent, even if that is killed.
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    if os.getppid() != int(os.environ[PARENT]):
        raise SystemExit("the parent is gone")
    import torch
    import torch.distributed as dist

    if hasattr(ctypes.CDLL(None), "oxcclDeviceSet") != bool(os.environ.get("LD_PRELOAD")):
        raise SystemExit("LD_PRELOAD did not put OxCCL in NCCL's place, or it is there without")
    rank, n = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", device_id=torch.device("cuda", rank))
    rows = []
    for size in SIZES:
        # Whole elements for every rank.
        count = max(size // 4 // n, 1) * n
        for operation in OPERATIONS:
            own = data(torch, rank, count)
            call, result = prepare(torch, dist, operation, rank, n, own)
            call()
            want = expected(torch, operation, rank, n, count)
            if want is not None and not torch.equal(result, want):
                raise SystemExit(f"rank {rank}: {operation} of {size} bytes is wrong")
            # Sums of zeros stay what they are.
            own.zero_()
            rows.append((operation, count * 4, timed(torch, dist, call)))
    about = {"device_name": torch.cuda.get_device_name(), "torch": torch.__version__,
             "version": ".".join(map(str, torch.cuda.nccl.version()))}
    with open(os.environ["TORCH_EAGER_RESULT"], "w") as file:
        json.dump({"about": about, "rows": rows}, file)
    dist.destroy_process_group()


def finish(ranks, outputs):
    """Waits for all ranks; if one fails or time is over, kills the others and ends this program."""
    end = time.monotonic() + LIMIT_S
    try:
        while any(rank.poll() is None for rank in ranks):
            failed = [i for i, rank in enumerate(ranks) if rank.poll() not in (None, 0)]
            if failed or time.monotonic() > end:
                break
            time.sleep(0.1)
    finally:
        for rank in ranks:
            if rank.poll() is None:
                rank.kill()
        codes = [rank.wait() for rank in ranks]
    if any(codes):
        for output in outputs:
            output.seek(0)
            print(output.read()[-4000:], file=sys.stderr)
        raise SystemExit(f"the ranks ended with {codes}, at most {LIMIT_S} s after their start")


def job(n, library):
    """Runs the ranks, with a library in NCCL's place if one is given; returns what they measured."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    variables = {"WORLD_SIZE": str(n), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
                 # The switch is not used by OxCCL, and NCCL beside it must not either.
                 "NCCL_NVLS_ENABLE": "0", PARENT: str(os.getpid())}
    environment = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    if library:
        variables["LD_PRELOAD"] = library
    with tempfile.TemporaryDirectory() as folder:
        results = [os.path.join(folder, f"result-{rank}") for rank in range(n)]
        outputs = [open(os.path.join(folder, f"output-{rank}"), "w+") for rank in range(n)]
        ranks = []
        try:
            for rank in range(n):
                env = dict(environment, **variables, RANK=str(rank), LOCAL_RANK=str(rank),
                           TORCH_EAGER_RESULT=results[rank])
                ranks.append(subprocess.Popen([sys.executable, os.path.abspath(__file__)], env=env,
                                              stdin=subprocess.DEVNULL, stdout=outputs[rank],
                                              stderr=subprocess.STDOUT))
        finally:
            finish(ranks, outputs)
        measured = []
        for result in results:
            with open(result) as file:
                measured.append(json.load(file))
        return measured


def means(jobs):
    """Returns the mean over rounds and ranks by operation and size."""
    times = {}
    for measured in jobs:
        for rank in measured:
            for operation, size, us in rank["rows"]:
                times.setdefault((operation, size), []).append(us)
    return {case: statistics.mean(all_us) for case, all_us in times.items()}


def main():
    arguments = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    arguments.add_argument("lib", metavar="LIB", help="OxCCL's libnccl.so.2")
    arguments.add_argument("--json", metavar="FILE", help="write a document with the rows to this file")
    given = arguments.parse_args()
    library = os.path.abspath(given.lib)
    if not os.path.exists(library):
        raise SystemExit(f"{library}: no such file; expected OxCCL's libnccl.so.2")
    import torch

    n = torch.cuda.device_count()
    if n < 2:
        raise SystemExit(f"{n} GPUs; expected two or more, for a rank on each")
    theirs, ours = [], []
    for number in range(ROUNDS):
        print(f"# round {number + 1} of {ROUNDS}", file=sys.stderr, flush=True)
        theirs.append(job(n, None))
        ours.append(job(n, library))
    about, nccl = ours[0][0]["about"], theirs[0][0]["about"]["version"]
    print(f"{n} × {about['device_name']}, PyTorch {about['torch']}, NCCL {nccl}: every result is right")
    print("| operation | bytes | NCCL, µs | OxCCL, µs | ratio |\n|---|---|---|---|---|")
    theirs, ours = means(theirs), means(ours)
    date = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    rows = []
    for operation, size in sorted(ours, key=lambda case: (OPERATIONS.index(case[0]), case[1])):
        own, other = ours[operation, size], theirs[operation, size]
        print(f"| {operation} | {size} | {other:.2f} | {own:.2f} | {other / own:.2f} |")
        rows.append({"collective": operation, "bytes": size, "time_us": own, "nccl_us": other, "ratio": other / own})
    for operation in OPERATIONS:
        logs = [math.log(row["ratio"]) for row in rows if row["collective"] == operation]
        print(f"geometric mean of the ratio, {operation}: {math.exp(statistics.mean(logs)):.2f}")
    if given.json:
        with open(given.json, "w") as file:
            json.dump({"lib": library, "date": date, **about, "nccl_version": nccl, "device": "cuda", "ranks": n,
                       "rows": rows}, file)


if os.environ.get(PARENT):
    rank_main()
else:
    main()
