package oxccl

// #include "shim_gen.h"
import "C"

import (
	"context"
	"fmt"
)

// parts turns counts and displacements, in elements, into C's, and checks that every part lies
// within a buffer of n elements. The displacement of a part without elements may be anything.
func parts(c *Comm, function, argument string, n int, counts, displs []int) (*C.size_t, *C.size_t, error) {
	if len(counts) != c.size {
		return nil, nil, mismatch(function, "counts of "+argument, len(counts), c.size)
	}
	if len(displs) != c.size {
		return nil, nil, mismatch(function, "displs of "+argument, len(displs), c.size)
	}
	raw := make([]C.size_t, 2*c.size)
	for r, count := range counts {
		if count == 0 {
			continue
		}
		if displ := displs[r]; count < 0 || displ < 0 || displ > n || count > n-displ {
			text := fmt.Sprintf("%s: the part of rank %d in %s is %d elements from element %d on; %s has %d elements",
				function, r, argument, count, displ, argument, n)
			return nil, nil, &Error{Code: InvalidArgument, Rank: -1, Peer: -1, Text: text}
		}
		raw[r], raw[c.size+r] = C.size_t(count), C.size_t(displs[r])
	}
	return &raw[0], &raw[c.size], nil
}

// AllGatherv puts the send of rank r, which has counts[r] elements, at element displs[r] of every
// rank's recv. Cost: every rank sends its elements directly to every other one.
func AllGatherv[T Element](ctx context.Context, c *Comm, send, recv []T, counts, displs []int) error {
	return onSlices(ctx, c, send, recv, func(send, recv Buffer[T], on *Stream) error {
		return AllGathervAsync(c, send, recv, counts, displs, on)
	})
}

// AllGathervAsync is AllGatherv without waiting.
func AllGathervAsync[T Element](c *Comm, send, recv Buffer[T], counts, displs []int, on *Stream) error {
	if err := c.usable(); err != nil {
		return err
	}
	n, at, err := parts(c, "AllGatherv", "recv", recv.n, counts, displs)
	if err != nil {
		return err
	}
	return oxcclAllGatherv(send.data, C.size_t(send.n), recv.data, n, at, dataType[T](), c.handle, on.handle)
}

// ReduceScatterv leaves block r of the reduction of all ranks' send, of counts[r] elements, in the
// recv of rank r. Cost: a reduce per block; with equal counts ReduceScatter is faster.
func ReduceScatterv[T Element](ctx context.Context, c *Comm, send, recv []T, counts []int, op RedOp) error {
	return onSlices(ctx, c, send, recv, func(send, recv Buffer[T], on *Stream) error {
		return ReduceScattervAsync(c, send, recv, counts, op, on)
	})
}

// ReduceScattervAsync is ReduceScatterv without waiting.
func ReduceScattervAsync[T Element](c *Comm, send, recv Buffer[T], counts []int, op RedOp, on *Stream) error {
	if err := c.usable(); err != nil {
		return err
	}
	displs, all := make([]int, len(counts)), 0
	for r, count := range counts {
		displs[r] = all
		all += count
	}
	n, _, err := parts(c, "ReduceScatterv", "send", send.n, counts, displs)
	if err != nil {
		return err
	}
	if send.n != all {
		return mismatch("ReduceScatterv", "send", send.n, all)
	}
	if err := equal("ReduceScatterv", recv.n, counts[c.rank]); err != nil {
		return err
	}
	return oxcclReduceScatterv(send.data, recv.data, n, dataType[T](), op, c.handle, on.handle)
}

// AllToAllv sends sendCounts[r] elements from element sendDispls[r] of send on to rank r, and puts
// the recvCounts[r] that come from rank r at element recvDispls[r] of recv.
func AllToAllv[T Element](ctx context.Context, c *Comm, send []T, sendCounts, sendDispls []int,
	recv []T, recvCounts, recvDispls []int) error {
	return onSlices(ctx, c, send, recv, func(send, recv Buffer[T], on *Stream) error {
		return AllToAllvAsync(c, send, sendCounts, sendDispls, recv, recvCounts, recvDispls, on)
	})
}

// AllToAllvAsync is AllToAllv without waiting.
func AllToAllvAsync[T Element](c *Comm, send Buffer[T], sendCounts, sendDispls []int,
	recv Buffer[T], recvCounts, recvDispls []int, on *Stream) error {
	if err := c.usable(); err != nil {
		return err
	}
	n, at, err := parts(c, "AllToAllv", "send", send.n, sendCounts, sendDispls)
	if err != nil {
		return err
	}
	m, to, err := parts(c, "AllToAllv", "recv", recv.n, recvCounts, recvDispls)
	if err != nil {
		return err
	}
	return oxcclAlltoAllv(send.data, n, at, recv.data, m, to, dataType[T](), c.handle, on.handle)
}

// Gatherv puts the send of rank r, which has counts[r] elements, at element displs[r] of the root's
// recv; recv, counts and displs are ignored elsewhere.
func Gatherv[T Element](ctx context.Context, c *Comm, send, recv []T, counts, displs []int, root int) error {
	return onSlices(ctx, c, send, recv, func(send, recv Buffer[T], on *Stream) error {
		return GathervAsync(c, send, recv, counts, displs, root, on)
	})
}

// GathervAsync is Gatherv without waiting.
func GathervAsync[T Element](c *Comm, send, recv Buffer[T], counts, displs []int, root int, on *Stream) error {
	if err := c.takes("Gatherv", "root", root); err != nil {
		return err
	}
	var n, at *C.size_t
	if c.rank == root {
		var err error
		if n, at, err = parts(c, "Gatherv", "recv", recv.n, counts, displs); err != nil {
			return err
		}
	}
	return oxcclGatherv(send.data, C.size_t(send.n), recv.data, n, at, dataType[T](), C.int(root), c.handle, on.handle)
}

// Scatterv puts counts[r] elements from element displs[r] of the root's send on into the recv of
// rank r; send, counts and displs are ignored elsewhere.
func Scatterv[T Element](ctx context.Context, c *Comm, send []T, counts, displs []int, recv []T, root int) error {
	return onSlices(ctx, c, send, recv, func(send, recv Buffer[T], on *Stream) error {
		return ScattervAsync(c, send, counts, displs, recv, root, on)
	})
}

// ScattervAsync is Scatterv without waiting.
func ScattervAsync[T Element](c *Comm, send Buffer[T], counts, displs []int, recv Buffer[T], root int, on *Stream) error {
	if err := c.takes("Scatterv", "root", root); err != nil {
		return err
	}
	var n, at *C.size_t
	if c.rank == root {
		var err error
		if n, at, err = parts(c, "Scatterv", "send", send.n, counts, displs); err != nil {
			return err
		}
	}
	return oxcclScatterv(send.data, n, at, recv.data, C.size_t(recv.n), dataType[T](), C.int(root), c.handle, on.handle)
}
