"""alignments.py FASTQ: prints each read as aligned somewhere on a chromosome of 500,000 bases (SAM, unsorted)."""

import itertools
import sys
from pathlib import Path

LENGTH = 500000
print(f"@HD\tVN:1.6\n@SQ\tSN:chr1\tLN:{LENGTH}")
with Path(sys.argv[1]).open() as fastq:
    for n, (name, bases, _, quality) in enumerate(itertools.zip_longest(*[map(str.strip, fastq)] * 4)):
        print(f"{name[1:]}\t0\tchr1\t{n * 7919 % 499000 + 1}\t60\t100M\t*\t0\t0\t{bases}\t{quality}")
