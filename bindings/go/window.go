package oxccl

// #include "shim_gen.h"
import "C"

import (
	"fmt"
	"unsafe"
)

// Window is memory into which the other ranks of this host write by Put.
type Window[T Element] struct {
	comm   *Comm
	handle C.ncclWindow_t
}

// OpenWindow makes a window of a buffer. All ranks call, in the same order; each then holds all
// ranks' windows by this one. Buffer and communicator must outlive it. It does not block.
func OpenWindow[T Element](c *Comm, b Buffer[T]) (*Window[T], error) {
	var handle C.ncclWindow_t
	bytes := C.size_t(uintptr(b.n) * sizeOf[T]())
	if err := ncclCommWindowRegister(c.handle, b.data, bytes, &handle, NcclWinDefault); err != nil {
		return nil, err
	}
	return &Window[T]{c, handle}, nil
}

// Close ends the window, into which no rank may still write.
func (w *Window[T]) Close() error { return ncclCommWindowDeregister(w.comm.handle, w.handle) }

// Put writes elements into a rank's window, from its element at on, and then counts up a signal (0
// to 15) of that rank. It returns at once; the elements may change when the stream is done.
func (w *Window[T]) Put(data Buffer[T], to, at, signal int, on *Stream) error {
	if at < 0 || uintptr(at) > ^uintptr(0)/sizeOf[T]() {
		text := fmt.Sprintf("Put: at is %d; expected an element of the window, 0 or more", at)
		return &Error{Code: InvalidArgument, Rank: -1, Peer: -1, Text: text}
	}
	offset := C.size_t(uintptr(at) * sizeOf[T]())
	return ncclPutSignal(data.data, C.size_t(data.n), dataType[T](), narrow(to), w.handle, offset, narrow(signal),
		0, 0, w.comm.handle, on.handle)
}

// Signal counts up a signal (0 to 15) of a rank. What was put there before is there when it is
// seen.
func (c *Comm) Signal(to, signal int, on *Stream) error {
	return ncclSignal(narrow(to), narrow(signal), 0, 0, c.handle, on.handle)
}

// Signals are some of those that a rank has sent.
type Signals struct {
	// From is the rank that sends them.
	From int
	// Signal is their number, 0 to 15.
	Signal int
	// Count says how many, of those that nobody has waited for yet.
	Count int
}

// WaitSignals makes a stream wait until signals have come. It returns at once.
func (c *Comm) WaitSignals(on *Stream, signals ...Signals) error {
	list := make([]C.ncclWaitSignalDesc_t, len(signals))
	for i, s := range signals {
		list[i] = C.ncclWaitSignalDesc_t{opCnt: narrow(s.Count), peer: narrow(s.From), sigIdx: narrow(s.Signal)}
	}
	return ncclWaitSignal(C.int(len(list)), unsafe.SliceData(list), c.handle, on.handle)
}
