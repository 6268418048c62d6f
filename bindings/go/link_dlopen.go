//go:build oxccl_dlopen

package oxccl

// #cgo CFLAGS: -DOXCCL_DLOPEN
// #cgo LDFLAGS: -ldl
// #include "shim_gen.h"
import "C"

import (
	"os"
	"unsafe"
)

// Without the library nothing of this package works, as if the program had been linked with it.
func init() {
	path, looked := os.Getenv("OXCCL_LIBRARY"), ""
	if path == "" {
		path, looked = "liboxccl.so.2", " where the system looks for libraries (LD_LIBRARY_PATH, ldconfig)"
	}
	text := C.CString(path)
	defer C.free(unsafe.Pointer(text))
	if why := C.oxgo_load(text); why != nil {
		panic("oxccl: cannot load " + path + looked + ": " + C.GoString(why) + "; set OXCCL_LIBRARY to the path of liboxccl.so.2")
	}
}
