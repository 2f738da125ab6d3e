// openmp ROUNDS: parallel loops, a reduction of integers, tasks, a critical section and barriers that spin.
#include <omp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

static uint64_t fib(int n) {
    uint64_t a, b;
    if (n < 2) return n;
    if (n < 18) return fib(n - 1) + fib(n - 2);
#pragma omp task shared(a)
    a = fib(n - 1);
    b = fib(n - 2);
#pragma omp taskwait
    return a + b;
}

int main(int argc, char **argv) {
    enum { SIZE = 1 << 20 };
    uint64_t *cells = malloc(SIZE * sizeof *cells), sum = 0, last = 0;
    for (int i = 0; i < SIZE; i++) cells[i] = i;
    for (int r = 0; r < atoi(argv[1]); r++) {
        uint64_t here = 0;
#pragma omp parallel num_threads(4) reduction(^ : here)
        {
#pragma omp for schedule(dynamic, 4096)
            for (int i = 0; i < SIZE; i++) {
                cells[i] = cells[i] * 6364136223846793005ULL + r;
                here ^= cells[i] >> 7;
            }
#pragma omp critical
            last += 1;
#pragma omp barrier
#pragma omp single
            sum += fib(24);
        }
        sum = sum * 31 + here;
        if (r % 100 == 99) printf("%d %016lx %lu\n", r, (unsigned long)sum, (unsigned long)last), fflush(stdout);
    }
    return 0;
}
