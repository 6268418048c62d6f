/* What two processes exchange over TCP without a library: both ways at once, over as many sockets
 * as there are threads, each of which has an equal part of the bytes.
 *
 *   bare-tcp listen ADDRESS PORT THREADS ROUNDS BYTES...     one side
 *   bare-tcp connect ADDRESS PORT THREADS ROUNDS BYTES...    the other one, which prints
 *
 * Prints the median time of an exchange in µs for each number of bytes. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { PIECE = 1 << 20, MOST_THREADS = 64 };

static int rounds, threads, sockets[MOST_THREADS];
static size_t bytes;
static double *times;
static pthread_barrier_t met;

static void check(int ok, const char *what) {
  if (!ok) {
    perror(what);
    exit(1);
  }
}

static double now_us(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1e6 + t.tv_nsec / 1e3;
}

/* Sends and receives so many bytes. */
static void exchange(int fd, char *out, char *in, size_t len) {
  size_t sent = 0, received = 0;
  while (sent < len || received < len) {
    int moved = 0;
    if (sent < len) {
      size_t piece = len - sent < PIECE ? len - sent : PIECE;
      ssize_t n = send(fd, out + sent, piece, MSG_DONTWAIT | MSG_NOSIGNAL);
      check(n >= 0 || errno == EAGAIN, "send");
      if (n > 0) sent += n, moved = 1;
    }
    if (received < len) {
      ssize_t n = recv(fd, in + received, len - received, MSG_DONTWAIT);
      check(n > 0 || (n < 0 && errno == EAGAIN), "recv");
      if (n > 0) received += n, moved = 1;
    }
    if (!moved && len > 65536) {
      struct pollfd ready = {fd, POLLIN | (sent < len ? POLLOUT : 0), 0};
      poll(&ready, 1, 1000);
    }
  }
}

static void *work(void *number) {
  long thread = (long)number;
  size_t part = bytes / threads, of_thread = thread ? part : bytes - part * (threads - 1);
  char *out = malloc(of_thread + 1), *in = malloc(of_thread + 1);
  memset(out, 1, of_thread);
  memset(in, 2, of_thread);
  for (int i = -rounds / 10 - 1; i < rounds; i++) {
    if (threads > 1) pthread_barrier_wait(&met);
    double start = now_us();
    exchange(sockets[thread], out, in, of_thread);
    if (threads > 1) pthread_barrier_wait(&met);
    if (!thread && i >= 0) times[i] = now_us() - start;
  }
  free(out);
  free(in);
  return NULL;
}

static int less(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

/* Returns a connection, with the listener that there is, or to the address. */
static int join(int listener, const struct sockaddr_in *at) {
  int fd = listener;
  if (listener >= 0) {
    fd = accept(listener, NULL, NULL);
    check(fd >= 0, "accept");
  } else {
    for (int tries = 0;; tries++) {
      fd = socket(AF_INET, SOCK_STREAM, 0);
      if (!connect(fd, (const struct sockaddr *)at, sizeof *at)) break;
      check(errno == ECONNREFUSED && tries < 500, "connect");
      close(fd);
      usleep(10000);
    }
  }
  int on = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  return fd;
}

int main(int argc, char **argv) {
  if (argc < 7) return fprintf(stderr, "bare-tcp listen|connect ADDRESS PORT THREADS ROUNDS BYTES...\n"), 2;
  int listens = !strcmp(argv[1], "listen"), listener = -1, on = 1;
  struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(atoi(argv[3]))};
  check(inet_pton(AF_INET, argv[2], &at.sin_addr) == 1, "address");
  threads = atoi(argv[4]);
  check(threads >= 1 && threads <= MOST_THREADS, "threads");
  if (listens) {
    listener = socket(AF_INET, SOCK_STREAM, 0);
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    check(!bind(listener, (struct sockaddr *)&at, sizeof at), "bind");
    check(!listen(listener, MOST_THREADS), "listen");
  }
  for (int i = 0; i < threads; i++) sockets[i] = join(listener, &at);
  pthread_barrier_init(&met, NULL, threads);
  for (int size = 6; size < argc; size++) {
    bytes = strtoull(argv[size], NULL, 0);
    rounds = atoi(argv[5]);
    if (bytes >= 1 << 20) rounds = rounds / 20 + 5;
    times = calloc(rounds, sizeof *times);
    pthread_t all[MOST_THREADS];
    for (long i = 1; i < threads; i++) pthread_create(&all[i], NULL, work, (void *)i);
    work((void *)0);
    for (int i = 1; i < threads; i++) pthread_join(all[i], NULL);
    qsort(times, rounds, sizeof *times, less);
    if (!listens) printf("%zu %.2f\n", bytes, times[rounds / 2]), fflush(stdout);
    free(times);
  }
  return 0;
}
