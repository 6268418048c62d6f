// An all-reduce is captured once and launched many times: oxccl run -n 4 ./06_graph
package main

import (
	"context"

	. "examples/internal/example"
	"oxccl"
)

func main() {
	comm := Must(oxccl.InitEnv(context.Background()))
	defer comm.Close()
	on := Must(oxccl.NewStream())
	defer on.Close()
	x := Must(oxccl.Alloc[int64](1))
	defer x.Close()
	Check(oxccl.CopyIn(x, []int64{1}, on))
	graph := Must(oxccl.Capture(on, func() error {
		return oxccl.AllReduceAsync(comm, x, x, oxccl.Sum, on) // noted, not done
	}))
	defer graph.Close()
	power := int64(1)
	for i := 0; i < 10; i++ {
		Check(graph.Launch(on))
		power *= int64(comm.Size())
	}
	out := make([]int64, 1)
	Check(oxccl.CopyOut(out, x, on))
	Verdict(out[0] == power, comm.Rank(), comm.Size(), "ten launches")
}
