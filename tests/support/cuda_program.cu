// A program on a GPU for the tests and `bench/gpu.py`: program BYTES TURNS MODE, with MODE as in support/cuda_kit.py or "pinned":
// then a thread writes into pinned memory all the time. Every turn changes all of its memory; it ends by printing what that is.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <pthread.h>
#include <signal.h>
#include <unistd.h>
#include <cuda_runtime.h>

static void check(cudaError_t error, const char *what) {
  if (error != cudaSuccess) {
    printf("%s: %s\n", what, cudaGetErrorString(error));
    exit(3);
  }
}

__global__ void step(unsigned *data, size_t count) {
  size_t all = (size_t)gridDim.x * blockDim.x;
  for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < count; i += all)
    data[i] = data[i] * 1664525u + 1013904223u + (unsigned)i;
}

__global__ void forever(volatile unsigned *stop) {
  while (!*stop) {
  }
}

static volatile unsigned *pinned;
static const size_t PINNED = 64 << 20;

static void *write_always(void *) {
  for (;;)
    for (size_t i = PINNED / 8; i < PINNED / 4; i += 1024) pinned[i] += 1;
  return 0;
}

int main(int, char **words) {
  size_t count = strtoull(words[1], 0, 10) / 4;
  int turns = atoi(words[2]);
  const char *mode = words[3];
  setvbuf(stdout, 0, _IOLBF, 0);
  for (; !strcmp(mode, "late") && access("open", F_OK); usleep(50000)) printf("waits\n");
  unsigned *data;
  bool managed = !strcmp(mode, "managed");
  check(managed ? cudaMallocManaged(&data, count * 4) : cudaMalloc(&data, count * 4), "memory");
  check(cudaMemset(data, 1, count * 4), "memset");
  if (!strcmp(mode, "pinned")) {
    check(cudaMallocHost((void **)&pinned, PINNED), "pinned memory");
    pthread_t thread;
    pthread_create(&thread, 0, write_always, 0);
  }
  if (!strcmp(mode, "endless")) {
    unsigned *stop;
    check(cudaMallocHost(&stop, 4), "pinned memory");
    *stop = 0;
    forever<<<1, 1>>>(stop);
    for (int i = 0;; i++) {
      printf("turn %d busy\n", i);
      usleep(20000);
    }
  }
  if (!strcmp(mode, "stranger")) check(system("sh -c 'exec 9</dev/nvidia0; exec sleep 1000' &") ? cudaErrorUnknown : cudaSuccess, "child");
  int pipes[2] = {-1, -1};
  if (!strcmp(mode, "fork") && pipe(pipes) == 0 && fork() == 0) {
    signal(SIGPIPE, SIG_DFL);
    close(pipes[0]);
    for (unsigned said = 1;; said = said * 1664525u + 1013904223u)
      if (write(pipes[1], &said, sizeof said) < 0) _exit(0);
  }
  for (int i = 0; i < turns; i++) {
    step<<<264, 256>>>(data, count);
    check(cudaDeviceSynchronize(), "step");
    if (pinned) check(cudaMemcpyAsync((void *)pinned, data, PINNED / 4 < count * 4 ? PINNED / 4 : count * 4, cudaMemcpyDeviceToHost), "copy");
    unsigned first;
    check(cudaMemcpy(&first, data, 4, cudaMemcpyDeviceToHost), "look");
    unsigned fed = 0;
    if (pipes[0] >= 0 && read(pipes[0], &fed, sizeof fed) < 0) exit(4);
    printf("turn %d %08x %x\n", i, first, fed);
    usleep(20000);
  }
  unsigned *all = (unsigned *)malloc(count * 4);
  check(cudaMemcpy(all, data, count * 4, cudaMemcpyDeviceToHost), "result");
  unsigned long sum = 0;
  for (size_t i = 0; i < count; i++) sum = sum * 31 + all[i];
  printf("end %016lx\n", sum);
  fflush(stdout);
  _exit(7);
}
