// All kernels, as one translation unit.
#include "exchange.cuh"
#include "interpret.cuh"
#include "packets.cuh"
