"""Finds what a killed test EC2 left: each notes its folder where the next one looks, under a lock that dies with it."""

from __future__ import annotations

import contextlib
import fcntl
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

NOTES = Path(tempfile.gettempdir()) / "spotsurfer-test-ec2"


@contextmanager
def noted(state: Path) -> Iterator[None]:
    """While the block lasts, `state` is somebody's."""
    NOTES.mkdir(mode=0o700, exist_ok=True)
    note, fresh = NOTES / f"{os.getpid()}", NOTES / f"new-{os.getpid()}"
    with fresh.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.write(str(state.resolve()))
        file.flush()
        fresh.rename(note)  # it appears complete and locked
        yield
        note.unlink(missing_ok=True)


def abandoned() -> list[Path]:
    """Folders of those that died; each is returned once."""
    found = []
    for note in NOTES.glob("[0-9]*") if NOTES.exists() else []:
        with contextlib.suppress(OSError), note.open("r+") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            found.append(Path(file.read()))
            note.unlink()
    return [f for f in found if f.is_dir()]
