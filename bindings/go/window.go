package oxccl

// #include "shim_gen.h"
import "C"

import (
	"errors"
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
	if err := c.usable(); err != nil {
		return nil, err
	}
	var handle C.ncclWindow_t
	bytes := C.size_t(uintptr(b.n) * sizeOf[T]())
	if err := ncclCommWindowRegister(c.handle, b.data, bytes, &handle, NcclWinDefault); err != nil {
		return nil, err
	}
	return &Window[T]{c, handle}, nil
}

// Close ends the window, into which no rank may still write.
func (w *Window[T]) Close() error {
	if err := w.comm.usable(); err != nil {
		return err
	}
	return ncclCommWindowDeregister(w.comm.handle, w.handle)
}

// Put writes elements into a rank's window, from its element at on, and then counts up a signal (0
// to 15) of that rank. It returns at once; the elements may change when the stream is done.
func (w *Window[T]) Put(data Buffer[T], to, at, signal int, on *Stream) error {
	if err := errors.Join(w.comm.takes("Put", "to", to), within32("Put", "signal", signal)); err != nil {
		return err
	}
	if at < 0 || uintptr(at) > ^uintptr(0)/sizeOf[T]() {
		text := fmt.Sprintf("Put: at is %d; expected an element of the window, 0 or more", at)
		return &Error{Code: InvalidArgument, Rank: -1, Peer: -1, Text: text}
	}
	offset := C.size_t(uintptr(at) * sizeOf[T]())
	return ncclPutSignal(data.data, C.size_t(data.n), dataType[T](), C.int(to), w.handle, offset, C.int(signal),
		0, 0, w.comm.handle, on.handle)
}

// Signal counts up a signal (0 to 15) of a rank. What was put there before is there when it is
// seen.
func (c *Comm) Signal(to, signal int, on *Stream) error {
	if err := errors.Join(c.takes("Signal", "to", to), within32("Signal", "signal", signal)); err != nil {
		return err
	}
	return ncclSignal(C.int(to), C.int(signal), 0, 0, c.handle, on.handle)
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
	if err := c.usable(); err != nil {
		return err
	}
	list := make([]C.ncclWaitSignalDesc_t, len(signals))
	for i, s := range signals {
		err := errors.Join(within32("WaitSignals", "Count", s.Count), within32("WaitSignals", "From", s.From),
			within32("WaitSignals", "Signal", s.Signal))
		if err != nil {
			return err
		}
		list[i] = C.ncclWaitSignalDesc_t{opCnt: C.int(s.Count), peer: C.int(s.From), sigIdx: C.int(s.Signal)}
	}
	return ncclWaitSignal(C.int(len(list)), unsafe.SliceData(list), c.handle, on.handle)
}
