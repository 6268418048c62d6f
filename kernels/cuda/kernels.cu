// All kernels, as one translation unit.
#include "edges.cuh"
#include "exchange.cuh"
#include "expect.cuh"
#include "flow.cuh"
#include "interpret.cuh"
#include "messages.cuh"
#include "one_sided.cuh"
#include "packets.cuh"
