"""Real input: 40-fold reads that wgsim draws from the genome of *E. coli* 536 (NC_008253)."""

from __future__ import annotations

import gzip
import shutil
import subprocess
from pathlib import Path

from spotsurfer.model.errors import HostUnfit

GENOME = Path("/usr/share/doc/bowtie/examples/genomes/NC_008253.fna.gz")
PAIRS = 660_000  # of 150 bases: 40 times the 4.9 million of the genome
LENGTH = 150
SEED = 7
PACKAGES = {"megahit": "megahit", "wgsim": "samtools"}


def check() -> None:
    """Raises HostUnfit where a program or the genome is missing."""
    for program, package in PACKAGES.items():
        if shutil.which(program) is None:
            raise HostUnfit(f"{program} is missing: run `make demo`, or apt-get install {package}")
    if genome() is None:
        raise HostUnfit("the E. coli genome is missing: run `make demo`, or apt-get install bowtie-examples")


def genome() -> Path | None:
    """Where Debian's bowtie-examples put the genome."""
    if GENOME.is_file():
        return GENOME
    found = sorted(Path("/usr/share").glob("**/NC_008253.fna.gz"))
    return found[0] if found else None


def make(folder: Path) -> list[Path]:
    """Both read files, made once; always the same bytes."""
    files = [folder / "reads_1.fq.gz", folder / "reads_2.fq.gz"]
    if all(f.is_file() for f in files):
        return files
    folder.mkdir(parents=True, exist_ok=True)
    source = genome()
    assert source is not None
    plain = folder / "genome.fna"
    with gzip.open(source) as compressed, plain.open("wb") as out:
        shutil.copyfileobj(compressed, out)
    drawn = [folder / "1.fq", folder / "2.fq"]
    size = ["-N", str(PAIRS), "-1", str(LENGTH), "-2", str(LENGTH), "-S", str(SEED)]
    subprocess.run(
        ["wgsim", *size, str(plain), *map(str, drawn)], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    for made, final in zip(drawn, files, strict=True):
        _pack(made, final)
    plain.unlink()
    return files


def _pack(made: Path, final: Path) -> None:
    """Compressed with no name or time inside, so that the bytes are the same each time; whole or not at all."""
    part = final.with_suffix(".part")
    with made.open("rb") as source, part.open("wb") as raw, gzip.GzipFile("", "wb", 1, raw, mtime=0) as packed:
        shutil.copyfileobj(source, packed, 1 << 20)
    part.replace(final)
    made.unlink()
