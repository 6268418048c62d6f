package oxccl

// #include <stdlib.h>
// #include "shim_gen.h"
// static void oxgo_no_options(ncclCollConfig_t *config) {
//   ncclCollConfig_t initial = NCCL_COLLCONFIG_INITIALIZER;
//   *config = initial;
// }
// static void oxgo_no_encryption(ncclEncryptionConfig_t *config) {
//   ncclEncryptionConfig_t initial = NCCL_ENCRYPTION_CONFIG_INITIALIZER;
//   *config = initial;
// }
// static void oxgo_extend(ncclCollConfig_t *config, ncclConfigExt_t *ext, int option, int i, const char *s) {
//   ncclConfigExt_t made = {config->ext, {OXCCL_VENDOR_ID, option}, {0}};
//   if (s) made.val.s = s; else made.val.i = i;
//   *ext = made;
//   config->ext = ext;
// }
import "C"

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"time"
	"unsafe"
)

// CTAPolicy is the policy of a call about thread blocks of GPUs.
type CTAPolicy int

const (
	// CTAPolicyOfComm leaves it to the communicator.
	CTAPolicyOfComm CTAPolicy = iota
	// CTAPolicyDefault is as fast as possible.
	CTAPolicyDefault
	// CTAPolicyEfficiency takes few thread blocks.
	CTAPolicyEfficiency
	// CTAPolicyZero takes none where copy engines can do the work.
	CTAPolicyZero
)

// CallOptions are options of one collective. Fields that are zero leave it to the communicator. All
// ranks give the same: where thread blocks, policy or algorithms differ, the calls differ, which is
// an error on all ranks; Deadline and Tag are each rank's own. A call takes at most one.
type CallOptions struct {
	// Algorithms to choose from, by the names of oxccl plan or NCCL's with commas between them, such
	// as "ring,tree"; "^ring" excludes some. The call fails where none of them serves, unless
	// OrAutomatic lets the library choose then.
	Algorithms  string
	OrAutomatic bool
	// Plan is the algorithm by a name of oxccl plan, instead of Algorithms. The call fails if it
	// does not serve.
	Plan string
	// Deterministic lets only algorithms reduce that always give the same bits.
	Deterministic bool
	// Deadline bounds how long the call may wait for another rank, in milliseconds rounded up; then
	// the communicator fails. The smaller bound holds of this and SetTimeout.
	Deadline time.Duration
	// MinCTAs and MaxCTAs are the fewest and most thread blocks on GPUs.
	MinCTAs, MaxCTAs int
	// NvlsCTAs is the number of thread blocks for NVLink multicast, and CgaClusterSize that of
	// thread blocks per cluster. Neither has an effect: there is no multicast, and no clusters.
	NvlsCTAs, CgaClusterSize int
	// CTAPolicy is the policy about thread blocks of GPUs.
	CTAPolicy CTAPolicy
	// Tag is the number by which profilers and oxccl ras know the call, below 1<<63.
	Tag uint64
	// LaunchCompletionEvent is recorded on the call's stream behind the call. Either all ranks give
	// an event, or none; in a Group at most one call of a communicator has one.
	LaunchCompletionEvent *Event
}

// lent is what C reads of options: all of it is C's memory.
type lent struct {
	config *C.ncclCollConfig_t
	kept   []unsafe.Pointer
}

func (l *lent) keep(pointer unsafe.Pointer) unsafe.Pointer {
	l.kept = append(l.kept, pointer)
	return pointer
}

func (l *lent) text(value string) *C.char {
	text := C.CString(value)
	l.keep(unsafe.Pointer(text))
	return text
}

func (l *lent) extend(option CallOption, number C.int, text *C.char) {
	ext := l.keep(C.calloc(1, C.sizeof_ncclConfigExt_t))
	C.oxgo_extend(l.config, (*C.ncclConfigExt_t)(ext), C.int(option), number, text)
}

func (l *lent) free() {
	for _, pointer := range l.kept {
		C.free(pointer)
	}
}

// withoutZeros refuses a text that C would cut off.
func withoutZeros(argument, value string) error {
	if !strings.ContainsRune(value, 0) {
		return nil
	}
	text := fmt.Sprintf("%s is %q; expected a text without zeros", argument, value)
	return &Error{Code: InvalidArgument, Rank: -1, Peer: -1, Text: text}
}

// check refuses what C would cut off.
func (o *CallOptions) check() error {
	return errors.Join(
		withoutZeros("Algorithms", o.Algorithms),
		withoutZeros("Plan", o.Plan),
		within32("CallOptions", "MinCTAs", o.MinCTAs),
		within32("CallOptions", "MaxCTAs", o.MaxCTAs),
		within32("CallOptions", "NvlsCTAs", o.NvlsCTAs),
		within32("CallOptions", "CgaClusterSize", o.CgaClusterSize),
		within32("CallOptions", "CTAPolicy", int(o.CTAPolicy)),
	)
}

// lend makes C's options of those that were checked.
func (o *CallOptions) lend() *lent {
	l := new(lent)
	l.config = (*C.ncclCollConfig_t)(l.keep(C.calloc(1, C.sizeof_ncclCollConfig_t)))
	C.oxgo_no_options(l.config)
	if o.Algorithms != "" {
		l.config.algSelection = l.text(o.Algorithms)
	}
	if o.OrAutomatic {
		l.config.forceAlgSelection = 0
	}
	number := func(field *C.int, value int) {
		if value != 0 {
			*field = C.int(value)
		}
	}
	number(&l.config.minCTAs, o.MinCTAs)
	number(&l.config.maxCTAs, o.MaxCTAs)
	number(&l.config.nvlsCTAs, o.NvlsCTAs)
	number(&l.config.cgaClusterSize, o.CgaClusterSize)
	if o.CTAPolicy != CTAPolicyOfComm {
		// Their numbers follow each other in C as well.
		l.config.CTAPolicy = C.int(int(o.CTAPolicy-CTAPolicyDefault) + NcclCtaPolicyDefault)
	}
	l.config.userProfilerTag = C.uint64_t(o.Tag)
	if o.LaunchCompletionEvent != nil {
		l.config.launchCompletionEvent = o.LaunchCompletionEvent.handle
	}
	if o.Plan != "" {
		l.extend(OptionPlan, 0, l.text(o.Plan))
	}
	if o.Deterministic {
		l.extend(OptionDeterministic, 1, nil)
	}
	if o.Deadline != 0 {
		ms := o.Deadline / time.Millisecond
		if o.Deadline%time.Millisecond > 0 {
			ms++
		}
		l.extend(OptionDeadlineMs, C.int(max(min(ms, math.MaxInt32), math.MinInt32)), nil)
	}
	return l
}

// configured makes a plain call, or one with options where there are any.
func configured(options []CallOptions, plain func() error, with func(*C.ncclCollConfig_t) error) error {
	if len(options) == 0 {
		return plain()
	}
	if len(options) > 1 {
		text := fmt.Sprintf("options: %d CallOptions; expected at most one", len(options))
		return &Error{Code: InvalidArgument, Rank: -1, Peer: -1, Text: text}
	}
	o := &options[0]
	if err := o.check(); err != nil {
		return err
	}
	lent := o.lend()
	defer lent.free()
	return with(lent.config)
}

// SetEncryption encrypts the connections by which communicators are made from now on, with a key of
// at least 16 bytes that all ranks have and nobody can guess; "" ends that. Only ranks of one host
// can have encrypted connections.
func SetEncryption(key string) error {
	if err := withoutZeros("key", key); err != nil {
		return err
	}
	config := new(C.ncclEncryptionConfig_t)
	C.oxgo_no_encryption(config)
	config.mode = C.int(NCCL_ENCRYPTION_MODE_NONE)
	if key != "" {
		config.mode = C.int(NCCL_ENCRYPTION_MODE_PSK)
		config.psk = C.CString(key)
		defer C.free(unsafe.Pointer(config.psk))
	}
	return ncclSetEncryption(config)
}
