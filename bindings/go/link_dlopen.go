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
	path, looked, advice := os.Getenv("OXCCL_LIBRARY"), "", "OXCCL_LIBRARY has to name OxCCL's liboxccl.so.2"
	if path == "" {
		path, looked = "liboxccl.so.2", " where the system looks for libraries (LD_LIBRARY_PATH, ldconfig)"
		advice = "set OXCCL_LIBRARY to the path of liboxccl.so.2"
	}
	text := C.CString(path)
	defer C.free(unsafe.Pointer(text))
	if why := C.oxgo_load(text); why != nil {
		panic("oxccl: cannot load " + path + looked + ": " + C.GoString(why) + "; " + advice)
	}
}
