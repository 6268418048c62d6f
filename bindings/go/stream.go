package oxccl

// #include "shim_gen.h"
import "C"

import (
	"errors"
	"runtime"
	"time"
	"unsafe"
)

// allocate makes memory of the current device, and tells of what kind that is.
func allocate(data *unsafe.Pointer, bytes uintptr) (kind DeviceKind, err error) {
	// Both calls are about one thread's device.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if kind, _, err = CurrentDevice(); err != nil {
		return kind, err
	}
	var memory unsafe.Pointer
	err = oxcclMemAlloc(&memory, C.size_t(bytes))
	*data = memory
	return kind, err
}

// Stream is work in order. Its zero value is the device's default stream. Its functions take no
// context: SynchronizeFor waits for a limited time, and Comm.Abort ends what a stream waits for.
type Stream struct{ handle C.cudaStream_t }

// NewStream makes a stream on the current device.
func NewStream() (*Stream, error) {
	var handle C.cudaStream_t
	if err := oxcclStreamCreate(&handle); err != nil {
		return nil, err
	}
	return &Stream{handle}, nil
}

// Close ends the stream; what it still has to do is done nevertheless.
func (s *Stream) Close() error { return oxcclStreamDestroy(s.handle) }

// Synchronize blocks until everything is done; it fails where the work did.
func (s *Stream) Synchronize() error { return oxcclStreamSynchronize(s.handle, -1) }

// SynchronizeFor blocks for some time at most, and tells whether everything is done.
func (s *Stream) SynchronizeFor(limit time.Duration) (bool, error) {
	return done(oxcclStreamSynchronize(s.handle, C.int64_t(max(limit, 0))))
}

// Query tells whether everything is done.
func (s *Stream) Query() (bool, error) { return done(oxcclStreamQuery(s.handle)) }

func done(err error) (bool, error) {
	if err == InProgress {
		return false, nil
	}
	return err == nil, err
}

// Copy copies elements between buffers of equal length, in the order of the stream.
func Copy[T Element](to, from Buffer[T], on *Stream) error {
	if to.n != from.n {
		return mismatch("Copy", "to", to.n, from.n)
	}
	bytes := C.size_t(uintptr(to.n) * sizeOf[T]())
	return oxcclMemcpyAsync(to.data, from.data, bytes, on.handle)
}

// CopyIn copies a slice into a buffer of equal length, of any device, behind what the stream does.
// It blocks until that is done.
func CopyIn[T Element](to Buffer[T], from []T, on *Stream) error {
	return copyPinned(to, view(from), from, on)
}

// CopyOut copies a buffer of any device into a slice of equal length, behind what the stream does.
// It blocks until that is done.
func CopyOut[T Element](to []T, from Buffer[T], on *Stream) error {
	return copyPinned(view(to), from, to, on)
}

func copyPinned[T Element](to, from Buffer[T], slice []T, on *Stream) error {
	var pins runtime.Pinner
	defer pins.Unpin()
	if len(slice) > 0 {
		pins.Pin(unsafe.SliceData(slice))
	}
	if err := Copy(to, from, on); err != nil {
		return err
	}
	return on.Synchronize()
}

// Clear makes all elements of a buffer zero, in the order of the stream.
func Clear[T Element](b Buffer[T], on *Stream) error {
	return oxcclMemsetAsync(b.data, 0, C.size_t(uintptr(b.n)*sizeOf[T]()), on.handle)
}

// Event is a mark in a stream.
type Event struct{ handle C.cudaEvent_t }

// NewEvent makes an event.
func NewEvent() (*Event, error) {
	var handle C.cudaEvent_t
	if err := oxcclEventCreate(&handle); err != nil {
		return nil, err
	}
	return &Event{handle}, nil
}

// Close ends the event.
func (e *Event) Close() error { return oxcclEventDestroy(e.handle) }

// Record marks the present end of a stream.
func (e *Event) Record(on *Stream) error { return oxcclEventRecord(e.handle, on.handle) }

// Wait makes what the stream does from now on wait for the event.
func (s *Stream) Wait(e *Event) error { return oxcclStreamWaitEvent(s.handle, e.handle) }

// Query tells whether the stream has come to the event.
func (e *Event) Query() (bool, error) { return done(oxcclEventQuery(e.handle)) }

// Since is the time since another event; both must have come up.
func (e *Event) Since(start *Event) (time.Duration, error) {
	var ms C.float
	err := oxcclEventElapsedTime(&ms, start.handle, e.handle)
	return time.Duration(float64(ms) * float64(time.Millisecond)), err
}

// Graph is what a stream was asked to do, ready to be done again.
type Graph struct{ handle C.oxcclGraphExec_t }

// Capture puts what f calls on the stream into a graph, instead of having it done.
func Capture(on *Stream, f func() error) (*Graph, error) {
	var handle C.oxcclGraphExec_t
	err := captured(on, f, func(graph C.oxcclGraph_t) error {
		return oxcclGraphInstantiate(&handle, graph)
	})
	if err != nil {
		return nil, err
	}
	return &Graph{handle}, nil
}

// Update puts what f calls on the stream in the place of what the graph does. Both must be the same
// calls in the same order; buffers, counts and roots may differ. Launches under way keep theirs.
func (g *Graph) Update(on *Stream, f func() error) error {
	return captured(on, f, func(graph C.oxcclGraph_t) error {
		return oxcclGraphExecUpdate(g.handle, graph)
	})
}

func captured(on *Stream, f func() error, use func(C.oxcclGraph_t) error) error {
	if err := oxcclStreamBeginCapture(on.handle, CaptureRelaxed); err != nil {
		return err
	}
	err := f()
	var graph C.oxcclGraph_t
	if end := oxcclStreamEndCapture(on.handle, &graph); end != nil {
		return errors.Join(err, end)
	}
	// What is made of it needs it no more.
	defer oxcclGraphDestroy(graph, nil)
	if err != nil {
		return err
	}
	return use(graph)
}

// Launch does it once, in the order of the stream.
func (g *Graph) Launch(on *Stream) error { return oxcclGraphLaunch(g.handle, on.handle) }

// Close ends the graph; launches under way are completed.
func (g *Graph) Close() error { return oxcclGraphDestroy(nil, g.handle) }
