// Buffers that the other ranks may read and write in place: from Alloc, and registered.
// oxccl run -n 4 ./07_registered
package main

import (
	"context"

	. "examples/internal/example"
	"oxccl"
)

const each = 1 << 16

func main() {
	comm := Must(oxccl.InitEnv(context.Background()))
	defer comm.Close()
	on := Must(oxccl.NewStream())
	defer on.Close()
	rank, size := comm.Rank(), comm.Size()
	x := Must(oxccl.Alloc[int32](size * each))
	defer x.Close()
	registration := Must(oxccl.Register(comm, x)) // once, for all calls to come
	defer registration.Close()
	part := x.Part(rank*each, (rank+1)*each)
	own, whole := make([]int32, each), make([]int32, size*each)
	for i := range own {
		own[i] = int32(rank*each + i)
	}
	Check(oxccl.CopyIn(part, own, on))
	Check(oxccl.AllGatherAsync(comm, part, x, on)) // in place: this rank's part lies where it belongs
	Check(oxccl.CopyOut(whole, x, on))
	right := true
	for i, got := range whole {
		right = right && got == int32(i)
	}
	Verdict(right, rank, size, "gathered numbers")
}
