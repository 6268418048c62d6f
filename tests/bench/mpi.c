/* Open MPI's side of compare-mpi: all-reduce of floats, one JSON object per size, as oxccl perf
 * writes them. Arguments: smallest and largest size in bytes. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

int main(int argc, char **argv) {
  MPI_Init(&argc, &argv);
  int rank, n;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &n);
  size_t first = argc > 1 ? strtoull(argv[1], NULL, 10) : 8;
  size_t last = argc > 2 ? strtoull(argv[2], NULL, 10) : 33554432;
  float *in = malloc(last), *out = malloc(last);
  for (size_t i = 0; i < last / 4; i++) in[i] = (float)(rank + i % 7), out[i] = 0;
  for (size_t bytes = first; bytes <= last; bytes *= 4) {
    int iterations = bytes <= 65536 ? 2000 : bytes <= 1048576 ? 300 : bytes <= 8388608 ? 40 : 8;
    double best = 1e30, sum = 0;
    for (int round = 0; round < 5; round++) {
      for (int i = 0; i < iterations / 10 + 1; i++)
        MPI_Allreduce(in, out, (int)(bytes / 4), MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
      MPI_Barrier(MPI_COMM_WORLD);
      double time = MPI_Wtime();
      for (int i = 0; i < iterations; i++)
        MPI_Allreduce(in, out, (int)(bytes / 4), MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
      time = (MPI_Wtime() - time) / iterations, sum += time;
      if (time < best) best = time;
    }
    if (rank == 0)
      printf("{\"lib\":\"openmpi\",\"ranks\":%d,\"bytes\":%zu,\"time_us\":%.3f,\"time_us_min\":%.3f}\n", n,
             bytes, sum / 5 * 1e6, best * 1e6);
  }
  MPI_Finalize();
  return 0;
}
