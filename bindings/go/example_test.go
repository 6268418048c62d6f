package oxccl_test

import (
	"context"
	"fmt"

	"oxccl"
)

// Started by oxccl run -n 4 the sum is 4; alone it is 1.
func ExampleAllReduce() {
	ctx := context.Background()
	comm, err := oxccl.InitEnv(ctx)
	if err != nil {
		panic(err)
	}
	defer comm.Close()
	x := []float32{1, 1, 1}
	if err := oxccl.AllReduce(ctx, comm, x, x, oxccl.Sum); err != nil {
		panic(err)
	}
	fmt.Println(x[0] == float32(comm.Size()))
	// Output: true
}
