/* sysv ROUNDS: a System V shared memory segment, a semaphore and a message queue between two processes. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ipc.h>
#include <sys/msg.h>
#include <sys/sem.h>
#include <sys/shm.h>
#include <sys/wait.h>
#include <unistd.h>
struct letter { long kind; uint64_t x; };

static void step(int sem, int which, int by) {
    struct sembuf op = {which, by, 0};
    while (semop(sem, &op, 1)) {}
}

int main(int argc, char **argv) {
    int rounds = atoi(argv[1]), shm = shmget(IPC_PRIVATE, 4 << 20, 0600), sem = semget(IPC_PRIVATE, 2, 0600), msg = msgget(IPC_PRIVATE, 0600);
    uint64_t *at = shmat(shm, NULL, 0);
    if (fork() == 0) {
        for (int r = 0; r < rounds; r++) {
            step(sem, 0, -1);
            uint64_t x = at[0];
            for (int i = 0; i < 1000000; i++) { x ^= x << 13; x ^= x >> 7; x ^= x << 17; at[x % (4 << 17)] ^= x; }
            at[0] = x;
            struct letter l = {1, x};
            msgsnd(msg, &l, 8, 0);
            step(sem, 1, 1);
        }
        _exit(0);
    }
    at[0] = 88172645463325252ull;
    for (int r = 0; r < rounds; r++) {
        struct letter l;
        step(sem, 0, 1);
        step(sem, 1, -1);
        if (msgrcv(msg, &l, 8, 1, 0) < 0 || l.x != at[0]) return 1;
        if (r % 20 == 0) { printf("%d %016lx\n", r, (unsigned long)l.x); fflush(stdout); }
    }
    wait(NULL);
    printf("end %016lx\n", (unsigned long)at[0]);
    semctl(sem, 0, IPC_RMID);
    msgctl(msg, IPC_RMID, NULL);
    shmctl(shm, IPC_RMID, NULL);
    return argc != 2;
}
