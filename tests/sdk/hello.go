// An all-reduce of all ranks; alone where nobody started more.
package main

import (
	"context"
	"fmt"
	"log"

	"oxccl"
)

func main() {
	ctx := context.Background()
	comm, err := oxccl.InitEnv(ctx, oxccl.WithCommName("greeting"), oxccl.WithMinCTAs(8))
	if err != nil {
		log.Fatal(err)
	}
	defer comm.Close()
	x := []float64{1, float64(comm.Rank())}
	if err := oxccl.AllReduce(ctx, comm, x, x, oxccl.Sum); err != nil {
		log.Fatal(err)
	}
	n := comm.Size()
	if x[0] != float64(n) || x[1] != float64(n*(n-1)/2) {
		log.Fatalf("%v is wrong", x)
	}
	fmt.Printf("rank %d of %d: all right\n", comm.Rank(), n)
}
