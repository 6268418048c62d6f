//go:build !oxccl_dlopen

package oxccl

// #cgo pkg-config: oxccl
import "C"
