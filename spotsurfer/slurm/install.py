"""Puts the programs into a folder that people put on their PATH."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

from spotsurfer.model.errors import UsageError
from spotsurfer.slurm.programs import PROGRAMS

MARK = "# A program of spotsurfer."
TEXT = f"""#!{{python}} -I
{MARK} `spotsurfer slurm install` wrote it.
from spotsurfer.slurm.programs import main
raise SystemExit(main({{program!r}}, {{partitions!r}}))
"""


def install(folder: Path, partitions: Mapping[str, str]) -> list[Path]:
    """Write all programs; a program of another origin is left alone. Raises UsageError, OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / program for program in PROGRAMS]
    for path in paths:
        if path.exists() and MARK not in path.read_text(errors="replace"):
            raise UsageError(f"{path} is another program: name a folder of its own with --to.")
    for path in paths:
        new = path.with_name(f".{path.name}.new")
        new.write_text(TEXT.format(python=sys.executable, program=path.name, partitions=dict(partitions)))
        new.chmod(0o755)
        new.replace(path)
    return paths
