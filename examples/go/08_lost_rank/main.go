// The last rank vanishes; the others learn which one it was and go on without it:
// oxccl run -n 4 ./08_lost_rank
package main

import (
	"context"
	"errors"
	"log"
	"os"

	. "examples/internal/example"
	"oxccl"
)

// count is the number of ranks by an all-reduce.
func count(comm *oxccl.Comm) (int, error) {
	x := []int32{1}
	err := oxccl.AllReduce(context.Background(), comm, x, x, oxccl.Sum)
	return int(x[0]), err
}

func main() {
	ctx := context.Background()
	comm := Must(oxccl.InitEnv(ctx))
	rank, size := comm.Rank(), comm.Size()
	if size < 2 {
		log.Fatal("start it on two ranks or more")
	}
	right := Must(count(comm)) == size
	if rank == size-1 {
		os.Exit(0) // without a word to anyone
	}
	var err error
	for err == nil {
		_, err = count(comm)
	}
	var failure *oxccl.Error
	right = right && errors.As(err, &failure) && errors.Is(err, oxccl.RemoteError) && failure.Peer == size-1
	if !right {
		log.Fatal(err)
	}
	rest := Must(comm.Shrink(ctx, []int{failure.Peer}))
	defer rest.Close()
	Check(comm.Abort())
	right = Must(count(rest)) == size-1
	Verdict(right, rank, size, "count of those who are left")
}
