//go:build !cgo

package oxccl

// Without cgo the compiler leaves out most of this package, and names this.
var _ = oxccl_needs_cgo_and_a_C_compiler
