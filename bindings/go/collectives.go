package oxccl

// #include "shim_gen.h"
import "C"

import (
	"context"
	"runtime"
	"unsafe"
)

// onSlices does what f begins on the elements of slices, which stay where they are meanwhile.
func onSlices[T Element](ctx context.Context, c *Comm, send, recv []T, f func(send, recv Buffer[T], on *Stream) error) error {
	if err := c.usable(); err != nil {
		return err
	}
	if inGroup() {
		text := "a call on slices cannot wait in a Group; call the Async function with a Buffer"
		return &Error{Code: InvalidUsage, Rank: c.rank, Peer: -1, Text: text}
	}
	if ctx.Err() != nil {
		// The others wait for this call in vain.
		c.Abort()
		return context.Cause(ctx)
	}
	var pins runtime.Pinner
	defer pins.Unpin()
	if len(send) > 0 {
		pins.Pin(unsafe.SliceData(send))
	}
	// In place there is one to pin; a second pin costs as much as the call.
	if len(recv) > 0 && unsafe.SliceData(recv) != unsafe.SliceData(send) {
		pins.Pin(unsafe.SliceData(recv))
	}
	if err := f(view(send), view(recv), c.stream); err != nil {
		return err
	}
	return c.wait(ctx)
}

// fits tells whether a buffer has so many elements for each rank.
func fits(c *Comm, function, argument string, got, each int) error {
	if got != each*c.size {
		return mismatch(function, argument, got, each*c.size)
	}
	return nil
}

func equal(function string, recv, send int) error {
	if send == 0 && recv > 0 {
		return mismatch(function, "send", send, recv)
	}
	if recv != send {
		return mismatch(function, "recv", recv, send)
	}
	return nil
}

// AllReduce leaves the reduction of all ranks' send in every rank's recv; both may be the same.
func AllReduce[T Element](ctx context.Context, c *Comm, send, recv []T, op RedOp, options ...CallOptions) error {
	return onSlices(ctx, c, send, recv, func(send, recv Buffer[T], on *Stream) error {
		return AllReduceAsync(c, send, recv, op, on, options...)
	})
}

// AllReduceAsync is AllReduce without waiting.
func AllReduceAsync[T Element](c *Comm, send, recv Buffer[T], op RedOp, on *Stream, options ...CallOptions) error {
	if err := c.usable(); err != nil {
		return err
	}
	if err := equal("AllReduce", recv.n, send.n); err != nil {
		return err
	}
	return configured(options, func() error {
		return ncclAllReduce(send.data, recv.data, C.size_t(send.n), dataType[T](), op, c.handle, on.handle)
	}, func(with *C.ncclCollConfig_t) error {
		return ncclAllReduceConfig(send.data, recv.data, C.size_t(send.n), dataType[T](), op, c.handle, on.handle, with)
	})
}

// Broadcast copies the root's elements to every rank.
func Broadcast[T Element](ctx context.Context, c *Comm, data []T, root int, options ...CallOptions) error {
	return onSlices(ctx, c, data, nil, func(data, _ Buffer[T], on *Stream) error {
		return BroadcastAsync(c, data, root, on, options...)
	})
}

// BroadcastAsync is Broadcast without waiting.
func BroadcastAsync[T Element](c *Comm, data Buffer[T], root int, on *Stream, options ...CallOptions) error {
	if err := c.takes("Broadcast", "root", root); err != nil {
		return err
	}
	return configured(options, func() error {
		return ncclBroadcast(data.data, data.data, C.size_t(data.n), dataType[T](), C.int(root), c.handle, on.handle)
	}, func(with *C.ncclCollConfig_t) error {
		return ncclBroadcastConfig(data.data, data.data, C.size_t(data.n), dataType[T](), C.int(root), c.handle, on.handle, with)
	})
}

// Reduce leaves the reduction of all ranks' send in the root's recv, which is ignored elsewhere.
func Reduce[T Element](ctx context.Context, c *Comm, send, recv []T, op RedOp, root int, options ...CallOptions) error {
	return onSlices(ctx, c, send, recv, func(send, recv Buffer[T], on *Stream) error {
		return ReduceAsync(c, send, recv, op, root, on, options...)
	})
}

// ReduceAsync is Reduce without waiting.
func ReduceAsync[T Element](c *Comm, send, recv Buffer[T], op RedOp, root int, on *Stream, options ...CallOptions) error {
	if err := c.takes("Reduce", "root", root); err != nil {
		return err
	}
	if c.rank == root {
		if err := equal("Reduce", recv.n, send.n); err != nil {
			return err
		}
	}
	return configured(options, func() error {
		return ncclReduce(send.data, recv.data, C.size_t(send.n), dataType[T](), op, C.int(root), c.handle, on.handle)
	}, func(with *C.ncclCollConfig_t) error {
		return ncclReduceConfig(send.data, recv.data, C.size_t(send.n), dataType[T](), op, C.int(root), c.handle, on.handle, with)
	})
}

// AllGather puts every rank's send, one behind the other, into every rank's recv.
func AllGather[T Element](ctx context.Context, c *Comm, send, recv []T, options ...CallOptions) error {
	return onSlices(ctx, c, send, recv, func(send, recv Buffer[T], on *Stream) error {
		return AllGatherAsync(c, send, recv, on, options...)
	})
}

// AllGatherAsync is AllGather without waiting.
func AllGatherAsync[T Element](c *Comm, send, recv Buffer[T], on *Stream, options ...CallOptions) error {
	if err := c.usable(); err != nil {
		return err
	}
	if err := fits(c, "AllGather", "recv", recv.n, send.n); err != nil {
		return err
	}
	return configured(options, func() error {
		return ncclAllGather(send.data, recv.data, C.size_t(send.n), dataType[T](), c.handle, on.handle)
	}, func(with *C.ncclCollConfig_t) error {
		return ncclAllGatherConfig(send.data, recv.data, C.size_t(send.n), dataType[T](), c.handle, on.handle, with)
	})
}

// ReduceScatter leaves block r of the reduction of all ranks' send in the recv of rank r.
func ReduceScatter[T Element](ctx context.Context, c *Comm, send, recv []T, op RedOp, options ...CallOptions) error {
	return onSlices(ctx, c, send, recv, func(send, recv Buffer[T], on *Stream) error {
		return ReduceScatterAsync(c, send, recv, op, on, options...)
	})
}

// ReduceScatterAsync is ReduceScatter without waiting.
func ReduceScatterAsync[T Element](c *Comm, send, recv Buffer[T], op RedOp, on *Stream, options ...CallOptions) error {
	if err := c.usable(); err != nil {
		return err
	}
	if err := fits(c, "ReduceScatter", "send", send.n, recv.n); err != nil {
		return err
	}
	return configured(options, func() error {
		return ncclReduceScatter(send.data, recv.data, C.size_t(recv.n), dataType[T](), op, c.handle, on.handle)
	}, func(with *C.ncclCollConfig_t) error {
		return ncclReduceScatterConfig(send.data, recv.data, C.size_t(recv.n), dataType[T](), op, c.handle, on.handle, with)
	})
}

// AllToAll puts block r of this rank's send where the recv of rank r has the block of this rank.
func AllToAll[T Element](ctx context.Context, c *Comm, send, recv []T, options ...CallOptions) error {
	return onSlices(ctx, c, send, recv, func(send, recv Buffer[T], on *Stream) error {
		return AllToAllAsync(c, send, recv, on, options...)
	})
}

// AllToAllAsync is AllToAll without waiting.
func AllToAllAsync[T Element](c *Comm, send, recv Buffer[T], on *Stream, options ...CallOptions) error {
	if err := c.usable(); err != nil {
		return err
	}
	count := send.n / c.size
	if err := fits(c, "AllToAll", "send", send.n, count); err != nil {
		return err
	}
	if err := equal("AllToAll", recv.n, send.n); err != nil {
		return err
	}
	return configured(options, func() error {
		return ncclAlltoAll(send.data, recv.data, C.size_t(count), dataType[T](), c.handle, on.handle)
	}, func(with *C.ncclCollConfig_t) error {
		return ncclAlltoAllConfig(send.data, recv.data, C.size_t(count), dataType[T](), c.handle, on.handle, with)
	})
}

// Gather puts every rank's send, one behind the other, into the root's recv, which is ignored
// elsewhere.
func Gather[T Element](ctx context.Context, c *Comm, send, recv []T, root int, options ...CallOptions) error {
	return onSlices(ctx, c, send, recv, func(send, recv Buffer[T], on *Stream) error {
		return GatherAsync(c, send, recv, root, on, options...)
	})
}

// GatherAsync is Gather without waiting.
func GatherAsync[T Element](c *Comm, send, recv Buffer[T], root int, on *Stream, options ...CallOptions) error {
	if err := c.takes("Gather", "root", root); err != nil {
		return err
	}
	if c.rank == root {
		if err := fits(c, "Gather", "recv", recv.n, send.n); err != nil {
			return err
		}
	}
	return configured(options, func() error {
		return ncclGather(send.data, recv.data, C.size_t(send.n), dataType[T](), C.int(root), c.handle, on.handle)
	}, func(with *C.ncclCollConfig_t) error {
		return ncclGatherConfig(send.data, recv.data, C.size_t(send.n), dataType[T](), C.int(root), c.handle, on.handle, with)
	})
}

// Scatter puts block r of the root's send, which is ignored elsewhere, into the recv of rank r.
func Scatter[T Element](ctx context.Context, c *Comm, send, recv []T, root int, options ...CallOptions) error {
	return onSlices(ctx, c, send, recv, func(send, recv Buffer[T], on *Stream) error {
		return ScatterAsync(c, send, recv, root, on, options...)
	})
}

// ScatterAsync is Scatter without waiting.
func ScatterAsync[T Element](c *Comm, send, recv Buffer[T], root int, on *Stream, options ...CallOptions) error {
	if err := c.takes("Scatter", "root", root); err != nil {
		return err
	}
	if c.rank == root {
		if err := fits(c, "Scatter", "send", send.n, recv.n); err != nil {
			return err
		}
	}
	return configured(options, func() error {
		return ncclScatter(send.data, recv.data, C.size_t(recv.n), dataType[T](), C.int(root), c.handle, on.handle)
	}, func(with *C.ncclCollConfig_t) error {
		return ncclScatterConfig(send.data, recv.data, C.size_t(recv.n), dataType[T](), C.int(root), c.handle, on.handle, with)
	})
}

// Send sends elements to a rank, which receives as many. Calls of one communicator run one behind
// the other, also those of several goroutines, and a large Send waits for its Recv: ranks that send
// to each other, or in a circle, use SendRecv or a Group, else they wait for ever.
func Send[T Element](ctx context.Context, c *Comm, data []T, to int) error {
	return onSlices(ctx, c, data, nil, func(data, _ Buffer[T], on *Stream) error {
		return SendAsync(c, data, to, on)
	})
}

// SendAsync is Send without waiting.
func SendAsync[T Element](c *Comm, data Buffer[T], to int, on *Stream) error {
	if err := c.takes("Send", "to", to); err != nil {
		return err
	}
	return ncclSend(data.data, C.size_t(data.n), dataType[T](), C.int(to), c.handle, on.handle)
}

// Recv receives elements from a rank, which sends as many. Where that rank receives from this one
// before it sends, use SendRecv or a Group: see Send.
func Recv[T Element](ctx context.Context, c *Comm, data []T, from int) error {
	return onSlices(ctx, c, data, nil, func(data, _ Buffer[T], on *Stream) error {
		return RecvAsync(c, data, from, on)
	})
}

// SendRecv sends elements to a rank and receives elements from a rank, which may be another, both at
// once; the slices must not overlap.
func SendRecv[T Element](ctx context.Context, c *Comm, send []T, to int, recv []T, from int) error {
	return onSlices(ctx, c, send, recv, func(send, recv Buffer[T], on *Stream) error {
		return Group(func() error {
			if err := SendAsync(c, send, to, on); err != nil {
				return err
			}
			return RecvAsync(c, recv, from, on)
		})
	})
}

// RecvAsync is Recv without waiting.
func RecvAsync[T Element](c *Comm, data Buffer[T], from int, on *Stream) error {
	if err := c.takes("Recv", "from", from); err != nil {
		return err
	}
	return ncclRecv(data.data, C.size_t(data.n), dataType[T](), C.int(from), c.handle, on.handle)
}
