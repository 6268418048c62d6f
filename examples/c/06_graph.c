/* An all-reduce is captured once and launched many times: oxccl run -n 4 ./06_graph */
#include "check.h"

int main(void) {
  ncclComm_t comm;
  oxcclStream_t stream;
  oxcclGraph_t graph;
  oxcclGraphExec_t exec;
  int64_t *x, number = 1, power = 1;
  int rank, nranks;
  CHECK(oxcclCommInitEnv(&comm, NULL));
  CHECK(ncclCommUserRank(comm, &rank));
  CHECK(ncclCommCount(comm, &nranks));
  CHECK(oxcclStreamCreate(&stream));
  CHECK(oxcclMemAlloc((void **)&x, sizeof *x));
  CHECK(oxcclMemcpyAsync(x, &number, sizeof *x, stream));
  CHECK(oxcclStreamBeginCapture(stream, oxcclCaptureThreadLocal));
  CHECK(ncclAllReduce(x, x, 1, ncclInt64, ncclSum, comm, stream)); /* noted, not done */
  CHECK(oxcclStreamEndCapture(stream, &graph));
  CHECK(oxcclGraphInstantiate(&exec, graph));
  for (int i = 0; i < 10; i++) {
    CHECK(oxcclGraphLaunch(exec, stream));
    power *= nranks;
  }
  CHECK(oxcclMemcpyAsync(&number, x, sizeof *x, stream));
  CHECK(oxcclStreamSynchronize(stream, -1));
  CHECK(oxcclGraphDestroy(graph, exec));
  CHECK(oxcclMemFree(x));
  CHECK(oxcclStreamDestroy(stream));
  CHECK(ncclCommDestroy(comm));
  return verdict(number == power, rank, nranks, "ten launches");
}
