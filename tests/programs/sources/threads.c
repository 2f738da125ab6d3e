/* threads ROUNDS: 16 threads with a barrier, mutexes, condition variables and thread-local memory; prints sums that depend on all. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#define N 16
static pthread_barrier_t barrier;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t turn_over = PTHREAD_COND_INITIALIZER;
static uint64_t shared[N], total;
static int turn, rounds;
static __thread uint64_t own;

static uint64_t mix(uint64_t x) {
    for (int i = 0; i < 200000; i++) { x ^= x << 13; x ^= x >> 7; x ^= x << 17; }
    return x;
}

static void *work(void *arg) {
    long me = (long)arg;
    uint32_t *table = calloc(1 << 18, 4);
    own = 88172645463325252ull + me;
    for (int r = 0; r < rounds; r++) {
        own = mix(own ^ shared[(me + 1) % N]);
        table[own % (1 << 18)] += (uint32_t)own;
        pthread_barrier_wait(&barrier);
        pthread_mutex_lock(&lock);
        while (turn != me) pthread_cond_wait(&turn_over, &lock);
        shared[me] = own;
        total = total * 31 + own + table[total % (1 << 18)];
        turn = (turn + 1) % N;
        if (me == N - 1 && r % 10 == 0) { printf("%d %016lx\n", r, (unsigned long)total); fflush(stdout); }
        pthread_cond_broadcast(&turn_over);
        pthread_mutex_unlock(&lock);
        pthread_barrier_wait(&barrier);
    }
    free(table);
    return NULL;
}

int main(int argc, char **argv) {
    pthread_t t[N];
    rounds = atoi(argv[1]);
    pthread_barrier_init(&barrier, NULL, N);
    for (long i = 0; i < N; i++) pthread_create(&t[i], NULL, work, (void *)i);
    for (int i = 0; i < N; i++) pthread_join(t[i], NULL);
    printf("end %016lx\n", (unsigned long)total);
    return argc != 2;
}
