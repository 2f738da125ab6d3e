"""Files of the job from the store into its scratch before the start, and its results from there to the store.

The agent is root and the job is not trusted: no path leaves the job's folder, neither by its name nor by a link. The agent
opens a result file once, checks where it really lies, and reads it through that descriptor only, so that a running job
can't swap it.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from spotsurfer_wire import object_keys
from spotsurfer_wire.messages import OutputObject, Spec
from spotsurfer_wire.store.port import FileStore

from spotsurfer_agent.host import root_fs
from spotsurfer_agent.linux import file_copy

# ---- Inputs

WORK = "work"  # of the scratch: the folder of commands, inputs and outputs
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
    """The path, if it stays below the folder that it is used in; else FilesError."""
    parts = PurePosixPath(path)
    if not path or parts.is_absolute() or ".." in parts.parts or "\0" in path or parts == PurePosixPath("."):
        raise FilesError(kind, f"{path!r} is not a path below the job's folder: use relative paths without '..'")
    return parts


def place_inputs(store: FileStore, spec: Spec, scratch: str) -> None:
    """Fetch all inputs into the job's folder; the engine gives it to the job's user. Raises FilesError("input"), StoreError."""
    folder = job_folder(scratch, spec)
    wanted = sum(spec.inputs.values())
    try:
        root_fs.make_folder(folder)
        free = os.statvfs(folder).f_bavail * os.statvfs(folder).f_frsize
        if wanted > free:
            raise FilesError("input", full_disk(wanted, free))
        for path, size in sorted(spec.inputs.items()):
            target = folder / safe(path, "input")
            root_fs.make_folder(target.parent)
            got = store.get_file(object_keys.input_key(spec.array or spec.job, path), target)
            if got != size:
                what = "is not in the store" if got is None else f"has {got} bytes in the store"
                raise FilesError("input", f"input {path} {what}, {size} bytes were submitted: submit the job again")
            target.chmod(spec.input_modes.get(path, 0o644) & 0o777)
    except OSError as e:
        raise FilesError("input", full_disk(wanted, 0) if e.errno in FULL else f"the inputs can't be placed: {e}") from e


def full_disk(wanted: int, free: int) -> str:
    """What is said of a disk that is too small for what was sent along."""
    return f"the machine's disk is full: the inputs take {wanted} bytes, {free} are free: ask for a larger disk"


# ---- Results: found by the job's patterns, digested, sent to the store

THREADS = 4


@dataclass(slots=True)
class Found:
    """Files that the patterns match, by their name below the job's folder, and what can't be delivered."""

    files: dict[str, Path] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)  # patterns that match no file of the job
    unnamed: list[str] = field(default_factory=list)  # files of the job under names that no key can hold
    skipped: list[str] = field(default_factory=list)  # not files of the job: links out of its folder, pipes, sockets


@dataclass(slots=True)
class Published:
    """What was uploaded, and what could not be."""

    files: dict[str, OutputObject] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)
    unnamed: list[str] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)

    @property
    def sizes(self) -> dict[str, int]:
        """Bytes of each file."""
        return {name: one.size for name, one in self.files.items()}

    @property
    def digests(self) -> dict[str, str]:
        """SHA-256 of each file, in hexadecimal digits."""
        return {name: one.sha256 for name, one in self.files.items()}


def find(spec: Spec, scratch: str) -> Found:
    """All files that the patterns match now. A folder stands for everything in it; `**` for folders of any depth."""
    found, folder = Found(), job_folder(scratch, spec)
    root = Path(scratch).resolve()
    for pattern in spec.outputs:
        matched = sorted(_matches(folder, pattern)) if _usable(pattern) else []
        plain = {file for file in matched if _plain(file, root)}
        if not plain:
            found.missing.append(pattern)
        for file in matched:
            name = file.relative_to(folder).as_posix()
            if name.startswith(object_keys.HOME_RESULTS):
                continue
            if file not in plain:
                found.skipped.append(shown(name))
            elif not is_nameable(name):
                found.unnamed.append(shown(name))
            else:
                found.files[name] = file
    return found


def publish(
    store: FileStore,
    spec: Spec,
    prefix: str,
    scratch: str,
    copies: Path | None = None,
    check: Callable[[], None] = lambda: None,
) -> Published:
    """Upload everything that the patterns match, below `prefix`. Raises StoreError; FilesError("output").

    `copies`: a folder in which each file of a job that runs on is copied before it is read; None = they stand still. `check` is
    called before each file, and raises FilesError to break off.
    """
    found, root = find(spec, scratch), Path(scratch).resolve()

    def send(named: tuple[str, Path]) -> tuple[str, OutputObject | None]:
        check()
        name, file = named
        return name, _send(store, prefix + name, file, root, copies)

    with ThreadPoolExecutor(THREADS, "outputs") as pool:
        sent = list(pool.map(send, found.files.items()))
    files = {name: one for name, one in sent if one is not None}
    gone = [name for name, one in sent if one is None]
    return Published(files, found.missing, found.unnamed, sorted({*found.skipped, *gone}))


def _send(store: FileStore, key: str, file: Path, root: Path, copies: Path | None) -> OutputObject | None:
    """Send one file; None if it is gone, or not inside `root`."""
    try:
        with _opened(file, root) as path:
            if path is None:
                return None
            with _copied(path, copies) as still:
                with still.open("rb") as f:
                    digest = hashlib.file_digest(f, "sha256").hexdigest()
                return OutputObject(store.put_file(key, still), digest)
    except FileNotFoundError:
        return None
    except OSError as e:
        raise FilesError("output", f"output {file.name} can't be read: {e}") from e


@contextlib.contextmanager
def _opened(file: Path, root: Path) -> Iterator[Path | None]:
    """A path that stays this very file whatever happens to its name; None if it is no plain file inside of `root`."""
    fd = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # do not wait for a pipe that took its place
    try:
        path = Path(f"/proc/self/fd/{fd}")
        inside = Path(os.readlink(path)).is_relative_to(root)  # noqa: PTH115 -- as the kernel tells it
        yield path if inside and path.is_file() else None
    finally:
        os.close(fd)


@contextlib.contextmanager
def _copied(path: Path, copies: Path | None) -> Iterator[Path]:
    if copies is None:
        yield path
        return
    with tempfile.NamedTemporaryFile(dir=copies) as copy:
        with contextlib.suppress(file_copy.ShortFile):  # as it was when its turn came
            file_copy.copy(int(path.name), Path(copy.name))
        yield Path(copy.name)


def _usable(pattern: str) -> bool:
    try:
        safe(pattern, "output")
    except FilesError:
        return False
    return True


def _matches(folder: Path, pattern: str) -> set[Path]:
    files: set[Path] = set()
    for match in _glob(folder, pattern):
        if match.is_dir() and not match.is_symlink():
            files |= {x for x in match.rglob("*") if not x.is_dir()}
        else:
            files.add(match)
    return files


def _glob(folder: Path, pattern: str) -> Sequence[Path]:
    try:
        return list(folder.glob(pattern))
    except (ValueError, NotImplementedError):
        return []  # an invalid pattern, like `a**b`, matches nothing


def _plain(file: Path, root: Path) -> bool:
    """A plain file below the scratch; links are followed only inside."""
    real = Path(os.path.realpath(file))  # resolve() raises for a link that names itself
    return real.is_relative_to(root) and real.is_file()


def is_nameable(name: str) -> bool:
    """Whether a key can hold it: UTF-8 that can be printed."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return name.isprintable()


def shown(name: str) -> str:
    """The name as text that can be stored."""
    return name.encode(errors="backslashreplace").decode()
