"""Prints a random genome with repeats as FASTA: genome.py SEED BASES [NAME]."""

import random
import sys

seed, size = int(sys.argv[1]), int(sys.argv[2])
name = sys.argv[3] if len(sys.argv) > 3 else "chr1"
chance = random.Random(seed)
repeat = "".join(chance.choices("ACGT", k=900))
bases = ""
while len(bases) < size:
    bases += "".join(chance.choices("ACGT", k=chance.randrange(2000, 9000))) + repeat
print(f">{name}")
for at in range(0, size, 60):
    print(bases[at : min(at + 60, size)])
