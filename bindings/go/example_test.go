package oxccl_test

import (
	"context"
	"fmt"
	"sync"

	"oxccl"
)

// must is for examples: a program handles its errors.
func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}

// Started by oxccl run -n 4 the sum is 4; alone it is 1.
func ExampleAllReduce() {
	ctx := context.Background()
	comm, err := oxccl.InitEnv(ctx)
	if err != nil {
		panic(err)
	}
	defer comm.Close()
	x := []float32{1, 1, 1}
	if err := oxccl.AllReduce(ctx, comm, x, x, oxccl.Sum); err != nil {
		panic(err)
	}
	fmt.Println(x[0] == float32(comm.Size()))
	// Output: true
}

// Two ranks as goroutines of one process.
func ExampleInit() {
	ctx := context.Background()
	id := must(oxccl.NewUniqueID())
	sums := make([][]int32, 2)
	var all sync.WaitGroup
	for rank := range sums {
		all.Add(1)
		go func(rank int) {
			defer all.Done()
			comm := must(oxccl.Init(ctx, len(sums), id, rank))
			defer comm.Close()
			sums[rank] = []int32{int32(rank), 10}
			check(oxccl.AllReduce(ctx, comm, sums[rank], sums[rank], oxccl.Sum))
		}(rank)
	}
	all.Wait()
	fmt.Println(sums)
	// Output: [[1 20] [1 20]]
}

// Every rank passes its elements on to the next one; in a group sends and receives need no order.
func ExampleGroup() {
	comm := must(oxccl.InitEnv(context.Background()))
	defer comm.Close()
	stream := must(oxccl.NewStream())
	defer stream.Close()
	x := must(oxccl.Alloc[float64](2))
	defer x.Close()
	x.Slice()[0] = 1
	next, before := (comm.Rank()+1)%comm.Size(), (comm.Rank()+comm.Size()-1)%comm.Size()
	check(oxccl.Group(func() error {
		if err := oxccl.SendAsync(comm, x.Part(0, 1), next, stream); err != nil {
			return err
		}
		return oxccl.RecvAsync(comm, x.Part(1, 2), before, stream)
	}))
	check(stream.Synchronize())
	fmt.Println(x.Slice())
	// Output: [1 1]
}

// A graph does the same calls again and again, at less cost.
func ExampleCapture() {
	comm := must(oxccl.InitEnv(context.Background()))
	defer comm.Close()
	stream := must(oxccl.NewStream())
	defer stream.Close()
	x := must(oxccl.Alloc[float32](1000))
	defer x.Close()
	graph := must(oxccl.Capture(stream, func() error {
		return oxccl.AllReduceAsync(comm, x, x, oxccl.Avg, stream)
	}))
	defer graph.Close()
	for i := range x.Slice() {
		x.Slice()[i] = 3
	}
	for step := 0; step < 10; step++ {
		check(graph.Launch(stream))
	}
	check(stream.Synchronize())
	fmt.Println(x.Slice()[999])
	// Output: 3
}

// Rank r has r + 1 elements; each gets all of them.
func ExampleAllGatherv() {
	ctx := context.Background()
	comm := must(oxccl.InitEnv(ctx))
	defer comm.Close()
	counts, displs, all := []int{}, []int{}, 0
	for r := 0; r < comm.Size(); r++ {
		counts, displs = append(counts, r+1), append(displs, all)
		all += r + 1
	}
	send, recv := make([]int64, comm.Rank()+1), make([]int64, all)
	send[0] = 7
	check(oxccl.AllGatherv(ctx, comm, send, recv, counts, displs))
	fmt.Println(recv[displs[comm.Rank()]])
	// Output: 7
}

// Every rank writes into the window of the next one, which waits for that only.
func ExampleOpenWindow() {
	comm := must(oxccl.InitEnv(context.Background()))
	defer comm.Close()
	stream := must(oxccl.NewStream())
	defer stream.Close()
	x := must(oxccl.Alloc[int32](2))
	defer x.Close()
	window := must(oxccl.OpenWindow(comm, x))
	defer window.Close()
	x.Slice()[0] = 5
	next, before := (comm.Rank()+1)%comm.Size(), (comm.Rank()+comm.Size()-1)%comm.Size()
	check(window.Put(x.Part(0, 1), next, 1, 0, stream))
	check(comm.WaitSignals(stream, oxccl.Signals{From: before, Signal: 0, Count: 1}))
	check(stream.Synchronize())
	fmt.Println(x.Slice())
	// Output: [5 5]
}
