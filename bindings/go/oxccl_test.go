package oxccl

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"math/bits"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

const ranks = 4

var background = context.Background()

// onRanks calls f on four ranks: goroutines of this process, or this process where a launcher
// started it as one of them.
func onRanks(t *testing.T, f func(t *testing.T, c *Comm)) {
	t.Helper()
	if os.Getenv("OXCCL_RANK") != "" {
		c, err := inEnv()
		ok(t, err)
		part, err := c.Split(background, 0, 0)
		ok(t, err)
		f(t, part)
		return
	}
	id, err := NewUniqueID()
	ok(t, err)
	var all sync.WaitGroup
	for r := 0; r < ranks; r++ {
		all.Add(1)
		go func(r int) {
			defer all.Done()
			c, err := Init(background, ranks, id, r)
			if err != nil {
				t.Error(err)
				return
			}
			f(t, c)
		}(r)
	}
	all.Wait()
}

var inEnv = sync.OnceValues(func() (*Comm, error) { return InitEnv(background) })

// ok ends the goroutine on errors; the communicator that stays behind would wait for it for ever.
func ok(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		panic(err)
	}
}

func expect[T comparable](t *testing.T, what string, got []T, expected ...T) {
	t.Helper()
	if !slices.Equal(got, expected) {
		t.Errorf("%s: %v; expected %v", what, got, expected)
	}
}

func expectError(t *testing.T, err error, code Result, text string) {
	t.Helper()
	if !errors.Is(err, code) || !strings.Contains(err.Error(), text) {
		t.Errorf("%v; expected %v: %s", err, code, text)
	}
}

// whole is a number in a type that Go has.
func whole[T ~int8 | ~uint8 | ~int32 | ~uint32 | ~int64 | ~uint64 | ~int | ~uint | ~float32 | ~float64](n int) T {
	return T(n)
}

// bitsOf is a small number, 0 or more, as a float with so many bits of mantissa and such a bias.
// The leading one, which floats leave out, counts up the exponent.
func bitsOf(n, mantissa, bias int) uint16 {
	if n == 0 {
		return 0
	}
	exponent := bits.Len(uint(n)) - 1
	return uint16((exponent+bias-1)<<mantissa + n<<mantissa>>exponent)
}

func filled[T Element](n int, value T) []T {
	all := make([]T, n)
	for i := range all {
		all[i] = value
	}
	return all
}

// collectives runs every collective on slices, of numbers that a function makes: rank r has r + 1,
// so that the place that data came from shows.
func collectives[T Element](t *testing.T, c *Comm, number func(int) T) {
	const n = 3
	full := func(value int) []T { return filled(n, number(value)) }
	var blocks []T
	for r := 0; r < ranks; r++ {
		blocks = append(blocks, full(r+1)...)
	}
	rank := c.Rank()
	own, out, wide := full(rank+1), make([]T, n), make([]T, n*ranks)

	// Their sum, product, maximum, minimum and mean are five numbers.
	weight := full([ranks]int{1, 2, 3, 2}[rank])
	for _, reduction := range []struct {
		op       RedOp
		expected int
	}{{Sum, 8}, {Prod, 12}, {Max, 3}, {Min, 1}, {Avg, 2}} {
		what := fmt.Sprintf("AllReduce of %T by %d", own, reduction.op)
		ok(t, AllReduce(background, c, weight, out, reduction.op))
		expect(t, what, out, full(reduction.expected)...)
	}
	copy(out, own)
	ok(t, Broadcast(background, c, out, 2))
	expect(t, "Broadcast", out, full(3)...)
	clear(out)
	ok(t, Reduce(background, c, weight, out, Prod, 3))
	if rank == 3 {
		expect(t, "Reduce", out, full(12)...)
	} else {
		expect(t, "Reduce", out, full(0)...)
	}
	ok(t, AllGather(background, c, own, wide))
	expect(t, "AllGather", wide, blocks...)
	ok(t, ReduceScatter(background, c, blocks, out, Sum))
	expect(t, "ReduceScatter", out, full(ranks*(rank+1))...)
	clear(wide)
	ok(t, AllToAll(background, c, filled(n*ranks, own[0]), wide))
	expect(t, "AllToAll", wide, blocks...)
	clear(wide)
	ok(t, Gather(background, c, own, wide, 1))
	if rank == 1 {
		expect(t, "Gather", wide, blocks...)
	} else {
		expect(t, "Gather", wide, make([]T, n*ranks)...)
	}
	ok(t, Scatter(background, c, wide, out, 1))
	expect(t, "Scatter", out, own...)
	switch rank {
	case 0:
		ok(t, Send(background, c, own, 1))
	case 1:
		ok(t, Recv(background, c, out, 0))
		expect(t, "Recv", out, full(1)...)
	}
}

// As large that no send is complete before its receive.
func TestSendRecv(t *testing.T) {
	onRanks(t, func(t *testing.T, c *Comm) {
		next, last := (c.Rank()+1)%ranks, (c.Rank()+ranks-1)%ranks
		x, y := make([]int64, 2<<20), make([]int64, 2<<20)
		x[0], x[len(x)-1] = int64(c.Rank()+1), int64(c.Rank()+1)
		ok(t, SendRecv(background, c, x, next, y, last))
		expect(t, "SendRecv", []int64{y[0], y[1], y[len(y)-1]}, int64(last+1), 0, int64(last+1))
		expectError(t, SendRecv(background, c, x, ranks, y, last), InvalidArgument, "peer")
		expectError(t, Group(func() error {
			return SendRecv(background, c, x, next, y, last)
		}), InvalidUsage, "cannot wait in a Group")
		ok(t, AllReduce(background, c, x[:1], y[:1], Sum))
		expect(t, "AllReduce", y[:1], 10)
		ok(t, c.Close())
		if text := c.String(); !strings.HasSuffix(text, ", closed") {
			t.Error(text)
		}
	})
}

type named int32

func TestCollectives(t *testing.T) {
	onRanks(t, func(t *testing.T, c *Comm) {
		of(t, c, whole[int8])
		of(t, c, whole[uint8])
		of(t, c, whole[int32])
		of(t, c, whole[uint32])
		of(t, c, whole[int64])
		of(t, c, whole[uint64])
		of(t, c, whole[int])
		of(t, c, whole[uint])
		of(t, c, whole[named])
		of(t, c, func(n int) F16 { return F16{bitsOf(n, 10, 15)} })
		of(t, c, whole[float32])
		of(t, c, whole[float64])
		of(t, c, func(n int) BF16 { return BF16{bitsOf(n, 7, 127)} })
		of(t, c, func(n int) F8E4M3 { return F8E4M3{uint8(bitsOf(n, 3, 7))} })
		of(t, c, func(n int) F8E5M2 { return F8E5M2{uint8(bitsOf(n, 2, 15))} })
		ok(t, c.Close())
	})
}

func of[T Element](t *testing.T, c *Comm, number func(int) T) {
	collectives(t, c, number)
	countsPerRank(t, c, number)
}

func TestBuffersGroupsGraphsAndEvents(t *testing.T) {
	onRanks(t, func(t *testing.T, c *Comm) {
		s, err := NewStream()
		ok(t, err)
		x, err := Alloc[float32](ranks)
		ok(t, err)
		registered, err := Register(c, x)
		ok(t, err)
		g, err := Capture(s, func() error { return AllReduceAsync(c, x, x, Sum, s) })
		ok(t, err)
		for i := range x.Slice() {
			x.Slice()[i] = 1
		}
		begin, err := NewEvent()
		ok(t, err)
		end, err := NewEvent()
		ok(t, err)
		ok(t, begin.Record(s))
		for i := 0; i < 3; i++ {
			ok(t, g.Launch(s))
		}
		ok(t, end.Record(s))
		ok(t, s.Synchronize())
		expect(t, "Launch", x.Slice(), 64, 64, 64, 64)
		if time, err := end.Since(begin); err != nil || time < 0 {
			t.Error(time, err)
		}
		if come, err := end.Query(); !come || err != nil {
			t.Error(come, err)
		}
		_, err = Capture(s, func() error { return AllReduceAsync(c, x, x.Part(0, 1), Sum, s) })
		expectError(t, err, InvalidArgument, "AllReduce: recv has 1 elements; expected 4")
		err = AllReduceAsync(c, x.Part(0, 0), x, Sum, s)
		expectError(t, err, InvalidArgument, "AllReduce: send has 0 elements; expected 4")
		if text := fmt.Sprint(c); text != fmt.Sprintf("oxccl.Comm, rank %d of %d", c.Rank(), c.Size()) {
			t.Error(text)
		}

		// To the next, from the one before, all at once.
		rank := c.Rank()
		ok(t, Group(func() error {
			if err := RecvAsync(c, x.Part(1, 2), (rank+ranks-1)%ranks, s); err != nil {
				return err
			}
			x.Slice()[0] = float32(rank)
			return SendAsync(c, x.Part(0, 1), (rank+1)%ranks, s)
		}))
		other, err := NewStream()
		ok(t, err)
		ok(t, end.Record(s))
		ok(t, other.Wait(end))
		y, err := Alloc[float32](1)
		ok(t, err)
		ok(t, Copy(y, x.Part(1, 2), other))
		if finished, err := other.SynchronizeFor(time.Minute); !finished || err != nil {
			t.Error(finished, err)
		}
		expect(t, "Group", y.Slice(), float32((rank+ranks-1)%ranks))

		op, err := PreMulSum(c, float32(rank+1))
		ok(t, err)
		y.Slice()[0] = 1
		ok(t, AllReduce(background, c, y.Slice(), y.Slice(), op))
		expect(t, "PreMulSum", y.Slice(), 10)
		ok(t, c.CloseRedOp(op))
		for _, close := range []func() error{registered.Close, g.Close, begin.Close, end.Close, s.Close, other.Close, c.Close, x.Close, y.Close} {
			ok(t, close())
		}
	})
}

func TestSplitAndShrink(t *testing.T) {
	onRanks(t, func(t *testing.T, c *Comm) {
		color := c.Rank() % 2
		if c.Rank() == 3 {
			color = NcclSplitNocolor
		}
		part, err := c.Split(background, color, -c.Rank())
		ok(t, err)
		if c.Rank() == 3 {
			if part != nil {
				t.Error("a communicator of no color")
			}
		} else {
			if expected := 2 - c.Rank()%2; part.Size() != expected {
				t.Errorf("%d ranks; expected %d", part.Size(), expected)
			}
			ok(t, part.Close())
		}
		if c.Rank() != 2 {
			fewer, err := c.Shrink(background, []int{2})
			ok(t, err)
			x := []int32{1}
			ok(t, AllReduce(background, fewer, x, x, Sum))
			expect(t, "Shrink", x, 3)
			ok(t, fewer.Close())
		}
		ok(t, c.Abort())
		ok(t, c.Close())
	})
}

func TestErrors(t *testing.T) {
	onRanks(t, func(t *testing.T, c *Comm) {
		x := make([]float32, 3)
		expectError(t, Broadcast(background, c, x, 4), InvalidArgument, "root")
		expectError(t, AllGather(background, c, x, x), InvalidArgument, "recv has 3 elements; expected 12")
		expectError(t, AllReduce(background, c, x, x, RedOp(77)), InvalidArgument, "op")
		// None of these is taken for 0.
		for _, wide := range []int{1 << 32, -1 << 32, 1 << 40} {
			expectError(t, Broadcast(background, c, x, wide), InvalidArgument, "root")
			expectError(t, Gather(background, c, x, nil, wide), InvalidArgument, "root")
			expectError(t, Gatherv(background, c, x, nil, nil, nil, wide), InvalidArgument, "root")
			told := fmt.Sprintf(" is %d; expected a number of 32 bits", wide)
			expectError(t, Scatter(background, c, nil, x, wide), InvalidArgument, "Scatter: root"+told)
			expectError(t, Send(background, c, x, wide), InvalidArgument, "Send: to"+told)
			expectError(t, Recv(background, c, x, wide), InvalidArgument, "Recv: from"+told)
			expectError(t, c.Signal(wide, 0, c.stream), InvalidArgument, "Signal: to"+told)
			expectError(t, c.Signal(0, wide, c.stream), InvalidArgument, "Signal: signal"+told)
			expectError(t, c.WaitSignals(c.stream, Signals{From: wide, Count: 1}), InvalidArgument, "From"+told)
			_, err := c.Split(background, wide, 0)
			expectError(t, err, InvalidArgument, "Split: color"+told)
			_, err = c.Split(background, 0, wide)
			expectError(t, err, InvalidArgument, "Split: key"+told)
			_, err = c.Shrink(background, []int{wide})
			expectError(t, err, InvalidArgument, "a rank of exclude"+told)
			_, err = c.Grow(background, wide, nil)
			expectError(t, err, InvalidArgument, "Grow: size"+told)
			id, err := NewUniqueID()
			ok(t, err)
			for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%d"} {
				if text := fmt.Sprintf(verb, id); text != "UniqueID(secret)" {
					t.Error(verb, text)
				}
			}
			if text := fmt.Sprintf("%x", id); text != hex.EncodeToString(id[:]) {
				t.Error(text)
			}
			_, err = Init(background, wide, id, 0)
			expectError(t, err, InvalidArgument, "Init: size"+told)
			_, err = Init(background, 1, id, wide)
			expectError(t, err, InvalidArgument, "Init: rank"+told)
			_, err = Join(background, 1, id, wide)
			expectError(t, err, InvalidArgument, "Join: rank"+told)
			err = OnDevice(DeviceHost, wide, func() error { return nil })
			expectError(t, err, InvalidArgument, "OnDevice: index"+told)
			expectError(t, SetLogLevel(wide), InvalidArgument, "SetLogLevel: level"+told)
		}
		// The data of a slice would not be there yet, also for other goroutines that are in no group.
		expectError(t, Group(func() error {
			outside := make(chan error)
			go func() { outside <- AllReduce(background, c, x, x, Sum) }()
			if err := <-outside; err != nil {
				return err
			}
			return Group(func() error { return AllReduce(background, c, x, x, Sum) })
		}), InvalidUsage, "cannot wait in a Group")
		ok(t, AllReduce(background, c, x, x, Sum))
		freed, err := Alloc[float32](4)
		ok(t, err)
		ok(t, freed.Close())
		ok(t, freed.Close())
		expectError(t, AllReduceAsync(c, freed, freed, Sum, &Stream{}), InvalidArgument, "null")
		if freed.Slice() != nil {
			t.Error("a buffer that was freed has elements")
		}
		_, err = Alloc[float32](-1)
		expectError(t, err, InvalidArgument, "n is -1")
		ok(t, c.Err())
		expectError(t, Group(func() error {
			_, err := InitEnv(background)
			return err
		}), InvalidUsage, "cannot be made in a Group")
		ok(t, c.Close())
		ctx, cancel := context.WithCancel(background)
		defer cancel()
		for i, call := range callsOn(ctx, c, x) {
			if err := call(); err == nil {
				t.Errorf("call %d of a closed communicator does not fail", i)
			} else {
				expectError(t, err, InvalidUsage, "the communicator was closed or aborted")
			}
		}
		ok(t, c.Close())
	})
}

// callsOn are calls on a communicator of any kind.
func callsOn(ctx context.Context, c *Comm, x []float32) []func() error {
	s, buffer, counts := &Stream{}, view(x), make([]int, ranks)
	made := func(_ *Comm, err error) error { return err }
	told := func(_ uint64, err error) error { return err }
	return []func() error{
		func() error { return AllReduceAsync(c, buffer, buffer, Sum, s) },
		func() error { return AllReduce(ctx, c, x, x, Sum) },
		func() error { return Broadcast(ctx, c, x, 0) },
		func() error { return Recv(background, c, x[:0], 0) },
		func() error { return SendAsync(c, buffer, 0, s) },
		func() error { return AllGathervAsync(c, buffer, buffer, counts, counts, s) },
		func() error { return c.Signal(0, 0, s) },
		func() error { return c.WaitSignals(s) },
		func() error { return made(c.Split(ctx, 0, 0)) },
		func() error { return made(c.Shrink(ctx, []int{1})) },
		func() error { return made(c.Grow(ctx, ranks+1, nil)) },
		func() error { _, err := c.GrowID(); return err },
		func() error { _, err := c.Device(); return err },
		func() error { _, err := OpenWindow(c, buffer); return err },
		func() error { _, err := Register(c, buffer); return err },
		func() error { _, err := PreMulSum(c, float32(1)); return err },
		func() error { return c.SetTimeout(time.Second) },
		func() error { return told(c.MemStat(StatGpuMemSuspended)) },
		func() error { return told(c.InPlace()) },
		func() error { return told(c.ByCopyEngines()) },
		c.Err, c.Revoke, c.Suspend, c.Resume,
	}
}

// A context that ends before its rank calls, or while it waits, ends the communicator on all ranks.
func TestCancel(t *testing.T) {
	const wait = 50 * time.Millisecond
	for _, end := range []struct {
		context  func() (context.Context, context.CancelFunc)
		expected error
		text     string
		// The rank that the others name: the one that gave up, or the one that it waited for.
		peer int
	}{
		{func() (context.Context, context.CancelFunc) {
			ctx, cancel := context.WithCancel(background)
			cancel()
			return ctx, cancel
		}, context.Canceled, "context canceled", 0},
		{func() (context.Context, context.CancelFunc) {
			ctx, cancel := context.WithCancel(background)
			time.AfterFunc(wait, cancel)
			return ctx, cancel
		}, context.Canceled, "context canceled", 0},
		{func() (context.Context, context.CancelFunc) {
			return context.WithTimeout(background, wait)
		}, context.DeadlineExceeded, "rank 0 waited ", 1},
	} {
		onRanks(t, func(t *testing.T, c *Comm) {
			x := make([]float32, 1)
			if c.Rank() == 0 {
				ok(t, AllReduce(background, c, x, x, Sum))
				ctx, cancel := end.context()
				defer cancel()
				err := Recv(ctx, c, x, 1)
				if !errors.Is(err, end.expected) || !strings.Contains(fmt.Sprint(err), end.text) {
					t.Errorf("%v; expected %v and %q", err, end.expected, end.text)
				}
				// Nothing of the call is left, not even its failure.
				if done, err := c.stream.Query(); !done || err != nil {
					t.Error(done, err)
				}
			} else {
				// Either of them may hear of it.
				err := AllReduce(background, c, x, x, Sum)
				if err == nil {
					err = Recv(background, c, x, 0)
				}
				expectError(t, err, RemoteError, "rank 0")
				var failure *Error
				if !errors.As(err, &failure) || failure.Peer != end.peer {
					t.Errorf("%v does not name rank %d", err, end.peer)
				}
			}
			ok(t, c.Close())
		})
	}
}

// A rank waits for a message that nobody sends for as long as its bound says; other communicators
// go on.
func TestTimeout(t *testing.T) {
	onRanks(t, func(t *testing.T, c *Comm) {
		part, err := c.Split(background, 0, 0)
		ok(t, err)
		if c.Rank() == 0 {
			ok(t, part.SetTimeout(50*time.Millisecond))
			err := Recv(background, part, make([]float32, 1), 1)
			expectError(t, err, RemoteError, "ms for rank 1")
			var failure *Error
			if !errors.As(err, &failure) || failure.Rank != 0 || failure.Peer != 1 {
				t.Errorf("%v does not name the ranks 0 and 1", err)
			}
		}
		x := []float32{1}
		ok(t, AllReduce(background, c, x, x, Sum))
		expect(t, "AllReduce", x, 4)
		for _, end := range []func() error{part.Abort, part.Close, c.Close} {
			ok(t, end())
		}
	})
}

// Ranks that never come are waited for until the context ends.
func TestCancelCreation(t *testing.T) {
	if os.Getenv("OXCCL_RANK") != "" {
		t.Skip("about a communicator of one process")
	}
	id, err := NewUniqueID()
	ok(t, err)
	ctx, cancel := context.WithCancel(background)
	go cancel()
	if _, err := Init(ctx, 2, id, 0); !errors.Is(err, context.Canceled) {
		t.Errorf("%v; expected that it was cancelled", err)
	}
}

func TestOptions(t *testing.T) {
	onRanks(t, func(t *testing.T, c *Comm) {
		without, err := c.Split(background, 0, 0, WithNumRmaCtx(0), WithCommName("quiet"))
		ok(t, err)
		s, err := NewStream()
		ok(t, err)
		expectError(t, without.Signal(0, 0, s), InvalidArgument, "numRmaCtx")
		ok(t, without.Close())
		ok(t, s.Close())
		_, err = c.Split(background, 0, 0, WithMinCTAs(0))
		expectError(t, err, InvalidArgument, "minCTAs")
		_, err = c.Split(background, 0, 0, WithCommName("a\x00b"))
		expectError(t, err, InvalidArgument, `commName is "a\x00b"`)
		ok(t, c.Close())
	})
}

func TestInitTimeout(t *testing.T) {
	if os.Getenv("OXCCL_RANK") != "" {
		t.Skip("about a communicator of one process")
	}
	id, err := NewUniqueID()
	ok(t, err)
	_, err = Init(background, 2, id, 0, WithInitTimeout(time.Millisecond))
	expectError(t, err, SystemError, "1 of 2 ranks did not come")
	// So it is with a deadline, which counts where it is the earlier one.
	for _, limit := range []time.Duration{-1, time.Hour} {
		id, err = NewUniqueID()
		ok(t, err)
		ctx, cancel := context.WithTimeout(background, 20*time.Millisecond)
		_, err = Init(ctx, 3, id, 1, WithInitTimeout(limit))
		cancel()
		expectError(t, err, SystemError, "2 of 3 ranks did not come")
		expectError(t, err, SystemError, "ranks 0, 2;")
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%v; expected that it is the deadline's", err)
		}
	}
	// Others have other bounds.
	id, err = NewUniqueID()
	ok(t, err)
	alone, err := Init(background, 1, id, 0)
	ok(t, err)
	ok(t, alone.Close())
}

func TestDevices(t *testing.T) {
	if n, err := DeviceCount(DeviceHost); n < 1 || err != nil {
		t.Error(n, err)
	}
	expectError(t, OnDevice(DeviceHost, -1, func() error { return nil }), InvalidArgument, "index")
	ok(t, OnDevice(DeviceHost, 3, func() error {
		if kind, index, err := CurrentDevice(); kind != DeviceHost || index != 3 || err != nil {
			t.Error(kind, index, err)
		}
		s, err := NewStream()
		ok(t, err)
		x, err := Alloc[int32](3)
		ok(t, err)
		ok(t, CopyIn(x, []int32{1, 2, 3}, s))
		last := make([]int32, 2)
		ok(t, CopyOut(last, x.Part(1, 3), s))
		expect(t, "CopyOut", last, 2, 3)
		expectError(t, CopyIn(x, last, s), InvalidArgument, "to has 3 elements; expected 2")
		ok(t, x.Close())
		return s.Close()
	}))
	if nccl, oxccl, err := Version(); nccl != NcclVersionCode || oxccl != OxcclVersionCode || err != nil {
		t.Error(nccl, oxccl, err)
	}
	// As if a GPU's.
	defer func() {
		if text, _ := recover().(string); !strings.Contains(text, "use CopyIn") {
			t.Errorf("%q; expected to be told of CopyIn", text)
		}
	}()
	Buffer[int32]{far: true}.Part(0, 0).Slice()
}
