#include <cstdio>
#include <cstdlib>
#include "Vtop.h"
#include "verilated.h"
// Clocks a Verilator model: model CYCLES EVERY.
int main(int argc, char **argv) {
    long cycles = atol(argv[1]), every = atol(argv[2]);
    VerilatedContext context;
    Vtop top{&context};
    for (long n = 0; n < cycles; n++) {
        top.rst = n < 3;
        top.clk = 0; top.eval();
        top.clk = 1; top.eval();
        if (n % every == 0) { printf("%ld %08x\n", n, top.sum); fflush(stdout); }
    }
    return 0;
}
