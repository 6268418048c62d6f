"""PyTorch tensors and the backend of torch.distributed on four ranks, started by `oxccl run`.

Plain Python: `oxccl run -n 4 python test_torch.py FOLDER BACKEND`, with an empty folder for the ranks to meet.
"""

import os
import sys
from datetime import timedelta

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import AllgatherOptions

import oxccl
import oxccl.torch
from oxccl._arrays import NAMES

RANKS = 4
TYPES = [getattr(torch, name) for name in NAMES]


def same(got, expected):
    expected = torch.as_tensor(expected).to(got.dtype)
    assert torch.equal(got.view(torch.uint8), expected.contiguous().view(torch.uint8)), (got, expected)


def expect_error(kind, text, call):
    try:
        call()
    except kind as error:
        assert text in str(error), error
        return
    raise AssertionError(f"no error; expected {text}")


def full(value, count, dtype):
    return torch.full((count,), value, dtype=torch.float32).to(dtype)


def plain(comm):
    """Tensors as arguments of a communicator."""
    for dtype in TYPES:
        own = full(comm.rank + 1, 5, dtype)
        same(comm.all_reduce(own, full(0, 5, dtype)), full(10, 5, dtype))
        same(comm.all_gather(own[:1].clone(), full(0, 4, dtype)), torch.arange(1, 5).float())
    shared = oxccl.torch.empty((2, 3), torch.bfloat16)
    shared += comm.rank
    same(comm.all_reduce(shared), torch.full((2, 3), 6.0))
    with comm.multiplied_sum(torch.tensor(comm.rank + 1.0)) as op:
        same(comm.all_reduce(torch.ones(2), op=op), torch.full((2,), 10.0))
    expect_error(ValueError, "not contiguous", lambda: comm.all_reduce(torch.ones(4, 4).t()))
    expect_error(TypeError, "complex64", lambda: comm.all_reduce(torch.ones(1, dtype=torch.complex64)))
    expect_error(TypeError, "on meta", lambda: comm.all_reduce(torch.ones(1, device="meta")))


def collectives(rank, dtype, count):
    own, blocks = full(rank + 1, count, dtype), torch.arange(1, 5).repeat_interleave(count)
    for op, result in (("SUM", 10), ("PRODUCT", 24), ("MAX", 4), ("MIN", 1)):
        x = own.clone()
        dist.all_reduce(x, getattr(dist.ReduceOp, op))
        same(x, full(result, count, dtype))
    x = own.clone()
    dist.broadcast(x, 2)
    same(x, full(3, count, dtype))
    x = own.clone()
    dist.reduce(x, 3)
    same(x, full(10 if rank == 3 else rank + 1, count, dtype))
    # Tensors of several allocations, in no order of addresses, and views of one.
    for out in ([full(0, count, dtype) for _ in range(RANKS)][::-1], list(full(0, 4 * count, dtype).chunk(4))):
        dist.all_gather(out, own)
        same(torch.cat(out), blocks)
    wide = full(0, 4 * count, dtype)
    dist.all_gather_into_tensor(wide, own)
    same(wide, blocks)
    x = full(0, count, dtype)
    dist.reduce_scatter_tensor(x, blocks.to(dtype))
    same(x, full(4 * (rank + 1), count, dtype))
    dist.reduce_scatter(x, list(blocks.to(dtype).chunk(4)))
    same(x, full(4 * (rank + 1), count, dtype))
    dist.all_to_all_single(wide, full(rank + 1, 4 * count, dtype))
    same(wide, blocks)
    out = [full(0, count, dtype) for _ in range(RANKS)]
    dist.all_to_all(out, [own] * RANKS)
    same(torch.cat(out), blocks)
    out = [full(0, count, dtype) for _ in range(RANKS)]
    dist.gather(own, out if rank == 1 else None, 1)
    same(torch.cat(out), blocks if rank == 1 else blocks * 0)
    dist.scatter(x, out if rank == 1 else None, 1)
    same(x, own)


def uneven(rank):
    """Parts of different lengths."""
    out = [torch.zeros(r + 1, 2) for r in range(RANKS)]
    dist.all_gather(out, torch.full((rank + 1, 2), float(rank)))
    assert all((part == r).all() for r, part in enumerate(out))
    send, recv = [rank + 1] * RANKS, [1, 2, 3, 4]
    out = torch.zeros(10, 2)
    dist.all_to_all_single(out, torch.full((sum(send), 2), float(rank)), recv, send)
    same(out[:, 0].contiguous(), torch.arange(4).repeat_interleave(torch.tensor(recv)))
    lists = [torch.zeros(n) for n in recv]
    dist.all_to_all(lists, [torch.full((rank + 1,), float(rank))] * RANKS)
    same(torch.cat(lists), torch.arange(4).repeat_interleave(torch.tensor(recv)))


def other_operations(rank):
    x = torch.tensor([rank == 2, False])
    dist.all_reduce(x)
    assert x.tolist() == [True, False]
    x = torch.tensor([rank + 1.0])
    dist.all_reduce(x, dist.ReduceOp.AVG)
    same(x, [2.5])
    dist.all_reduce(x, dist._make_nccl_premul_sum(2.0))
    same(x, [20.0])
    x = torch.ones(2, dtype=torch.complex64)
    dist.all_reduce(x)
    assert x.tolist() == [4, 4]
    objects = [None] * RANKS
    dist.all_gather_object(objects, {"rank": rank})
    assert objects == [{"rank": r} for r in range(RANKS)]
    with dist._coalescing_manager():
        pair = torch.ones(3), torch.ones(70_000)
        for tensor in pair:
            dist.all_reduce(tensor)
    for tensor in pair:
        same(tensor, torch.full_like(tensor, 4))
    pg = dist.distributed_c10d._get_default_group()
    lists = [[torch.zeros(2), torch.zeros(3)] for _ in range(RANKS)]
    own = [torch.full((2,), float(rank)), torch.full((3,), float(-rank))]
    pg.allgather_coalesced(lists, own, AllgatherOptions()).wait()
    for r, (first, second) in enumerate(lists):
        same(first, [r, r])
        same(second, [-r, -r, -r])
    # As PyTorch's own groups are called: without options.
    pg.allreduce([pair[0]]).wait()
    same(pair[0], torch.full((3,), 16.0))
    pg.barrier().wait()
    # Sparse: every rank has two elements, one of them where all have one; rank 1 has none.
    def rows(r, count=2):
        places, values = torch.tensor([[0, r + 1]])[:, :count], torch.tensor([[1.0, 2.0], [3.0, 4.0]])[:count]
        return torch.sparse_coo_tensor(places, values * (r + 1), (6, 2))

    sparse, dense = rows(rank, 0 if rank == 1 else 2), sum(rows(r).to_dense() for r in (0, 2, 3))
    works = [pg.allreduce([part]) for part in (sparse.clone(), sparse)]
    same(works[0].get_future().wait()[0].to_dense(), dense)
    same(sparse.to_dense(), dense)
    # Nothing is reduced and gathered, too.
    dist.all_reduce(torch.empty(0))
    dist.all_reduce(rows(rank, 0))
    dist.all_gather([torch.empty(0)] * RANKS, torch.empty(0))
    dist.all_gather_into_tensor(torch.empty(0), torch.empty(0))
    dist.all_to_all_single(torch.empty(0), torch.empty(0), [0] * RANKS, [0] * RANKS)
    dist.barrier()


def asynchronous(rank):
    works = [(dist.all_reduce(x, async_op=True), x) for x in torch.ones(6, 50_000)]
    # In any order; the tensors are kept by nobody else.
    for work, x in works[::-1]:
        assert work.wait()
        same(x, torch.full_like(x, 4))
    dropped = dist.all_reduce(torch.ones(100_000), async_op=True)
    del dropped, works
    future = dist.all_reduce(torch.ones(3), async_op=True).get_future()
    same(future.wait()[0], torch.full((3,), 4.0))
    dist.barrier(async_op=True).wait()


def messages(rank):
    after, before = (rank + 1) % RANKS, (rank - 1) % RANKS
    # All receive before they send, and with tags in another order than they are sent.
    for count in (1, 300_000):
        first, second = torch.zeros(count), torch.zeros(count)
        one, two = dist.irecv(second, before, tag=2), dist.irecv(first, before, tag=1)
        dist.send(torch.full((count,), rank + 1.0), after, tag=1)
        dist.send(torch.full((count,), rank + 2.0), after, tag=2)
        two.wait()
        one.wait()
        same(first, torch.full((count,), before + 1.0))
        same(second, torch.full((count,), before + 2.0))
    out, got = torch.full((7,), rank), torch.zeros(7, dtype=torch.int64)
    operations = [dist.P2POp(dist.irecv, got, before), dist.P2POp(dist.isend, out, after)]
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    same(got, torch.full((7,), before))
    # A message does not stand in the way of a collective.
    late = dist.irecv(got, before)
    dist.barrier()
    dist.isend(out, after).wait()
    same(late.get_future().wait()[0], torch.full((7,), before))


def groups(rank):
    half, _ = dist.new_subgroups(2)
    x = torch.tensor([rank])
    dist.all_reduce(x, group=half)
    same(x, [1 if rank < 2 else 5])
    dist.destroy_process_group(half)


def training(rank):
    """Every rank has a fourth of the data; the model ends as if one had all."""
    generator = torch.Generator().manual_seed(1)
    data = torch.randn(64, 8, generator=generator)
    target = data @ torch.randn(8, 1, generator=generator)

    def train(wrap, data, target):
        torch.manual_seed(rank)
        model = torch.nn.Sequential(torch.nn.Linear(8, 300), torch.nn.Tanh(), torch.nn.Linear(300, 1))
        dist.broadcast(torch.nn.utils.parameters_to_vector(model.parameters()), 0)
        model = wrap(model)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        for _ in range(20):
            optimizer.zero_grad()
            loss = torch.nn.functional.mse_loss(model(data), target)
            loss.backward()
            optimizer.step()
        return model, loss

    def together(model):
        return torch.nn.parallel.DistributedDataParallel(model, bucket_cap_mb=0.001)

    model, _ = train(together, data[rank::RANKS], target[rank::RANKS])
    flat = torch.nn.utils.parameters_to_vector(model.parameters()).detach()
    everyone = [torch.zeros_like(flat) for _ in range(RANKS)]
    dist.all_gather(everyone, flat)
    assert all(torch.equal(flat, other) for other in everyone)
    with torch.no_grad():
        assert torch.nn.functional.mse_loss(model(data), target) < 0.2 * target.square().mean()


def errors(rank):
    x = torch.zeros(4)
    expect_error(ValueError, "not contiguous", lambda: dist.all_reduce(torch.ones(4, 4).t()))
    expect_error(TypeError, "int16", lambda: dist.all_reduce(torch.ones(1, dtype=torch.int16)))
    expect_error(ValueError, "BAND", lambda: dist.all_reduce(x, dist.ReduceOp.BAND))
    expect_error(ValueError, "average", lambda: dist.all_reduce(torch.tensor([True]), dist.ReduceOp.AVG))
    expect_error(ValueError, "parts of [1, 1, 1, 2]", lambda: dist.all_to_all_single(x, x, [1] * 4, [1, 1, 1, 2]))
    pg = dist.distributed_c10d._get_default_group()
    pending = dist.irecv(x, (rank + 1) % RANKS, tag=9)
    for kind in (TimeoutError, RuntimeError):
        expect_error(kind, "Timed out within 0:00:00.01", lambda: pending.wait(timedelta(milliseconds=10)))
    sparse = torch.eye(rank + 1).to_sparse()
    expect_error(ValueError, "sums a tensor of [", lambda: dist.all_reduce(sparse))
    expect_error(ValueError, "MAX", lambda: dist.all_reduce(sparse, dist.ReduceOp.MAX))
    if rank == 0:
        group = dist.new_group([0, 1], timeout=timedelta(seconds=1), use_local_synchronization=True)
        expect_error(TimeoutError, "Timed out within 0:00:01", lambda: dist.barrier(group))
    elif rank == 1:
        dist.new_group([0, 1], timeout=timedelta(seconds=1), use_local_synchronization=True)
    dist.barrier()
    # All hear of a call that differs, in calls that wait and in those that do not.
    dist.barrier()
    work = dist.all_reduce(torch.zeros(4 if rank else 5), async_op=True)
    expect_error(RuntimeError, "all_reduce", work.wait)
    expect_error(RuntimeError, "all_reduce", lambda: dist.all_reduce(x))
    pg.abort()


def main():
    rank = int(os.environ["OXCCL_RANK"])
    with oxccl.Comm() as comm:
        plain(comm)
    backend = sys.argv[2]
    store = dist.FileStore(os.path.join(sys.argv[1], "store"), RANKS)
    dist.init_process_group(backend, store=store, rank=rank, world_size=RANKS, timeout=timedelta(seconds=120))
    for dtype in TYPES:
        for count in (1, 3000):
            collectives(rank, dtype, count)
    for test in (uneven, other_operations, asynchronous, messages, groups, training, errors):
        test(rank)
    print("PyTorch is right")


main()
