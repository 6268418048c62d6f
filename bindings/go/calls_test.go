package oxccl

import (
	"errors"
	"math"
	"testing"
)

// countsPerRank runs every collective with counts: rank r has r + 1 elements, each the number r.
func countsPerRank[T Element](t *testing.T, c *Comm, number func(int) T) {
	rank, none := c.Rank(), number(5)
	counts, displs := []int{1, 2, 3, 4}, []int{0, 1, 3, 6}
	fill := func(n, value int) []T { return filled(n, number(value)) }
	var all []T
	for r, count := range counts {
		all = append(all, fill(count, r)...)
	}
	own, out, part := fill(rank+1, rank), filled(10, none), filled(rank+1, none)
	ok(t, AllGatherv(background, c, own, out, counts, displs))
	expect(t, "AllGatherv", out, all...)
	out = filled(10, none)
	if rank == 2 {
		ok(t, Gatherv(background, c, own, out, counts, displs, 2))
		expect(t, "Gatherv", out, all...)
		ok(t, Scatterv(background, c, all, counts, displs, part, 2))
	} else {
		ok(t, Gatherv(background, c, own, out, nil, nil, 2))
		expect(t, "Gatherv", out, filled(10, none)...)
		ok(t, Scatterv(background, c, nil, nil, nil, part, 2))
	}
	expect(t, "Scatterv", part, own...)
	ok(t, ReduceScatterv(background, c, all, part, counts, Sum))
	expect(t, "ReduceScatterv", part, fill(rank+1, rank*ranks)...)
	// Every rank sends r + 1 elements to rank r.
	mine, at := make([]int, ranks), make([]int, ranks)
	to, expected := filled(ranks*(rank+1), none), []T{}
	for r := range mine {
		mine[r], at[r] = rank+1, r*(rank+1)
		expected = append(expected, fill(rank+1, r)...)
	}
	ok(t, AllToAllv(background, c, fill(10, rank), counts, displs, to, mine, at))
	expect(t, "AllToAllv", to, expected...)
}

func TestErrorsOfCounts(t *testing.T) {
	onRanks(t, func(t *testing.T, c *Comm) {
		counts, displs, own, all := []int{1, 2, 3, 4}, []int{0, 1, 3, 6}, make([]int32, c.Rank()+1), make([]int32, 10)
		expectError(t, AllGatherv(background, c, own, all, counts, []int{0, 1, 3, 7}), InvalidArgument,
			"AllGatherv: the part of rank 3 in recv is 4 elements from element 7 on; recv has 10 elements")
		expectError(t, AllGatherv(background, c, own, all, counts[1:], displs), InvalidArgument,
			"counts of recv has 3 elements; expected 4")
		expectError(t, ReduceScatterv(background, c, all, own, []int{-1, 1, 5, 5}, Sum), InvalidArgument,
			"the part of rank 0 in send is -1 elements")
		expectError(t, ReduceScatterv(background, c, all[1:], own, counts, Sum), InvalidArgument, "rank 3 in send")
		expectError(t, AllToAllv(background, c, all, counts, displs[1:], all, counts, displs), InvalidArgument,
			"displs of send has 3 elements; expected 4")
		ok(t, c.Close())
	})
}

func TestWindows(t *testing.T) {
	onRanks(t, func(t *testing.T, c *Comm) {
		s, err := NewStream()
		ok(t, err)
		x, err := Alloc[int64](ranks + 1)
		ok(t, err)
		w, err := OpenWindow(c, x.Part(0, ranks))
		ok(t, err)
		// Each rank writes its number into its place in all windows.
		own := x.Part(ranks, ranks+1)
		own.Slice()[0] = int64(c.Rank() + 1)
		var signals []Signals
		for r := 0; r < ranks; r++ {
			ok(t, w.Put(own, r, c.Rank(), 3, s))
			ok(t, c.Signal(r, 4, s))
			signals = append(signals, Signals{From: r, Signal: 3, Count: 1}, Signals{From: r, Signal: 4, Count: 1})
		}
		ok(t, c.WaitSignals(s, signals...))
		ok(t, s.Synchronize())
		expect(t, "Put", x.Slice()[:ranks], 1, 2, 3, 4)
		expectError(t, w.Put(own, 0, ranks, 0, s), InvalidArgument, "32")
		for _, at := range []int{-1, math.MinInt, math.MaxInt} {
			expectError(t, w.Put(own, 0, at, 0, s), InvalidArgument, "at is")
		}
		expectError(t, w.Put(own, ranks, 0, 0, s), InvalidArgument, "peer")
		expectError(t, c.Signal(0, 16, s), InvalidArgument, "sigIdx")
		expectError(t, c.WaitSignals(s, Signals{From: -1, Count: 1}), InvalidArgument, "peer")
		// Nobody writes any more.
		barrier := []int32{1}
		ok(t, AllReduce(background, c, barrier, barrier, Sum))
		for _, close := range []func() error{w.Close, s.Close, c.Close, x.Close} {
			ok(t, close())
		}
	})
}

// The first two ranks are joined by the others again.
func TestGrow(t *testing.T) {
	onRanks(t, func(t *testing.T, c *Comm) {
		rank := c.Rank()
		half, err := c.Split(background, rank/2, rank)
		ok(t, err)
		var id UniqueID
		if rank == 0 {
			id, err = half.GrowID()
			ok(t, err)
		}
		ok(t, Broadcast(background, c, id[:], 0))
		var grown *Comm
		switch rank {
		case 0:
			grown, err = half.Grow(background, ranks, &id)
		case 1:
			grown, err = half.Grow(background, ranks, nil)
		default:
			grown, err = Join(background, ranks, id, rank)
		}
		ok(t, err)
		x := []int32{int32(grown.Rank())}
		ok(t, AllReduce(background, grown, x, x, Sum))
		expect(t, "Grow", x, 6)
		for _, c := range []*Comm{grown, half, c} {
			ok(t, c.Close())
		}
	})
}

func TestSuspendAndEstimate(t *testing.T) {
	onRanks(t, func(t *testing.T, c *Comm) {
		x := make([]float32, 1000)
		ok(t, AllReduce(background, c, x, x, Sum))
		ok(t, c.Suspend())
		expectError(t, AllReduce(background, c, x, x, Sum), InvalidUsage, "suspended")
		if suspended, err := c.MemStat(StatGpuMemSuspended); suspended != 1 || err != nil {
			t.Error(suspended, err)
		}
		ok(t, c.Resume())
		time, err := Estimate(func() error {
			return AllReduceAsync(c, view(x), view(x), Sum, &Stream{})
		})
		if time <= 0 || err != nil {
			t.Error(time, err)
		}
		_, err = Estimate(func() error { return BroadcastAsync(c, view(x), -1, &Stream{}) })
		expectError(t, err, InvalidArgument, "root")
		if _, err := c.Device(); err != nil {
			t.Error(err)
		}
		large, err := Alloc[float32](1 << 20)
		ok(t, err)
		before, err := c.InPlace()
		ok(t, err)
		ok(t, AllReduceAsync(c, large, large, Sum, c.stream))
		ok(t, c.stream.Synchronize())
		if after, err := c.InPlace(); after != before+1 || err != nil {
			t.Errorf("%d collectives in place became %d, %v", before, after, err)
		}
		if count, err := c.ByCopyEngines(); count != 0 || err != nil {
			t.Errorf("host memory has no copy engines: %d, %v", count, err)
		}
		ok(t, large.Close())
		ok(t, SetLogLevel(2))
		ok(t, AllReduce(background, c, x, x, Sum))
		ok(t, c.Close())
	})
}

func TestUpdateOfGraphsAndClear(t *testing.T) {
	onRanks(t, func(t *testing.T, c *Comm) {
		s, err := NewStream()
		ok(t, err)
		x, err := Alloc[float64](2)
		ok(t, err)
		on := func(b Buffer[float64]) func() error {
			return func() error { return AllReduceAsync(c, b, b, Sum, s) }
		}
		g, err := Capture(s, on(x.Part(0, 1)))
		ok(t, err)
		ok(t, g.Update(s, on(x.Part(1, 2))))
		expectError(t, g.Update(s, on(Buffer[float64]{n: 1})), InvalidArgument, "sendbuff")
		expectError(t, g.Update(s, func() error { return BroadcastAsync(c, x, 0, s) }), InvalidArgument,
			"argument graph is a graph whose node 0 is broadcast of double; expected all_reduce of double, sum, as before")
		copy(x.Slice(), []float64{1, 1})
		ok(t, g.Launch(s))
		ok(t, s.Synchronize())
		expect(t, "Update", x.Slice(), 1, ranks)
		ok(t, Clear(x.Part(1, 2), s))
		ok(t, s.Synchronize())
		expect(t, "Clear", x.Slice(), 1, 0)
		for _, close := range []func() error{g.Close, s.Close, c.Close, x.Close} {
			ok(t, close())
		}
	})
}

// Rank 0 waits for a message that nobody sends, until another goroutine ends that.
func TestEndsByAnotherGoroutine(t *testing.T) {
	for _, end := range []func(*Comm) error{(*Comm).Abort, (*Comm).Revoke} {
		onRanks(t, func(t *testing.T, c *Comm) {
			x := make([]float32, 1)
			if c.Rank() == 0 {
				ok(t, AllReduce(background, c, x, x, Sum))
				ended := make(chan error)
				go func() { ended <- end(c) }()
				err := Recv(background, c, x, 1)
				if !errors.Is(err, InvalidUsage) && !errors.Is(err, InvalidArgument) {
					t.Errorf("%v; expected that the communicator was ended", err)
				}
				ok(t, <-ended)
				if err := AllReduce(background, c, x, x, Sum); err == nil {
					t.Error("it takes another call")
				}
			} else {
				// Either of them may hear of it.
				err := AllReduce(background, c, x, x, Sum)
				if err == nil {
					err = Recv(background, c, x, 0)
				}
				expectError(t, err, RemoteError, "rank 0")
			}
			ok(t, c.Abort())
			ok(t, c.Close())
		})
	}
}
