"""Writes family.sto, an alignment of one protein family, and proteins.fa with members and strangers: proteins.py SEED COUNT."""

import random
import sys
from pathlib import Path

AMINO = "ACDEFGHIKLMNPQRSTVWY"
chance = random.Random(int(sys.argv[1]))
ancestor = chance.choices(AMINO, k=260)


def member(rate: float) -> str:
    return "".join(chance.choice(AMINO) if chance.random() < rate else a for a in ancestor)


rows = [f"member{i:<6}{member(0.4)}" for i in range(40)]
Path("family.sto").write_text("# STOCKHOLM 1.0\n" + "\n".join(rows) + "\n//\n")
with Path("proteins.fa").open("w") as out:
    for i in range(int(sys.argv[2])):
        stranger = "".join(chance.choices(AMINO, k=chance.randrange(100, 700)))
        text = stranger[:80] + member(0.55) + stranger[80:] if i % 20 == 0 else stranger
        out.write(f">protein{i}\n{text}\n")
