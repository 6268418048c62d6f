package oxccl

import (
	"testing"
	"time"
)

func TestOptionsOfCalls(t *testing.T) {
	onRanks(t, func(t *testing.T, c *Comm) {
		one := int32(c.Rank() + 1)
		for _, with := range []CallOptions{
			{MinCTAs: 1, MaxCTAs: 4, CTAPolicy: CTAPolicyEfficiency, Tag: 1 << 40},
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
		} {
			expectError(t, AllReduce(background, c, one, one, Sum, with...), InvalidArgument, text)
		}
		ok(t, AllReduce(background, c, one, one, Sum, CallOptions{}))
		expect(t, "AllReduce", one, ranks)
		ok(t, c.Close())
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
