// Package example is what the examples share: errors that end them, and the verdict.
package example

import (
	"fmt"
	"log"
	"os"
)

// Check ends the program where a call failed.
func Check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

// Must is a call's value, or the end of the program.
func Must[T any](value T, err error) T {
	Check(err)
	return value
}

// Verdict says whether the result is right, and ends the program where it is not.
func Verdict(right bool, rank, size int, what string) {
	if !right {
		fmt.Printf("rank %d of %d: %s WRONG\n", rank, size, what)
		os.Exit(2)
	}
	fmt.Printf("rank %d of %d: %s verified\n", rank, size, what)
}
