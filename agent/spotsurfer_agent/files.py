"""Files of the job from the store into its scratch, before the start; results are in `outputs`.

The agent is root and the job is not trusted with that: no path leaves the job's folder, neither by its name nor by a link.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path, PurePosixPath

from spotsurfer_agent import jobroot, objectkeys
from spotsurfer_agent.protocol import Spec
from spotsurfer_agent.storeport import FileStore

WORK = "work"  # of the scratch: where commands, inputs and outputs live
FULL = frozenset({errno.ENOSPC, errno.EDQUOT})


class FilesError(Exception):
    """One sentence for the user. `kind` is "input" or "output"."""

    def __init__(self, kind: str, sentence: str) -> None:
        super().__init__(sentence)
        self.kind = kind


def job_folder(scratch: str, spec: Spec) -> Path:
    """Where the command runs and to which inputs and outputs are relative. Raises FilesError for a folder outside."""
    if spec.folder in (".", ""):
        return Path(scratch) / WORK
    return Path(scratch) / WORK / safe(spec.folder, "input")


def safe(path: str, kind: str) -> PurePosixPath:
    """The path, if it stays below where it is used; else FilesError."""
    parts = PurePosixPath(path)
    if not path or parts.is_absolute() or ".." in parts.parts or "\0" in path or parts == PurePosixPath("."):
        raise FilesError(kind, f"{path!r} is not a path below the job's folder: use relative paths without '..'")
    return parts


def place_inputs(store: FileStore, spec: Spec, scratch: str) -> None:
    """Fetch all inputs into the job's folder; the engine gives it to the job's user. Raises FilesError("input"), StoreError."""
    folder = job_folder(scratch, spec)
    wanted = sum(spec.inputs.values())
    try:
        jobroot.make_folder(folder)
        free = os.statvfs(folder).f_bavail * os.statvfs(folder).f_frsize
        if wanted > free:
            raise FilesError("input", _full(wanted, free))
        for path, size in sorted(spec.inputs.items()):
            _place(store, spec, folder / safe(path, "input"), (path, size))
    except OSError as e:
        raise FilesError("input", _full(wanted, 0) if e.errno in FULL else f"the inputs can't be placed: {e}") from e


def _place(store: FileStore, spec: Spec, target: Path, wanted: tuple[str, int]) -> None:
    path, size = wanted
    jobroot.make_folder(target.parent)
    got = store.get_file(objectkeys.input_key(spec.job, path), target)
    if got != size:
        what = "is not in the store" if got is None else f"has {got} bytes in the store"
        raise FilesError("input", f"input {path} {what}, {size} bytes were submitted: submit the job again")
    target.chmod(spec.input_modes.get(path, 0o644) & 0o777)


def _full(wanted: int, free: int) -> str:
    return f"the machine's disk is full: the inputs take {wanted} bytes, {free} are free: ask for a larger disk"
