/* Open MPI's side of compare-mpi and compare-tcp: all-reduce of floats, one JSON object per size, as
 * oxccl perf writes them. Arguments: the batches that are timed, and the sizes in bytes. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int main(int argc, char **argv) {
  MPI_Init(&argc, &argv);
  int rank, n;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &n);
  int batches = argc > 1 ? atoi(argv[1]) : 5;
  size_t last = 0;
  for (int i = 2; i < argc; i++) {
    size_t bytes = strtoull(argv[i], NULL, 10);
    if (bytes > last) last = bytes;
  }
  float *in = malloc(last), *out = malloc(last);
  for (size_t i = 0; i < last / 4; i++) in[i] = (float)(rank + i % 7), out[i] = 0;
  for (int size = 2; size < argc; size++) {
    size_t bytes = strtoull(argv[size], NULL, 10);
    int iterations = bytes <= 65536 ? 2000 : bytes <= 1048576 ? 300 : bytes <= 8388608 ? 40 : 8;
    double best = 1e30, sum = 0;
    for (int round = 0; round < batches; round++) {
      for (int i = 0; i < iterations / 10 + 1; i++)
        MPI_Allreduce(in, out, (int)(bytes / 4), MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
      MPI_Barrier(MPI_COMM_WORLD);
      double time = MPI_Wtime();
      for (int i = 0; i < iterations; i++)
        MPI_Allreduce(in, out, (int)(bytes / 4), MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
      time = (MPI_Wtime() - time) / iterations, sum += time;
      if (time < best) best = time;
    }
    memset(out, 255, bytes);
    MPI_Allreduce(in, out, (int)(bytes / 4), MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    int own = 0, wrong;
    for (size_t i = 0; i < bytes / 4; i++) own += out[i] != (float)(n * (n - 1) / 2 + n * (i % 7));
    MPI_Allreduce(&own, &wrong, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    if (rank == 0)
      printf("{\"lib\":\"openmpi\",\"ranks\":%d,\"bytes\":%zu,\"time_us\":%.3f,\"time_us_min\":%.3f,\"wrong\":%d}\n",
             n, bytes, sum / batches * 1e6, best * 1e6, wrong);
  }
  MPI_Finalize();
  return 0;
}
