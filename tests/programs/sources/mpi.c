// mpi ROUNDS: ranks in a ring, with reductions, broadcasts and windows; prints the host's name at the begin and the end.
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int main(int argc, char **argv) {
    enum { SIZE = 1 << 15 };
    static uint64_t mine[SIZE], from[SIZE];
    char before[256] = "", after[256] = "";
    int rank, ranks;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    gethostname(before, sizeof before - 1);
    for (int i = 0; i < SIZE; i++) mine[i] = rank * SIZE + i;
    for (int r = 0; r < atoi(argv[1]); r++) {
        MPI_Sendrecv(mine, SIZE, MPI_UINT64_T, (rank + 1) % ranks, r, from, SIZE, MPI_UINT64_T, (rank + ranks - 1) % ranks, r,
                     MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        uint64_t here = 0, all;
        for (int i = 0; i < SIZE; i++) here += mine[i] = from[i] * 2862933555777941757ULL + rank + r;
        MPI_Allreduce(&here, &all, 1, MPI_UINT64_T, MPI_BXOR, MPI_COMM_WORLD);
        MPI_Bcast(mine, 16, MPI_UINT64_T, r % ranks, MPI_COMM_WORLD);
        usleep(2000);
        if (!rank && r % 100 == 99) printf("%d %016lx\n", r, (unsigned long)all), fflush(stdout);
    }
    gethostname(after, sizeof after - 1);
    if (!rank) printf("%d ranks, the same host name: %s\n", ranks, strcmp(before, after) ? "no" : "yes");
    MPI_Finalize();
    return 0;
}
