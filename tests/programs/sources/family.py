"""Prints related sequences as FASTA: family.py SEED COUNT LENGTH [ALPHABET]; each differs from an earlier one."""

import random
import sys

seed, count, length = (int(a) for a in sys.argv[1:4])
letters = sys.argv[4] if len(sys.argv) > 4 else "ACGT"
chance = random.Random(seed)
made = ["".join(chance.choices(letters, k=length))]
for _ in range(count - 1):
    parent = list(chance.choice(made))
    for _ in range(length // 12):
        parent[chance.randrange(length)] = chance.choice(letters)
    made.append("".join(parent))
for n, bases in enumerate(made):
    print(f">s{n}\n{bases}")
