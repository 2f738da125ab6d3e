"""A real assembly of minutes: MEGAHIT over reads of a part of E. coli, always the same bytes, and its undisturbed result."""

from __future__ import annotations

import gzip
import hashlib
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from support.tree import ROOT

from spotsurfer.demo import environment

PAIRS, BASES = 400_000, 4_000_000  # 30 times the first four million bases
_CACHE = ROOT / "build" / "assembly"
_JOB = """\
name = "assembly"
command = {command}
inputs = ["reads_1.fq.gz", "reads_2.fq.gz"]
outputs = ["{result}"]
market = "spot-first"
[resources]
cpu = 1
memory = "4G"
"""


def made() -> Path:
    """A folder with the reads, a job file and, after the first time, the checksum of an undisturbed run's result."""
    environment.check()
    _CACHE.mkdir(parents=True, exist_ok=True)
    genome = environment.genome()
    assert genome is not None
    if not (_CACHE / "reads_2.fq.gz").exists():
        with gzip.open(genome, "rt") as source:
            header, *lines = source.read().splitlines()
        (_CACHE / "part.fna").write_text(f"{header}\n{''.join(lines)[:BASES]}\n")
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(environment, "PAIRS", PAIRS)
            patch.setattr(environment, "genome", lambda: _packed(_CACHE / "part.fna"))
            environment.make(_CACHE)
    (_CACHE / "assembly.toml").write_text(_JOB.format(command=json.dumps(environment.COMMAND), result=environment.RESULT))
    return _CACHE


def _packed(plain: Path) -> Path:
    packed = plain.with_suffix(".fna.gz")
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    return packed


def undisturbed() -> str:
    """SHA-256 of the result of a run that nobody disturbs, on this host; computed once, for the same reads and command."""
    folder = made()
    note = folder / f"undisturbed-{hashlib.sha256(json.dumps([environment.COMMAND, PAIRS, BASES]).encode()).hexdigest()[:12]}"
    if not note.exists():
        with tempfile.TemporaryDirectory(dir=folder) as place:
            for name in ("reads_1.fq.gz", "reads_2.fq.gz"):
                Path(place, name).symlink_to(folder / name)
            subprocess.run(environment.COMMAND, cwd=place, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            data = Path(place, environment.RESULT).read_bytes()
        assert data, "an assembly of nothing"
        note.write_text(digest(data))
    return note.read_text()


def digest(data: bytes) -> str:
    """SHA-256, in hexadecimal."""
    return hashlib.sha256(data).hexdigest()


def submit(config: Path, folder: Path) -> str:
    """`spotsurfer submit`, as a user calls it; the job's name."""
    words = [sys.executable, "-m", "spotsurfer", "--config", str(config), "submit", str(folder / "assembly.toml"), "--json"]
    done = subprocess.run(words, capture_output=True, text=True, check=False, cwd=folder)
    assert done.returncode == 0, done.stderr
    return str(json.loads(done.stdout)["id"])
