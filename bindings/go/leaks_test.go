package oxccl

import (
	"os"
	"runtime/debug"
	"strings"
	"testing"
	"time"
)

// use is what this process has open: descriptors, threads, and kB of memory.
func use(t *testing.T) (descriptors, threads, memory int) {
	t.Helper()
	debug.FreeOSMemory()
	entries := func(folder string) int {
		list, err := os.ReadDir(folder)
		ok(t, err)
		return len(list)
	}
	text, err := os.ReadFile("/proc/self/status")
	ok(t, err)
	_, after, _ := strings.Cut(string(text), "VmRSS:")
	for _, digit := range after[:strings.Index(after, " kB")] {
		if '0' <= digit && digit <= '9' {
			memory = 10*memory + int(digit-'0')
		}
	}
	return entries("/proc/self/fd"), entries("/proc/self/task"), memory
}

// What is made and closed again and again, and calls that fail, leave nothing behind.
func TestNothingLeaks(t *testing.T) {
	if os.Getenv("OXCCL_RANK") != "" {
		t.Skip("about everything in one process")
	}
	round := func() {
		onRanks(t, func(t *testing.T, c *Comm) {
			s, err := NewStream()
			ok(t, err)
			// More than there is of addresses, if it is never given back.
			x, err := Alloc[byte](1 << 30)
			ok(t, err)
			registered, err := Register(c, x)
			ok(t, err)
			w, err := OpenWindow(c, x)
			ok(t, err)
			g, err := Capture(s, func() error { return AllReduceAsync(c, x.Part(0, 9), x.Part(0, 9), Max, s) })
			ok(t, err)
			ok(t, g.Launch(s))
			ok(t, s.Synchronize())
			e, err := NewEvent()
			ok(t, err)
			part, err := c.Split(background, 0, 0)
			ok(t, err)
			for i := 0; i < 1000; i++ {
				if BroadcastAsync(c, x, -1, s) == nil {
					t.Error("a root of -1 is taken")
				}
			}
			for _, close := range []func() error{part.Close, e.Close, g.Close, w.Close, registered.Close, s.Close, c.Close, x.Close} {
				ok(t, close())
			}
		})
	}
	for i := 0; i < 3; i++ {
		round()
	}
	descriptors, threads, memory := use(t)
	for i := 0; i < 30; i++ {
		round()
	}
	// An error's text takes 0.6 kB, and 120 000 of them would be 70 MB. A thread may keep the last
	// communicator that it used, and ends a little later; some of Go's stay for good.
	for deadline := time.Now().Add(10 * time.Second); ; {
		d, th, m := use(t)
		if d <= descriptors+16 && th <= threads+16 && m <= memory+(32<<10) {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d descriptors, %d threads, %d kB became %d, %d, %d", descriptors, threads, memory, d, th, m)
		}
	}
}
