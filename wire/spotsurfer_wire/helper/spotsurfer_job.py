"""Hints of a program to spotsurfer, for programs that want to help. Nothing depends on them.

    import spotsurfer_job

    spotsurfer_job.stage("align")                # shown by `spotsurfer show`, kept in the job's history
    spotsurfer_job.stage("sort", memory="40G", cores=8)  # it will need so much: told to the job's size policy
    spotsurfer_job.please_checkpoint()           # a good moment: "save me soon"; returns at once
    spotsurfer_job.before_freeze(empty_caches)   # called in a thread of its own before each save, as long as it lets us

Python 3.7 or later, standard library alone. Outside of spotsurfer every call does nothing. No call ever raises or waits.
Hints lie in files of the job's own folder, so they are part of checkpoints and move along to other machines.

`before_freeze`: a callback that takes longer than some seconds is not waited for, one that raises is printed to standard
error; the save goes on either way. It runs beside the program's other threads: take care of what they share. A process that was
forked registers its own.
"""

from __future__ import annotations

import contextlib
import os
import threading
import traceback
from collections.abc import Callable

FOLDER = "SPOTSURFER_HINTS"  # the variable that names the folder
STAGE, CHECKPOINT, FREEZE, READY = "stage", "checkpoint", "freeze-", "ready-"

_callbacks: list[Callable[[], object]] = []
_lock = threading.Lock()
_fifo: int | None = None


def stage(name: str, memory: int | str = 0, cores: float = 0) -> bool:
    """Report what the program does now, in a few words, and what it will need for that. False: outside of spotsurfer.

    `memory`: bytes, or a text like "40G"; holds until the next stage. 0 = unknown.
    """
    needs = [f"{key}={value}" for key, value in (("memory", memory), ("cores", cores)) if value]
    return _tell(STAGE, "\n".join([" ".join(str(name).split()), *needs]))


def please_checkpoint() -> bool:
    """Ask for a save soon. Several requests within half a minute count as one. False: outside of spotsurfer."""
    return _tell(CHECKPOINT, "please")


def before_freeze(callback: Callable[[], object]) -> Callable[[], object]:
    """Have `callback()` called before each save; also as a decorator."""
    global _fifo
    with _lock:
        _callbacks.append(callback)
        folder = os.environ.get(FOLDER, "")
        if _fifo is None and folder:
            with contextlib.suppress(OSError):
                _fifo = _opened(os.path.join(folder, f"{FREEZE}{os.getpid()}"))  # noqa: PTH118 -- a small import
                threading.Thread(target=_listen, args=(folder, _fifo), name="spotsurfer", daemon=True).start()
    return callback


def _opened(path: str) -> int:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)  # noqa: PTH108
    os.mkfifo(path, 0o600)
    return os.open(path, os.O_RDWR | os.O_CLOEXEC)  # a reader that never sees an end


def _listen(folder: str, fifo: int) -> None:
    while True:
        asked = os.read(fifo, 4096).split()
        for callback in list(_callbacks):
            try:
                callback()
            except Exception:
                traceback.print_exc()
        if asked:
            _put(folder, f"{READY}{os.getpid()}", asked[-1].decode("ascii", "replace"))


def _tell(name: str, text: str) -> bool:
    folder = os.environ.get(FOLDER, "")
    return bool(folder) and _put(folder, name, text)


def _put(folder: str, name: str, text: str) -> bool:
    """Write a file whole or not at all."""
    half = os.path.join(folder, f".{name}.{os.getpid()}.{threading.get_ident()}")  # noqa: PTH118
    try:
        with open(half, "w", encoding="utf-8", errors="replace") as f:  # noqa: PTH123
            f.write(text + "\n")
        os.replace(half, os.path.join(folder, name))  # noqa: PTH105, PTH118
    except OSError:
        return False
    return True


def _forked() -> None:
    """After a fork: the listening thread stayed with the parent."""
    global _fifo, _lock
    _lock = threading.Lock()
    _callbacks.clear()
    if _fifo is not None:
        with contextlib.suppress(OSError):
            os.close(_fifo)
    _fifo = None


os.register_at_fork(after_in_child=_forked)
