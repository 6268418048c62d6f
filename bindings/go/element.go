package oxccl

import (
	"fmt"
	"reflect"
	"unsafe"
)

// Types of elements that Go has none for; the bits only.
type (
	// F16 is IEEE binary16.
	F16 struct{ Bits uint16 }
	// BF16 is the upper half of a binary32.
	BF16 struct{ Bits uint16 }
	// F8E4M3 is OCP E4M3.
	F8E4M3 struct{ Bits uint8 }
	// F8E5M2 is OCP E5M2.
	F8E5M2 struct{ Bits uint8 }
)

// Element is a type that collectives know.
type Element interface {
	~int8 | ~uint8 | ~int32 | ~uint32 | ~int64 | ~uint64 | ~int | ~uint | ~float32 | ~float64 |
		F16 | BF16 | F8E4M3 | F8E5M2
}

func sizeOf[T Element]() uintptr {
	var zero T
	return unsafe.Sizeof(zero)
}

func dataType[T Element]() DataType {
	var zero T
	switch any(zero).(type) {
	case float32:
		return Float32
	case float64:
		return Float64
	case F16:
		return Float16
	case BF16:
		return Bfloat16
	case F8E4M3:
		return Float8e4m3
	case F8E5M2:
		return Float8e5m2
	}
	switch reflect.TypeOf(zero).Kind() {
	case reflect.Int8:
		return Int8
	case reflect.Uint8:
		return Uint8
	case reflect.Int32:
		return Int32
	case reflect.Uint32:
		return Uint32
	case reflect.Float32:
		return Float32
	case reflect.Float64:
		return Float64
	case reflect.Uint, reflect.Uint64:
		if unsafe.Sizeof(zero) == 4 {
			return Uint32
		}
		return Uint64
	default:
		if unsafe.Sizeof(zero) == 4 {
			return Int32
		}
		return Int64
	}
}

// Buffer is memory of a device, outside Go's heap, which other ranks of this host read and write in
// place. The zero value has no elements.
type Buffer[T Element] struct {
	data unsafe.Pointer
	n    int
	// Whether it is memory of a GPU.
	far bool
	// Whether it was freed: it has no address then, but its length, so that calls with it fail.
	closed bool
}

// Alloc makes a buffer of n elements, all zero, on the current device.
func Alloc[T Element](n int) (Buffer[T], error) {
	var data unsafe.Pointer
	if n < 0 || uintptr(n) > ^uintptr(0)>>1/sizeOf[T]() {
		text := fmt.Sprintf("Alloc: n is %d; expected 0 or more, and no more than memory can hold", n)
		return Buffer[T]{}, &Error{Code: InvalidArgument, Rank: -1, Peer: -1, Text: text}
	}
	kind, err := allocate(&data, uintptr(n)*sizeOf[T]())
	if err != nil {
		return Buffer[T]{}, err
	}
	return Buffer[T]{data: data, n: n, far: kind == DeviceCuda}, nil
}

// Close frees the buffer, which no operation may be using. Parts of it must not be closed.
func (b *Buffer[T]) Close() error {
	if b.closed {
		return nil
	}
	data := b.data
	b.data, b.closed = nil, true
	return oxcclMemFree(data)
}

// Len is the number of elements.
func (b Buffer[T]) Len() int { return b.n }

// Part is elements from on, up to but without to; it belongs to the whole.
func (b Buffer[T]) Part(from, to int) Buffer[T] {
	part := view(unsafe.Slice((*T)(b.data), b.n)[from:to])
	part.far = b.far
	return part
}

// Slice is the elements themselves, where the device's memory is the host's; it panics where it is
// not: CopyIn and CopyOut work on every device. After Close there are none.
func (b Buffer[T]) Slice() []T {
	if b.closed {
		return nil
	}
	if b.far {
		panic("oxccl: Slice of a GPU's memory; use CopyIn and CopyOut")
	}
	return unsafe.Slice((*T)(b.data), b.n)
}

// view is a slice as a buffer, for as long as it is pinned.
func view[T Element](elements []T) Buffer[T] {
	return Buffer[T]{data: unsafe.Pointer(unsafe.SliceData(elements)), n: len(elements)}
}
