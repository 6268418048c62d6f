module examples

go 1.21

require oxccl v0.0.0

replace oxccl => ../../bindings/go
