"""Prints long reads with errors from a FASTA file as FASTQ: long_reads.py SEED GENOME READS ERROR_RATE."""

import random
import sys
from pathlib import Path

chance = random.Random(int(sys.argv[1]))
genome = "".join(line for line in Path(sys.argv[2]).read_text().split("\n") if not line.startswith(">"))
swap = str.maketrans("ACGT", "TGCA")
for number in range(int(sys.argv[3])):
    length = chance.randrange(1000, 9000)
    begin = chance.randrange(len(genome) - length)
    read = genome[begin : begin + length]
    if chance.random() < 0.5:
        read = read.translate(swap)[::-1]
    read = "".join(
        chance.choice(("", "A", "C", "G", "T", base * 2)) if chance.random() < float(sys.argv[4]) else base for base in read
    )
    print(f"@read{number}\n{read}\n+\n{'I' * len(read)}")
