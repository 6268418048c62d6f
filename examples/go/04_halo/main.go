// Heat in a rod that is cut into a piece per rank. In each step neighbours exchange the cells at
// their edges: oxccl run -n 4 ./04_halo
package main

import (
	"context"

	. "examples/internal/example"
	"oxccl"
)

const (
	cells = 64
	steps = 200
)

// initial are cells from a number on, between two of the neighbours.
func initial(from, n int) []float64 {
	u := make([]float64, n+2)
	for i := 1; i <= n; i++ {
		u[i] = float64((from + i) % 5)
		if (from+i)%17 == 0 {
			u[i] = 100
		}
	}
	return u
}

func step(u []float64) {
	before := u[0]
	for i := 1; i < len(u)-1; i++ {
		now := u[i]
		u[i] = now + float64(0.25*(before-2*now+u[i+1]))
		before = now
	}
}

// exchange fills the cells of the neighbours; those beyond the rod's ends stay 0.
func exchange(comm *oxccl.Comm, u []float64, edge oxccl.Buffer[float64], on *oxccl.Stream) error {
	rank := comm.Rank()
	if err := oxccl.CopyIn(edge.Part(0, 2), []float64{u[1], u[cells]}, on); err != nil {
		return err
	}
	// In a group, sends and receives wait for no order.
	err := oxccl.Group(func() error {
		for side, peer := range []int{rank - 1, rank + 1} {
			if peer < 0 || peer == comm.Size() {
				continue
			}
			if err := oxccl.SendAsync(comm, edge.Part(side, side+1), peer, on); err != nil {
				return err
			}
			if err := oxccl.RecvAsync(comm, edge.Part(2+side, 3+side), peer, on); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	got := make([]float64, 2)
	err = oxccl.CopyOut(got, edge.Part(2, 4), on)
	u[0], u[cells+1] = got[0], got[1]
	return err
}

func main() {
	comm := Must(oxccl.InitEnv(context.Background()))
	defer comm.Close()
	on := Must(oxccl.NewStream())
	defer on.Close()
	edge := Must(oxccl.Alloc[float64](4)) // to the left and right, and from them
	defer edge.Close()
	rank, size := comm.Rank(), comm.Size()
	u, whole := initial(rank*cells, cells), initial(0, size*cells)
	for t := 0; t < steps; t++ {
		Check(exchange(comm, u, edge, on))
		step(u)
		step(whole)
	}
	right := true
	for i := 1; i <= cells; i++ {
		right = right && u[i] == whole[rank*cells+i]
	}
	Verdict(right, rank, size, "heat")
}
