// Go's side of binding-overhead.
package main

import (
	"context"
	"fmt"
	"log"
	"sort"
	"time"

	"oxccl"
)

const batches, calls = 300, 500

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

func measure(name string, call, drain func() error) {
	ns := make([]float64, batches)
	for b := range ns {
		start := time.Now()
		for i := 0; i < calls; i++ {
			if err := call(); err != nil {
				log.Fatal(err)
			}
		}
		ns[b] = float64(time.Since(start).Nanoseconds()) / calls
		check(drain())
	}
	sort.Float64s(ns)
	fmt.Printf("%s %.1f %.1f\n", name, ns[0], ns[batches/2])
}

func main() {
	ctx := context.Background()
	comm, err := oxccl.InitEnv(ctx)
	check(err)
	stream, err := oxccl.NewStream()
	check(err)
	x, err := oxccl.Alloc[float32](2)
	check(err)
	measure("queued", func() error { return oxccl.AllReduceAsync(comm, x, x, oxccl.Sum, stream) }, stream.Synchronize)
	slice := make([]float32, 2)
	measure("waited", func() error { return oxccl.AllReduce(ctx, comm, slice, slice, oxccl.Sum) }, stream.Synchronize)
	check(stream.Close())
	check(comm.Close())
	check(x.Close())
}
