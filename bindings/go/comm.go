package oxccl

// #include "shim_gen.h"
// static void oxgo_initialize(ncclConfig_t *config) {
//   ncclConfig_t initial = NCCL_CONFIG_INITIALIZER;
//   initial.blocking = 0;
//   *config = initial;
// }
import "C"

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"sync/atomic"
	"time"
	"unsafe"
)

// UniqueID names a communicator that is to be made; copy it to all ranks, and keep it secret.
type UniqueID [NcclUniqueIdBytes]byte

// Format writes nothing of the secret, as logs are no place for it, but for the verbs x and X, which
// ask for the bytes. Package fmt does not call it for fields that are not exported.
func (id UniqueID) Format(state fmt.State, verb rune) {
	if verb == 'x' || verb == 'X' {
		fmt.Fprintf(state, fmt.FormatString(state, verb), id[:])
		return
	}
	io.WriteString(state, "UniqueID(secret)")
}

// NewUniqueID makes an id, whose rendezvous waits in this process.
func NewUniqueID() (id UniqueID, err error) {
	var raw C.ncclUniqueId
	if err := ncclGetUniqueId(&raw); err != nil {
		return id, err
	}
	return fromRaw(&raw), nil
}

func fromRaw(raw *C.ncclUniqueId) (id UniqueID) {
	copy(id[:], unsafe.Slice((*byte)(unsafe.Pointer(&raw.internal[0])), len(id)))
	return id
}

func (id *UniqueID) raw() (raw C.ncclUniqueId) {
	copy(unsafe.Slice((*byte)(unsafe.Pointer(&raw.internal[0])), len(id)), id[:])
	return raw
}

// Comm is this rank's part of a communicator. Its methods may be called by any goroutine; all ranks
// must make the same calls in the same order.
type Comm struct {
	handle C.ncclComm_t
	// Of the calls that take slices.
	stream *Stream
	// Whether it was aborted or closed, and whether its stream was closed.
	ended, closed atomic.Bool
	rank, size    int
}

// usable fails where the communicator was ended.
func (c *Comm) usable() error {
	if !c.ended.Load() {
		return nil
	}
	text := "the communicator was closed or aborted; make a new one"
	return &Error{Code: InvalidUsage, Rank: c.rank, Peer: -1, Text: text}
}

// takes fails where the communicator was ended, or where C would cut off the number of a call.
func (c *Comm) takes(function, argument string, n int) error {
	if err := c.usable(); err != nil {
		return err
	}
	return within32(function, argument, n)
}

// Option asks something of a new communicator, as WithCommName does. What nobody asks for is as
// NCCL has it, whatever communicator one is made of.
type Option func(*config)

type config struct {
	// An allocation of its own, which C may see.
	raw   *C.ncclConfig_t
	texts []*C.char
	// How long creation may wait; nil for what OXCCL_INIT_TIMEOUT says.
	limit *time.Duration
	err   error
}

// WithInitTimeout bounds how long creation waits for ranks that do not come; then it fails on all
// that did. A negative time is OXCCL_INIT_TIMEOUT's. The shortest bound of any rank holds.
func WithInitTimeout(limit time.Duration) Option {
	return func(c *config) { c.limit = &limit }
}

// grace is how long the library has to say why something is not done when the time of a context is
// over.
const grace = 2 * time.Second

// begin calls f, whose communicator has the time limit.
func (c *config) begin(ctx context.Context, f func() error) error {
	limit, err := c.within(ctx)
	if err != nil {
		return err
	}
	if limit == nil {
		return f()
	}
	// The limit is the thread's.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := oxcclSetInitTimeout(C.int64_t(max(*limit, -1))); err != nil {
		return err
	}
	defer oxcclSetInitTimeout(-1)
	return f()
}

// within is how long creation may wait where the context has a deadline: no longer than that, so that
// the library says which ranks did not come; nil for what OXCCL_INIT_TIMEOUT says.
func (c *config) within(ctx context.Context) (*time.Duration, error) {
	deadline, bounded := ctx.Deadline()
	if !bounded {
		return c.limit, nil
	}
	limit := c.limit
	if limit == nil || *limit < 0 {
		usual, err := initTimeout()
		if err != nil {
			return nil, err
		}
		limit = &usual
	}
	left := max(time.Until(deadline), 0)
	if left >= *limit {
		return limit, nil
	}
	// The library counts whole milliseconds, and is to be the later one.
	left += 2 * time.Millisecond
	return &left, nil
}

// initTimeout is OXCCL_INIT_TIMEOUT.
func initTimeout() (time.Duration, error) {
	name := C.CString("OXCCL_INIT_TIMEOUT")
	defer C.free(unsafe.Pointer(name))
	var variable C.ncclParamHandle_t
	if err := ncclParamBind(&variable, name); err != nil {
		return 0, err
	}
	var ns C.int64_t
	err := ncclParamGetI64(variable, &ns)
	return time.Duration(ns), err
}

func configure(options []Option) *config {
	c := &config{raw: new(C.ncclConfig_t)}
	C.oxgo_initialize(c.raw)
	for _, option := range options {
		option(c)
	}
	return c
}

func (c *config) text(name string, field **C.char, value string) {
	if c.err = errors.Join(c.err, withoutZeros(name, value)); c.err != nil {
		return
	}
	*field = C.CString(value)
	c.texts = append(c.texts, *field)
}

// free is for when the library has read it.
func (c *config) free() {
	for _, text := range c.texts {
		C.free(unsafe.Pointer(text))
	}
}

// InitEnv makes a communicator of all processes that oxccl run, mpirun, srun or torchrun started;
// alone without a launcher. It blocks until all have come.
func InitEnv(ctx context.Context, options ...Option) (*Comm, error) {
	return create(ctx, options, func(handle *C.ncclComm_t, config *C.ncclConfig_t) error {
		return oxcclCommInitEnv(handle, config)
	})
}

// Init makes a communicator of size ranks, which all have the same id. It blocks until all have
// come. Where the context's deadline is over before that, the error names those that did not.
func Init(ctx context.Context, size int, id UniqueID, rank int, options ...Option) (*Comm, error) {
	if err := errors.Join(within32("Init", "size", size), within32("Init", "rank", rank)); err != nil {
		return nil, err
	}
	return create(ctx, options, func(handle *C.ncclComm_t, config *C.ncclConfig_t) error {
		return ncclCommInitRankConfig(handle, C.int(size), id.raw(), C.int(rank), config)
	})
}

// Split makes communicators of the ranks with equal color, ordered by key; nil for the color
// NcclSplitNocolor. It blocks until all have called.
func (c *Comm) Split(ctx context.Context, color, key int, options ...Option) (*Comm, error) {
	if err := errors.Join(c.takes("Split", "color", color), within32("Split", "key", key)); err != nil {
		return nil, err
	}
	part, err := create(ctx, options, func(handle *C.ncclComm_t, config *C.ncclConfig_t) error {
		return ncclCommSplit(c.handle, C.int(color), C.int(key), handle, config)
	})
	if part == nil && err == nil {
		// The others still need this rank. That they may end this communicator afterwards is no
		// failure of the split.
		err = c.rest(ctx)
	}
	return part, err
}

// Shrink makes a communicator without some ranks, which need not be alive; all others call. It ends
// the operations of this one first, which can then only be closed.
func (c *Comm) Shrink(ctx context.Context, exclude []int, options ...Option) (*Comm, error) {
	if err := c.usable(); err != nil {
		return nil, err
	}
	list := make([]C.int, len(exclude)+1)
	for i, rank := range exclude {
		if err := within32("Shrink", "a rank of exclude", rank); err != nil {
			return nil, err
		}
		list[i] = C.int(rank)
	}
	return create(ctx, options, func(handle *C.ncclComm_t, config *C.ncclConfig_t) error {
		return ncclCommShrink(c.handle, &list[0], C.int(len(exclude)), handle, config, NcclShrinkAbort)
	})
}

// GrowID makes the id by which ranks Join one growth of this communicator; the rank that calls it
// passes it to Grow.
func (c *Comm) GrowID() (id UniqueID, err error) {
	if err := c.usable(); err != nil {
		return id, err
	}
	var raw C.ncclUniqueId
	err = ncclCommGetUniqueId(c.handle, &raw)
	return fromRaw(&raw), err
}

// Grow makes a communicator of size ranks; all ranks of this one call, and keep their numbers. The
// rank that called GrowID passes the id, the others nil. It blocks until all have called and
// joined.
func (c *Comm) Grow(ctx context.Context, size int, id *UniqueID, options ...Option) (*Comm, error) {
	if err := c.takes("Grow", "size", size); err != nil {
		return nil, err
	}
	var raw *C.ncclUniqueId
	if id != nil {
		copied := id.raw()
		raw = &copied
	}
	return create(ctx, options, func(handle *C.ncclComm_t, config *C.ncclConfig_t) error {
		return ncclCommGrow(c.handle, C.int(size), raw, -1, handle, config)
	})
}

// Join is for the ranks that Grow adds to a communicator: size is the number of ranks then, id what
// GrowID made. It blocks until all have come.
func Join(ctx context.Context, size int, id UniqueID, rank int, options ...Option) (*Comm, error) {
	if err := errors.Join(within32("Join", "size", size), within32("Join", "rank", rank)); err != nil {
		return nil, err
	}
	raw := id.raw()
	return create(ctx, options, func(handle *C.ncclComm_t, config *C.ncclConfig_t) error {
		return ncclCommGrow(nil, C.int(size), &raw, C.int(rank), handle, config)
	})
}

// create begins a communicator and waits, so that the context can end it.
func create(ctx context.Context, options []Option, begin func(*C.ncclComm_t, *C.ncclConfig_t) error) (*Comm, error) {
	config := configure(options)
	defer config.free()
	if config.err != nil {
		return nil, config.err
	}
	// In C's memory: the library writes the handle when the communicator is made.
	place := (*C.ncclComm_t)(C.calloc(1, C.size_t(unsafe.Sizeof(C.ncclComm_t(nil)))))
	switch err := config.begin(ctx, func() error { return begin(place, config.raw) }); {
	case err == nil && *place == nil:
		// In a group nothing is begun before its end, which writes to the place.
		text := "a communicator cannot be made in a Group"
		return nil, &Error{Code: InvalidUsage, Rank: -1, Peer: -1, Text: text}
	case err != nil && err != InProgress:
		C.free(unsafe.Pointer(place))
		return nil, err
	}
	defer C.free(unsafe.Pointer(place))
	if *place == nil {
		return nil, nil
	}
	c := &Comm{handle: *place}
	err := c.made(ctx)
	if err != nil {
		c.Abort()
		return nil, err
	}
	var rank, size C.int
	if err := ncclCommUserRank(c.handle, &rank); err != nil {
		return nil, err
	}
	if err := ncclCommCount(c.handle, &size); err != nil {
		return nil, err
	}
	c.rank, c.size = int(rank), int(size)
	if c.stream, err = NewStream(); err != nil {
		c.Abort()
		return nil, err
	}
	return c, nil
}

// made waits until the communicator is made. Where the context's deadline is over before, so is the
// library's: what that says names the ranks that did not come.
func (c *Comm) made(ctx context.Context) error {
	over := c.rest(ctx)
	if over == nil {
		return c.Err()
	}
	if !errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return over
	}
	late, cancel := context.WithTimeout(context.Background(), grace)
	defer cancel()
	if c.rest(late) == nil {
		if err := c.Err(); err != nil {
			return fmt.Errorf("%w: %w", over, err)
		}
	}
	return over
}

// rest waits until nothing is under way on the communicator itself.
func (c *Comm) rest(ctx context.Context) error {
	for pause := 10 * time.Microsecond; ; pause = min(2*pause, time.Millisecond) {
		var state C.ncclResult_t
		if err := ncclCommGetAsyncError(c.handle, &state); err != nil {
			return err
		}
		if Result(state) != InProgress {
			return nil
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(pause):
		}
	}
}

// String tells rank and size, and whether it was closed or aborted.
func (c *Comm) String() string {
	closed := ""
	if c.ended.Load() {
		closed = ", closed"
	}
	return fmt.Sprintf("oxccl.Comm, rank %d of %d%s", c.rank, c.size, closed)
}

// Rank is this rank, from 0 on.
func (c *Comm) Rank() int { return c.rank }

// Size is the number of ranks.
func (c *Comm) Size() int { return c.size }

// Device is the index of the device that the communicator works on.
func (c *Comm) Device() (int, error) {
	if err := c.usable(); err != nil {
		return 0, err
	}
	var index C.int
	err := ncclCommCuDevice(c.handle, &index)
	return int(index), err
}

// Err is why the communicator failed; nil where it did not. After Close or Abort it is an error that says so.
func (c *Comm) Err() error {
	if err := c.usable(); err != nil {
		return err
	}
	info := C.oxcclErrorInfo_t{}
	info.size = C.size_t(unsafe.Sizeof(info))
	if err := oxcclCommLastError(c.handle, &info); err != nil {
		return err
	}
	if info.code == 0 {
		return nil
	}
	return &Error{Result(info.code), int(info.rank), int(info.peer), C.GoString(&info.text[0])}
}

// SetTimeout bounds how long an operation may wait for a rank without getting anywhere; a negative
// time is no bound.
func (c *Comm) SetTimeout(limit time.Duration) error {
	if err := c.usable(); err != nil {
		return err
	}
	return oxcclCommSetTimeout(c.handle, C.int64_t(max(limit, -1)))
}

// Abort ends the communicator at once, whatever goroutines use it: its operations end with an
// error, and so do those of the other ranks.
func (c *Comm) Abort() error {
	if c.ended.Swap(true) {
		return nil
	}
	return ncclCommAbort(c.handle)
}

// Revoke ends the operations of the communicator, which can then only be split, shrunk, closed or
// aborted. It blocks a second at most.
func (c *Comm) Revoke() error {
	if err := c.usable(); err != nil {
		return err
	}
	return ncclCommRevoke(c.handle, NcclRevokeDefault)
}

// Suspend gives memory of the communicator back to the system; until Resume it takes no operations,
// and none may be under way.
func (c *Comm) Suspend() error {
	if err := c.usable(); err != nil {
		return err
	}
	return ncclCommSuspend(c.handle, NcclSuspendMem)
}

// Resume lets a suspended communicator take operations again.
func (c *Comm) Resume() error {
	if err := c.usable(); err != nil {
		return err
	}
	return ncclCommResume(c.handle)
}

// MemStat tells how much memory, in bytes, the communicator takes in this process;
// StatGpuMemSuspended is 1 while it is suspended.
func (c *Comm) MemStat(stat CommMemStat) (uint64, error) {
	if err := c.usable(); err != nil {
		return 0, err
	}
	var value C.uint64_t
	err := ncclCommMemStats(c.handle, stat, &value)
	return uint64(value), err
}

// InPlace tells how many collectives so far read or wrote the other ranks' buffers where they lie.
func (c *Comm) InPlace() (uint64, error) {
	if err := c.usable(); err != nil {
		return 0, err
	}
	var count C.uint64_t
	err := oxcclCommInPlace(c.handle, &count)
	return uint64(count), err
}

// ByCopyEngines tells how many operations so far had their data moved by copy engines of a GPU.
func (c *Comm) ByCopyEngines() (uint64, error) {
	if err := c.usable(); err != nil {
		return 0, err
	}
	var count C.uint64_t
	err := oxcclCommByCopyEngines(c.handle, &count)
	return uint64(count), err
}

// Close completes all operations and ends the communicator; it waits for the other ranks. After
// Abort it only frees what is left. Later calls fail with InvalidUsage.
func (c *Comm) Close() error {
	var err error
	if !c.ended.Swap(true) {
		err = ncclCommDestroy(c.handle)
	}
	if !c.closed.Swap(true) {
		if end := c.stream.Close(); err == nil {
			err = end
		}
	}
	return err
}

// PreMulSum makes an operation: a sum in which this rank's elements are first multiplied by factor.
func PreMulSum[T Element](c *Comm, factor T) (RedOp, error) {
	if err := c.usable(); err != nil {
		return 0, err
	}
	var op C.ncclRedOp_t
	err := ncclRedOpCreatePreMulSum(&op, unsafe.Pointer(&factor), dataType[T](), ScalarHostImmediate, c.handle)
	return RedOp(op), err
}

// CloseRedOp ends an operation that PreMulSum made.
func (c *Comm) CloseRedOp(op RedOp) error {
	if err := c.usable(); err != nil {
		return err
	}
	return ncclRedOpDestroy(op, c.handle)
}

// Registration is a registered buffer.
type Registration struct {
	comm   *Comm
	handle unsafe.Pointer
}

// Register registers a buffer, which must outlive the registration.
func Register[T Element](c *Comm, b Buffer[T]) (*Registration, error) {
	if err := c.usable(); err != nil {
		return nil, err
	}
	var handle unsafe.Pointer
	err := ncclCommRegister(c.handle, b.data, C.size_t(uintptr(b.n)*sizeOf[T]()), &handle)
	if err != nil {
		return nil, err
	}
	return &Registration{c, handle}, nil
}

// Close ends the registration; call it before the communicator's.
func (r *Registration) Close() error {
	if err := r.comm.usable(); err != nil {
		return err
	}
	return ncclCommDeregister(r.comm.handle, r.handle)
}

// wait has a call on slices done: what it began is complete, or the context has ended it. Nobody
// uses the slices any more, as the stream has come to its end in both cases.
func (c *Comm) wait(ctx context.Context) error {
	if ctx.Done() == nil {
		return c.stream.Synchronize()
	}
	begun, done, over := time.Now(), make(chan struct{}), make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(over)
		c.overdue(ctx, begun, done)
		c.Abort()
	})
	err := c.stream.Synchronize()
	close(done)
	switch {
	case stop():
		return err
	case err == nil:
		// It is complete, but the communicator is not there any more.
		<-over
		return context.Cause(ctx)
	default:
		<-over
		return fmt.Errorf("%w: %w", context.Cause(ctx), err)
	}
}

// overdue has a call that waits beyond the time of its context fail as one with a limit does: that
// error names the rank that it waits for, and why. A call that does not wait has a little more time.
func (c *Comm) overdue(ctx context.Context, begun time.Time, done <-chan struct{}) {
	if !errors.Is(ctx.Err(), context.DeadlineExceeded) || c.SetTimeout(time.Since(begun)) != nil {
		return
	}
	select {
	case <-done:
	case <-time.After(grace):
	}
}
