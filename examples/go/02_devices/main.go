// One process drives many devices, a goroutine for each: ./02_devices
package main

import (
	"context"
	"sync"

	. "examples/internal/example"
	"oxccl"
)

const devices = 4

func main() {
	ctx := context.Background()
	id := Must(oxccl.NewUniqueID())
	var all sync.WaitGroup
	sums := make([]int64, devices)
	for i := 0; i < devices; i++ {
		i := i
		all.Add(1)
		go func() {
			defer all.Done()
			Check(oxccl.OnDevice(oxccl.DeviceHost, i, func() error {
				comm, err := oxccl.Init(ctx, devices, id, i)
				if err != nil {
					return err
				}
				defer comm.Close()
				x := []int64{int64(i + 1)}
				err = oxccl.AllReduce(ctx, comm, x, x, oxccl.Sum)
				sums[i] = x[0]
				return err
			}))
		}()
	}
	all.Wait()
	right := true
	for _, sum := range sums {
		right = right && sum == devices*(devices+1)/2
	}
	Verdict(right, 0, 1, "sums on all devices")
}
