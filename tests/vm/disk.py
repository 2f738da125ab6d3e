"""Disks of guests: a file system without partitions in a sparse file."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

MAKERS = {
    "ext4": ("mke2fs", "-q", "-F", "-t", "ext4"),
    "xfs": ("mkfs.xfs", "-q", "-f"),
    "btrfs": ("mkfs.btrfs", "-q", "-f"),
}


@contextmanager
def made(file: Path, kind: str, size: str) -> Iterator[Path]:
    """A new one, mounted while the block fills it."""
    file.unlink(missing_ok=True)
    run("truncate", "-s", size, str(file))
    run(*MAKERS[kind], str(file))
    with tempfile.TemporaryDirectory() as name:
        run("mount", "-o", "loop", str(file), name)
        try:
            yield Path(name)
        finally:
            run("umount", name)


def run(*command: str) -> str:
    """What it printed. Raises RuntimeError with its last words."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{command[0]}: {done.stderr.strip() or done.stdout.strip() or f'exit code {done.returncode}'}")
    return done.stdout
