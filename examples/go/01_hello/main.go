// The sum of all ranks' numbers, on every rank: oxccl run -n 4 ./01_hello
package main

import (
	"context"

	. "examples/internal/example"
	"oxccl"
)

func main() {
	ctx := context.Background()
	comm := Must(oxccl.InitEnv(ctx))
	defer comm.Close()
	rank, size := comm.Rank(), comm.Size()
	x := make([]float32, 1000)
	for i := range x {
		x[i] = float32(rank + i)
	}
	Check(oxccl.AllReduce(ctx, comm, x, x, oxccl.Sum)) // blocks; ctx could end it on all ranks
	right := true
	for i, sum := range x {
		right = right && sum == float32(size*(size-1)/2+size*i)
	}
	Verdict(right, rank, size, "sum")
}
