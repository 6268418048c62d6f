module oxccl

go 1.21
