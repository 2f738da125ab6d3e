// CUDA C++ with four streams that wait for each other by events, copies from pinned memory, and host callbacks: SIZE_GB STEPS.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <unistd.h>
#include <vector>

#define CHECK(call)                                                                                                   \
    do {                                                                                                              \
        cudaError_t error = (call);                                                                                   \
        if (error != cudaSuccess) {                                                                                   \
            fprintf(stderr, "%s: %s\n", #call, cudaGetErrorString(error));                                            \
            exit(3);                                                                                                  \
        }                                                                                                             \
    } while (0)

static const int STREAMS = 4, BLOCK = 256;
static const size_t SEED_WORDS = 1 << 16;

__global__ void mix(uint64_t *words, size_t count, const uint64_t *seed, uint64_t step) {
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < count; i += (size_t)gridDim.x * blockDim.x)
        words[i] = words[i] * 6364136223846793005ULL + seed[(i + step) % SEED_WORDS];
}

__global__ void sum(const uint64_t *words, size_t count, unsigned long long *total) {
    unsigned long long own = 0;
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < count; i += (size_t)gridDim.x * blockDim.x)
        own += words[i];
    atomicAdd(total, own);
}

struct Called {
    uint64_t *seed;
    long calls;
};

static void CUDART_CB refill(void *data) {  // host callback: makes the next step's seed in pinned memory
    Called *c = (Called *)data;
    c->calls++;
    for (size_t i = 0; i < SEED_WORDS; i++)
        c->seed[i] = c->seed[i] * 2862933555777941757ULL + 3037000493ULL + c->calls;
}

int main(int argc, char **argv) {
    size_t count = (size_t)(atof(argv[1]) * (1 << 30)) / 8 / STREAMS;
    long steps = atol(argv[2]);
    std::vector<cudaStream_t> streams(STREAMS);
    std::vector<cudaEvent_t> events(STREAMS);
    std::vector<uint64_t *> words(STREAMS), seeds(STREAMS);
    std::vector<Called> called(STREAMS);
    unsigned long long *total;
    CHECK(cudaMalloc(&total, sizeof *total));
    for (int s = 0; s < STREAMS; s++) {
        CHECK(cudaStreamCreateWithFlags(&streams[s], cudaStreamNonBlocking));
        CHECK(cudaEventCreateWithFlags(&events[s], cudaEventDisableTiming));
        CHECK(cudaMalloc(&words[s], count * 8));
        CHECK(cudaMemset(words[s], s + 1, count * 8));
        CHECK(cudaMalloc(&seeds[s], SEED_WORDS * 8));
        CHECK(cudaMallocHost(&called[s].seed, SEED_WORDS * 8));
        called[s].calls = 0;
        for (size_t i = 0; i < SEED_WORDS; i++)
            called[s].seed[i] = i * STREAMS + s;
    }
    CHECK(cudaDeviceSynchronize());
    for (long step = 0; step <= steps; step++) {
        for (int s = 0; s < STREAMS; s++) {
            CHECK(cudaStreamWaitEvent(streams[s], events[(s + 1) % STREAMS], 0));
            CHECK(cudaMemcpyAsync(seeds[s], called[s].seed, SEED_WORDS * 8, cudaMemcpyHostToDevice, streams[s]));
            mix<<<512, BLOCK, 0, streams[s]>>>(words[s], count, seeds[s], step);
            CHECK(cudaLaunchHostFunc(streams[s], refill, &called[s]));
            CHECK(cudaEventRecord(events[s], streams[s]));
        }
        unsigned long long told = 0;
        CHECK(cudaDeviceSynchronize());
        CHECK(cudaMemset(total, 0, sizeof *total));
        sum<<<64, BLOCK>>>(words[step % STREAMS], count < (1 << 20) ? count : (1 << 20), total);
        CHECK(cudaMemcpy(&told, total, sizeof told, cudaMemcpyDeviceToHost));
        printf("step %ld %llu %ld\n", step, told, called[0].calls);
        fflush(stdout);
        usleep(40000);
    }
    unsigned long long told = 0;
    CHECK(cudaMemset(total, 0, sizeof *total));
    for (int s = 0; s < STREAMS; s++)
        sum<<<512, BLOCK>>>(words[s], count, total);
    CHECK(cudaMemcpy(&told, total, sizeof told, cudaMemcpyDeviceToHost));
    printf("final %llu\n", told);
    return 0;
}
