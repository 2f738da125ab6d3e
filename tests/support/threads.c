/* A program whose threads are seen: each counts in a page of a file, and the first one prints turns. No thread needs another one.
 *
 *   threads FILE COUNT     FILE: COUNT counters of 8 bytes, then their thread numbers
 */
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

static volatile long *page;
static long count;

static void *work(void *number) {
    long i = (long)number;
    page[count + i] = syscall(SYS_gettid);
    for (;;) {
        page[i]++;
        if (i % 2) usleep(200);
    }
    return 0;
}

int main(int argc, char **argv) {
    count = argc > 2 ? atol(argv[2]) : 3;
    int file = open(argv[1], O_RDWR | O_CREAT, 0644);
    if (file < 0 || ftruncate(file, 4096)) return 1;
    page = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    for (long i = 1; i < count; i++) {
        pthread_t thread;
        if (pthread_create(&thread, 0, work, (void *)i)) return 1;
    }
    work(0);
}
