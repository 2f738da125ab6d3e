/* files ROUNDS: a deleted open file, a deleted mapped file, a shared mapping, a memfd (sealed and not), an anonymous shared
   mapping with a child, an O_TMPFILE; each is changed on and checked against the others. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>
#define WORDS (1 << 19)
#define BYTES (WORDS * 8L)
#define KINDS 6

static void die(const char *what) { perror(what); exit(1); }

static uint64_t *map(int fd, int flags) {
    void *p = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, flags, fd, 0);
    if (p == MAP_FAILED) die("mmap");
    return p;
}

static int sized(int fd, const char *what) {
    if (fd < 0 || ftruncate(fd, BYTES)) die(what);
    return fd;
}

int main(int argc, char **argv) {
    int rounds = atoi(argv[1]), to[2], from[2];
    int deleted = sized(open("deleted.bin", O_RDWR | O_CREAT, 0600), "deleted");
    int mapped = sized(open("mapped.bin", O_RDWR | O_CREAT, 0600), "mapped");
    int kept = sized(open("kept.bin", O_RDWR | O_CREAT, 0600), "kept");
    int memory = sized(memfd_create("memory", MFD_ALLOW_SEALING), "memfd");
    int nameless = sized(open(".", O_RDWR | O_TMPFILE, 0600), "O_TMPFILE");
    if (fcntl(memory, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW)) die("seals");
    uint64_t *at[KINDS] = {map(mapped, MAP_SHARED), map(kept, MAP_SHARED), map(memory, MAP_SHARED), map(nameless, MAP_SHARED),
                           map(-1, MAP_SHARED | MAP_ANONYMOUS), map(-1, MAP_PRIVATE | MAP_ANONYMOUS)};
    unlink("deleted.bin");
    unlink("mapped.bin");
    if (pipe(to) || pipe(from)) die("pipe");
    if (fork() == 0) { /* the child answers with a word of the anonymous shared mapping */
        uint64_t index;
        close(to[1]);
        while (read(to[0], &index, 8) == 8) if (write(from[1], &at[4][index], 8) != 8) _exit(1);
        _exit(0);
    }
    close(to[0]);
    uint64_t x = 88172645463325252ull, answer, back;
    for (int r = 0; r < rounds; r++) {
        for (int i = 0; i < 60000; i++) {
            x ^= x << 13; x ^= x >> 7; x ^= x << 17;
            for (int k = 0; k < KINDS; k++) at[k][x % WORDS] += x;
        }
        uint64_t index = x % WORDS;
        if (pwrite(deleted, &x, 8, index * 8) != 8 || pread(deleted, &back, 8, index * 8) != 8) die("deleted");
        if (write(to[1], &index, 8) != 8 || read(from[0], &answer, 8) != 8) die("child");
        if (back != x || answer != at[4][index]) { printf("round %d: wrong\n", r); return 1; }
        if (memcmp(at[r % KINDS], at[(r + 1) % KINDS], BYTES)) { printf("round %d: %d differs\n", r, r % KINDS); return 1; }
        if (r % 50 == 0) { printf("%d %016lx\n", r, (unsigned long)x); fflush(stdout); }
    }
    close(to[1]);
    wait(NULL);
    printf("end %016lx\n", (unsigned long)x);
    return argc != 2;
}
