// One process drives many devices, a goroutine for each: all GPUs, or four devices of the host.
// ./02_devices
package main

import (
	"context"
	"sync"

	. "examples/internal/example"
	"oxccl"
)

// sum adds up what n devices have, of which this is one.
func sum(device, n int, id oxccl.UniqueID) (int64, error) {
	comm := Must(oxccl.Init(context.Background(), n, id, device))
	defer comm.Close()
	on := Must(oxccl.NewStream())
	defer on.Close()
	x := Must(oxccl.Alloc[int64](1))
	defer x.Close()
	Check(oxccl.CopyIn(x, []int64{int64(device + 1)}, on))
	Check(oxccl.AllReduceAsync(comm, x, x, oxccl.Sum, on))
	out := make([]int64, 1)
	err := oxccl.CopyOut(out, x, on)
	return out[0], err
}

func main() {
	kind, _, err := oxccl.CurrentDevice()
	Check(err)
	devices := 4
	if kind == oxccl.DeviceCuda {
		devices = Must(oxccl.DeviceCount(kind))
	}
	id := Must(oxccl.NewUniqueID())
	var all sync.WaitGroup
	sums := make([]int64, devices)
	for i := range sums {
		i := i
		all.Add(1)
		go func() {
			defer all.Done()
			Check(oxccl.OnDevice(kind, i, func() (err error) {
				sums[i], err = sum(i, devices, id)
				return err
			}))
		}()
	}
	all.Wait()
	right := true
	for _, sum := range sums {
		right = right && sum == int64(devices*(devices+1)/2)
	}
	Verdict(right, 0, 1, "sums on all devices")
}
