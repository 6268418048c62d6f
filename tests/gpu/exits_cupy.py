"""CuPy's NCCL: under mpirun a rank per process, otherwise all GPUs in one thread. Ends without
destroying anything: that is left to the interpreter."""

import os

import cupy
from cupy.cuda import nccl

if "OMPI_COMM_WORLD_SIZE" in os.environ:
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    rank, size = world.Get_rank(), world.Get_size()
    cupy.cuda.Device(rank % cupy.cuda.runtime.getDeviceCount()).use()
    uid = world.bcast(nccl.get_unique_id() if rank == 0 else None)
    comm = nccl.NcclCommunicator(size, uid, rank)
    x = cupy.ones(1 << 20, dtype=cupy.float32)
    stream = cupy.cuda.get_current_stream()
    comm.allReduce(x.data.ptr, x.data.ptr, x.size, nccl.NCCL_FLOAT32, nccl.NCCL_SUM, stream.ptr)
    assert float(x[0]) == size
else:
    gpus = cupy.cuda.runtime.getDeviceCount()
    comms = nccl.NcclCommunicator.initAll(list(range(gpus)))
    data, streams = [], []
    for gpu in range(gpus):
        with cupy.cuda.Device(gpu):
            data.append(cupy.ones(1 << 20, dtype=cupy.float32))
            streams.append(cupy.cuda.Stream(non_blocking=True))
    nccl.groupStart()
    for gpu, comm in enumerate(comms):
        with cupy.cuda.Device(gpu):
            x = data[gpu]
            comm.allReduce(
                x.data.ptr, x.data.ptr, x.size, nccl.NCCL_FLOAT32, nccl.NCCL_SUM, streams[gpu].ptr
            )
    nccl.groupEnd()
    for gpu in range(gpus):
        with cupy.cuda.Device(gpu):
            streams[gpu].synchronize()
            assert float(data[gpu][0]) == gpus
