/* A job whose every 4 KiB page can be checked. See `bench/jobs/README.md` for the kinds, the commands and the lines it prints.
 *
 * job KIND BYTES NOISE_PERCENT
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define PAGE 4096
#define WORDS 512
#define RUN 256 /* pages of one nature in a row */
#define MAGIC 0x53544d5050414745ull
#define GONE 0xffff /* version of a page that was given back: reads as zeros */
#define STEP_NS 2000000
#define THREADS 8
#define FILE_BLOCK (1 << 20)

static uint64_t *memory;
static uint16_t *versions;
static uint64_t pages, noise_percent, hot_from;

static pthread_rwlock_t layout = PTHREAD_RWLOCK_INITIALIZER; /* where the memory is, and which pages there are */

static uint64_t mix(uint64_t x) {
    x += 0x9e3779b97f4a7c15ull;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
    return x ^ (x >> 31);
}

static uint64_t now_ns(clockid_t clock) {
    struct timespec t;
    clock_gettime(clock, &t);
    return (uint64_t)t.tv_sec * 1000000000ull + (uint64_t)t.tv_nsec;
}

/* What a page must hold: number and version first, then noise, or text that repeats with the page's number in it. */
static void expected(uint64_t page, uint16_t version, uint64_t *out) {
    if (version == GONE) {
        memset(out, 0, PAGE);
        return;
    }
    uint64_t x = mix(page * 65536 + version);
    if ((page / RUN) % 100 < noise_percent) {
        for (int i = 2; i < WORDS; i++) {
            x ^= x << 13, x ^= x >> 7, x ^= x << 17;
            out[i] = x;
        }
    } else {
        for (int i = 2; i < WORDS; i++) out[i] = (i & 15) ? 0x2020202065756c61ull + (uint64_t)(i & 7) : x & 0xffffff;
    }
    out[0] = MAGIC ^ page;
    out[1] = version;
}

static uint64_t verify(void) {
    static __thread uint64_t want[WORDS];
    uint64_t bad = 0;
    for (uint64_t p = 0; p < pages; p++) {
        expected(p, versions[p], want);
        bad += memcmp(memory + p * WORDS, want, PAGE) != 0;
    }
    return bad;
}

static void change(uint64_t page) {
    versions[page] = (uint16_t)(versions[page] + 1 == GONE ? 1 : versions[page] + 1);
    expected(page, versions[page], memory + page * WORDS);
}

static void say(const char *what, uint64_t value) {
    dprintf(1, "%s %llu %llu\n", what, (unsigned long long)value, (unsigned long long)pages);
}

static void *reader(void *seed) {
    uint64_t x = mix((uint64_t)(uintptr_t)seed), step = 0;
    for (;;) {
        x = mix(x);
        uint64_t p = x % pages;
        pthread_rwlock_rdlock(&layout);
        int wrong = versions[p] != GONE && memory[p * WORDS] != (MAGIC ^ p);
        pthread_rwlock_unlock(&layout);
        if (wrong) say("thread-saw-wrong-page", p);
        if (++step % 16 == 0) usleep(2000);
    }
    return NULL;
}

static void in_child(void) {
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        say("forked", verify());
        _exit(0);
    }
    waitpid(child, NULL, 0);
    say("fork-done", 0);
}

static void give_back(void) {
    uint64_t from = pages - pages / 8;
    pthread_rwlock_wrlock(&layout);
    madvise(memory + from * WORDS, (pages - from) * PAGE, MADV_DONTNEED);
    for (uint64_t p = from; p < pages; p++) versions[p] = GONE;
    pthread_rwlock_unlock(&layout);
    say("dontneed", pages - from);
}

/* Moves the whole memory to another address. */
static void move_away(void) {
    char *to = mmap(NULL, pages * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    pthread_rwlock_wrlock(&layout);
    void *moved = mremap(memory, pages * PAGE, pages * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, to);
    if (moved == MAP_FAILED) {
        perror("mremap");
        exit(1);
    }
    memory = moved;
    pthread_rwlock_unlock(&layout);
    say("moved", 0);
}

/* Changes a share of the pages, in thousandths, at random places. */
static void dirty(uint64_t thousandths) {
    static uint64_t seed = 7;
    uint64_t many = pages * thousandths / 1000;
    for (uint64_t i = 0; i < many; i++) change((seed = mix(seed)) % pages);
    say("dirty", many);
}

/* A file with data that no disk has yet; its second number is the block, so that no two are equal. */
static void write_file(uint64_t megabytes) {
    static uint64_t block[FILE_BLOCK / 8];
    int fd = open("big", O_WRONLY | O_CREAT | O_TRUNC, 0644);
    for (uint64_t b = 0; b < megabytes; b++) {
        for (uint64_t i = 0; i < FILE_BLOCK / 8; i++) block[i] = (i & 7) ? i : mix(b * 131072 + i);
        if (write(fd, block, FILE_BLOCK) != FILE_BLOCK) {
            perror("big");
            exit(1);
        }
    }
    close(fd);
    say("file", megabytes);
}

/* All weights change a little; the rest of the memory is data that was read once. */
static void train(void) {
    for (uint64_t p = hot_from; p < pages; p++) change(p);
    say("trained", pages - hot_from);
}

static void obey(void) {
    char text[64] = {0}, verb[32] = {0};
    unsigned long long value = 0;
    int fd = open("command", O_RDONLY);
    if (fd < 0) return;
    ssize_t got = read(fd, text, sizeof text - 1);
    close(fd);
    unlink("command");
    if (got <= 0 || sscanf(text, "%31s %llu", verb, &value) < 1) return;
    if (!strcmp(verb, "verify")) say("verified", verify());
    else if (!strcmp(verb, "dirty")) dirty(value);
    else if (!strcmp(verb, "train")) train();
    else if (!strcmp(verb, "fork")) in_child();
    else if (!strcmp(verb, "dontneed")) give_back();
    else if (!strcmp(verb, "remap")) move_away();
    else if (!strcmp(verb, "file")) write_file(value);
    else say("unknown", 0);
}

static void line(uint64_t i) {
    dprintf(1, "n %llu %llu %llu\n", (unsigned long long)i, (unsigned long long)now_ns(CLOCK_MONOTONIC),
            (unsigned long long)now_ns(CLOCK_REALTIME));
}

/* Stamps page after page as fast as it can: an image of one instant holds consecutive numbers, in this order. */
static void stamp_for_ever(void) {
    uint64_t next = 0, lines = 0;
    for (uint64_t k = 1;; k++) {
        ((volatile uint64_t *)memory)[(k % pages) * WORDS + 1] = k;
        if ((k & 255) == 0 && now_ns(CLOCK_MONOTONIC) > next) {
            next = now_ns(CLOCK_MONOTONIC) + STEP_NS;
            line(lines++);
        }
    }
}

int main(int argc, char **argv) {
    if (argc != 4) return 2;
    const char *kind = argv[1];
    pages = strtoull(argv[2], NULL, 10) / PAGE;
    noise_percent = strtoull(argv[3], NULL, 10);
    hot_from = pages - pages * 39 / 100;
    memory = mmap(NULL, pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    versions = calloc(pages, sizeof *versions);
    if (memory == MAP_FAILED || versions == NULL) return 3;
    for (uint64_t p = 0; p < pages; p++) expected(p, 0, memory + p * WORDS);
    say("ready", 0);
    if (!strcmp(kind, "torn")) stamp_for_ever();
    pthread_t thread;
    for (uintptr_t i = 0; i < (!strcmp(kind, "threads") ? THREADS : 0); i++) pthread_create(&thread, NULL, reader, (void *)i);
    uint64_t x = 1;
    for (uint64_t i = 0;; i++) {
        line(i);
        x = mix(x);
        if (versions[x % pages] != GONE && memory[(x % pages) * WORDS] != (MAGIC ^ (x % pages))) say("wrong", x % pages);
        obey();
        struct timespec pause = {0, STEP_NS};
        nanosleep(&pause, NULL);
    }
}
