// Package oxccl is collective communication between processes and hosts: all-reduce, all-gather,
// send and receive and their kin, on host memory as on GPUs.
//
// Functions that take slices block until the elements are there, and end when their context does:
// that aborts the communicator on all ranks, also when it had ended before the call. Functions
// whose names end in Async take a [Buffer], return at once, and are complete when their [Stream]
// is. What is made here is ended by Close.
//
// A program is linked with liboxccl by pkg-config; with the build tag oxccl_dlopen it needs no
// library to be built, and loads the one that OXCCL_LIBRARY names, or liboxccl.so.2.
package oxccl

// #include "shim_gen.h"
// static void oxgo_simulation(ncclSimInfo_t *info) {
//   ncclSimInfo_t initial = NCCL_SIM_INFO_INITIALIZER;
//   *info = initial;
// }
import "C"

import (
	"fmt"
	"math"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"
)

// Error says what failed. errors.Is finds its code: errors.Is(err, oxccl.RemoteError).
type Error struct {
	Code Result
	// Rank that reports; -1 outside a communicator.
	Rank int
	// Peer is the rank at fault or waited for; -1 when unknown, as where the ranks' calls differ.
	Peer int
	// Text is the whole message.
	Text string
}

func (e *Error) Error() string { return "oxccl: " + e.Text }

// Unwrap returns the code.
func (e *Error) Unwrap() error { return e.Code }

// Error is what the code means.
func (r Result) Error() string { return C.GoString(ncclGetErrorString(r)) }

// failed makes an error of what a call returned; InProgress is itself.
func failed(status C.oxgo_status) error {
	switch Result(status.code) {
	case Success:
		return nil
	case InProgress:
		return InProgress
	}
	failure := &Error{Code: Result(status.code), Rank: -1, Peer: -1}
	if status.info == nil {
		failure.Text = failure.Code.Error()
		return failure
	}
	defer C.free(unsafe.Pointer(status.info))
	failure.Rank, failure.Peer = int(status.info.rank), int(status.info.peer)
	failure.Text = C.GoString(&status.info.text[0])
	return failure
}

// mismatch is a length that does not fit the others of a call.
func mismatch(function, argument string, got, expected int) error {
	text := fmt.Sprintf("%s: %s has %d elements; expected %d", function, argument, got, expected)
	return &Error{Code: InvalidArgument, Rank: -1, Peer: -1, Text: text}
}

// within32 refuses a number that C would cut off.
func within32(function, argument string, n int) error {
	if math.MinInt32 <= n && n <= math.MaxInt32 {
		return nil
	}
	text := fmt.Sprintf("%s: %s is %d; expected a number of 32 bits", function, argument, n)
	return &Error{Code: InvalidArgument, Rank: -1, Peer: -1, Text: text}
}

// Version of the library, as NcclVersionCode and OxcclVersionCode.
func Version() (nccl, oxccl int, err error) {
	var n, o C.int
	if err := ncclGetVersion(&n); err != nil {
		return 0, 0, err
	}
	err = oxcclGetVersion(&o)
	return int(n), int(o), err
}

// DeviceCount tells how many devices of a kind there are.
func DeviceCount(kind DeviceKind) (int, error) {
	var count C.int
	err := oxcclDeviceCount(kind, &count)
	return int(count), err
}

// CurrentDevice is the device of what is made here: that of OnDevice, else a GPU where there is
// one, else the host, unless OXCCL_DEVICE says otherwise.
func CurrentDevice() (kind DeviceKind, index int, err error) {
	var rawKind C.oxcclDeviceKind_t
	var rawIndex C.int
	err = oxcclDeviceGet(&rawKind, &rawIndex)
	return DeviceKind(rawKind), int(rawIndex), err
}

// OnDevice calls f with another current device, for what f makes: communicators, streams, buffers.
func OnDevice(kind DeviceKind, index int, f func() error) error {
	if err := within32("OnDevice", "index", index); err != nil {
		return err
	}
	// The device belongs to the thread.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	oldKind, oldIndex, err := CurrentDevice()
	if err != nil {
		return err
	}
	if err := oxcclDeviceSet(kind, C.int(index)); err != nil {
		return err
	}
	// It was the device before, so it can be set.
	defer oxcclDeviceSet(oldKind, C.int(oldIndex))
	return f()
}

// SetLogLevel sets what is logged: 0 nothing, 1 the version, 2 warnings, 3 information, 5
// everything. Lines go where NCCL_DEBUG_FILE says.
func SetLogLevel(level int) error {
	if err := within32("SetLogLevel", "level", level); err != nil {
		return err
	}
	return oxcclSetLog(C.int(level), nil, nil)
}

// Group launches together what f calls: the Async functions, whose sends and receives then need no
// order. Functions that take slices fail in it, as nothing is complete before its end; SendRecv is a
// group of its own.
func Group(f func() error) error { return grouped(f, ncclGroupEnd) }

// Estimate tells how long Group would take for what f calls, by the library's model of the machine;
// nothing is launched.
func Estimate(f func() error) (time.Duration, error) {
	var info C.ncclSimInfo_t
	C.oxgo_simulation(&info)
	err := grouped(f, func() error { return ncclGroupSimulateEnd(&info) })
	return time.Duration(float64(info.estimatedTime) * float64(time.Microsecond)), err
}

// The threads that are in a Group, and how many they are.
var (
	inGroups    sync.Map
	inGroupsLen atomic.Int32
)

// inGroup tells whether this goroutine is in a Group, which keeps it on its thread.
func inGroup() bool {
	if inGroupsLen.Load() == 0 {
		return false
	}
	_, in := inGroups.Load(syscall.Gettid())
	return in
}

func grouped(f, end func() error) (err error) {
	// Groups belong to threads.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := ncclGroupStart(); err != nil {
		return err
	}
	thread := syscall.Gettid()
	if _, nested := inGroups.LoadOrStore(thread, nil); !nested {
		inGroupsLen.Add(1)
		defer func() {
			inGroups.Delete(thread)
			inGroupsLen.Add(-1)
		}()
	}
	defer func() {
		if failed := end(); err == nil && failed != InProgress {
			err = failed
		}
	}()
	return f()
}
