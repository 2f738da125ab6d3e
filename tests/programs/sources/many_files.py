"""Writes a Makefile and C sources that take a while to compile: many_files.py COUNT."""

import sys
from pathlib import Path

count = int(sys.argv[1])
for i in range(count):
    body = "".join(
        f"static long f{j}(long x) {{ for (long k = 0; k < {j + 3}; k++) x = (x * {1103 + j * i} + k) ^ (x >> {j % 7 + 1});"
        " return x; }\n"
        for j in range(160)
    )
    calls = "".join(f"x = f{j}(x); " for j in range(160))
    Path(f"part{i}.c").write_text(f"{body}long part{i}(long x) {{ {calls}return x; }}\n")
names = " ".join(f"part{i}.o" for i in range(count))
declared = "".join(f"long part{i}(long); " for i in range(count))
used = "".join(f"x = part{i}(x); " for i in range(count))
Path("main.c").write_text(
    f'#include <stdio.h>\n{declared}int main(void) {{ long x = 1; {used}printf("%lx\\n", x); return 0; }}\n'
)
Path("Makefile").write_text(
    f"result.txt: program\n\t./program > $@\nprogram: main.o {names}\n\t$(CC) -o $@ $^\n%.o: %.c\n\t$(CC) -O2 -c -o $@ $<\n"
)
