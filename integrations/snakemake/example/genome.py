"""Prints a made-up genome of so many bases, the same at each run."""

import random
import sys

chance = random.Random(30)  # noqa: S311 - the same at each run
print(">chr1")
left = int(sys.argv[1])
while left > 0:
    print("".join(chance.choices("ACGT", k=min(60, left))))
    left -= 60
