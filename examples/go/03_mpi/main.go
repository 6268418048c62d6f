// Ranks and sizes come from mpirun; MPI itself is not needed: mpirun -n 4 ./03_mpi
package main

import (
	"context"
	"os"
	"strconv"

	. "examples/internal/example"
	"oxccl"
)

func main() {
	ctx := context.Background()
	comm := Must(oxccl.InitEnv(ctx))
	defer comm.Close()
	rank, size := comm.Rank(), comm.Size()
	// As mpirun of Open MPI numbers them.
	told := Must(strconv.Atoi(os.Getenv("OMPI_COMM_WORLD_RANK")))
	ranks := make([]int32, size)
	Check(oxccl.AllGather(ctx, comm, []int32{int32(told)}, ranks))
	right := told == rank
	for r, got := range ranks {
		right = right && int(got) == r
	}
	Verdict(right, rank, size, "ranks")
}
