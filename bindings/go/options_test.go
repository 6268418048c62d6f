package oxccl

import (
	"errors"
	"reflect"
	"testing"
	"time"
)

func TestOptionsOfCalls(t *testing.T) {
	onRanks(t, func(t *testing.T, c *Comm) {
		one := int32(c.Rank() + 1)
		for _, with := range []CallOptions{
			{MinCTAs: 1, MaxCTAs: 4, CTAPolicy: CTAPolicyEfficiency, Tag: 1 << 40},
			{NvlsCTAs: 4, CgaClusterSize: 2},
			{Algorithms: "^ring", OrAutomatic: true},
			{Plan: "one_shot", Deterministic: true, Deadline: time.Minute},
		} {
			own, out, wide := filled(2, one), make([]int32, 2), make([]int32, 2*ranks)
			blocks := []int32{1, 1, 2, 2, 3, 3, 4, 4}
			ok(t, AllReduce(background, c, own, out, Sum, with))
			expect(t, "AllReduce", out, 10, 10)
			ok(t, Reduce(background, c, own, own, Max, 1, with))
			ok(t, Broadcast(background, c, own, 1, with))
			expect(t, "Broadcast", own, 4, 4)
			ok(t, AllGather(background, c, filled(2, one), wide, with))
			expect(t, "AllGather", wide, blocks...)
			ok(t, ReduceScatter(background, c, wide, out, Sum, with))
			expect(t, "ReduceScatter", out, 4*one, 4*one)
			clear(wide)
			ok(t, AllToAll(background, c, filled(2*ranks, one), wide, with))
			expect(t, "AllToAll", wide, blocks...)
			ok(t, Scatter(background, c, wide, out, 2, with))
			expect(t, "Scatter", out, one, one)
			clear(wide)
			ok(t, Gather(background, c, out, wide, 0, with))
			if c.Rank() == 0 {
				expect(t, "Gather", wide, blocks...)
			}
		}
		ok(t, c.Close())
	})
}

func TestErrorsOfOptions(t *testing.T) {
	onRanks(t, func(t *testing.T, c *Comm) {
		one := []int32{1}
		for text, with := range map[string][]CallOptions{
			`argument oxcclOptionPlan is "no_such"`:  {{Plan: "no_such"}},
			"argument maxCTAs is 65":                 {{MaxCTAs: 65}},
			"argument oxcclOptionDeadlineMs is -1":   {{Deadline: -time.Millisecond}},
			`Plan is "a\x00b"; expected a text`:      {{Plan: "a\x00b"}},
			"2 CallOptions; expected at most one":    {{}, {}},
			"argument userProfilerTag is 0x80000000": {{Tag: 1 << 63}},
			"argument nvlsCTAs is -1":                {{NvlsCTAs: -1}},
			"MinCTAs is 1099511627776; expected":     {{MinCTAs: 1 << 40}},
		} {
			expectError(t, AllReduce(background, c, one, one, Sum, with...), InvalidArgument, text)
		}
		ok(t, AllReduce(background, c, one, one, Sum, CallOptions{}))
		expect(t, "AllReduce", one, ranks)
		ok(t, c.Close())
	})
}

// Each field of C's options but those that the library fills is that of an option here, and each
// option has a field, or is one of the library's own, which are in a list.
func TestEveryFieldIsAnOption(t *testing.T) {
	plain := new(CallOptions).lend()
	defer plain.free()
	unset := reflect.ValueOf(plain.config).Elem()
	event, err := NewEvent()
	ok(t, err)
	found := map[string]bool{"size": true, "magic": true, "version": true}
	for i := 0; i < reflect.TypeOf(CallOptions{}).NumField(); i++ {
		var options CallOptions
		switch option := reflect.ValueOf(&options).Elem().Field(i); option.Kind() {
		case reflect.String:
			option.SetString("ring")
		case reflect.Bool:
			option.SetBool(true)
		case reflect.Int, reflect.Int64:
			option.SetInt(2)
		case reflect.Uint64:
			option.SetUint(2)
		default:
			option.Set(reflect.ValueOf(event))
		}
		lent := options.lend()
		config, differing := reflect.ValueOf(lent.config).Elem(), 0
		for j := 0; j < config.NumField(); j++ {
			if !config.Field(j).Equal(unset.Field(j)) {
				found[config.Type().Field(j).Name] = true
				differing++
			}
		}
		lent.free()
		if differing != 1 {
			t.Errorf("%s is in %d fields", reflect.TypeOf(options).Field(i).Name, differing)
		}
	}
	for j := 0; j < unset.NumField(); j++ {
		if name := unset.Type().Field(j).Name; name != "_" && !found[name] {
			t.Errorf("no option for %s", name)
		}
	}
	ok(t, event.Close())
}

// The event comes up behind its call, for which rank 0 waits until the others call, too.
func TestEventOfACall(t *testing.T) {
	onRanks(t, func(t *testing.T, c *Comm) {
		part, err := c.Split(background, 0, 0)
		ok(t, err)
		s, err := NewStream()
		ok(t, err)
		event, err := NewEvent()
		ok(t, err)
		x, err := Alloc[int32](1)
		ok(t, err)
		x.Slice()[0] = int32(c.Rank() + 1)
		state := func(expected bool) {
			if done, err := event.Query(); done != expected || err != nil {
				t.Errorf("the event's state is %v, %v; expected %v", done, err, expected)
			}
		}
		call := func() error {
			return AllReduceAsync(part, x, x, Sum, s, CallOptions{LaunchCompletionEvent: event})
		}
		state(true)
		if c.Rank() == 0 {
			ok(t, call())
			state(false)
		}
		ok(t, Broadcast(background, c, make([]int32, 1), 0))
		if c.Rank() != 0 {
			ok(t, call())
		}
		ok(t, s.Synchronize())
		state(true)
		expect(t, "AllReduce", x.Slice(), 10)
		twice := Group(func() error { return errors.Join(call(), call()) })
		expectError(t, twice, InvalidUsage, "two calls of a group have a launchCompletionEvent")
		for _, end := range []func() error{event.Close, x.Close, s.Close, part.Close, c.Close} {
			ok(t, end())
		}
	})
}

// One call waits for a rank for as long as its own bound says; other communicators go on.
func TestDeadlineOfACall(t *testing.T) {
	onRanks(t, func(t *testing.T, c *Comm) {
		part, err := c.Split(background, 0, 0)
		ok(t, err)
		if c.Rank() == 0 {
			err := Broadcast(background, part, make([]float32, 1), 1, CallOptions{Deadline: 50 * time.Millisecond})
			expectError(t, err, RemoteError, "ms for rank 1")
		}
		x := []float32{1}
		ok(t, AllReduce(background, c, x, x, Sum))
		expect(t, "AllReduce", x, 4)
		for _, end := range []func() error{part.Abort, part.Close, c.Close} {
			ok(t, end())
		}
	})
}

func TestEncryption(t *testing.T) {
	expectError(t, SetEncryption("short"), InvalidArgument, "argument psk is a text of 5 bytes")
	expectError(t, SetEncryption("a\x00b"), InvalidArgument, "expected a text without zeros")
	ok(t, SetEncryption("a key that only these ranks have"))
	defer SetEncryption("")
	onRanks(t, func(t *testing.T, c *Comm) {
		one := []int32{1}
		ok(t, AllReduce(background, c, one, one, Sum))
		expect(t, "AllReduce", one, ranks)
		ok(t, c.Close())
	})
}
