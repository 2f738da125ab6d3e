"""An unpacked image: made aside by umoci, given its mount points, and put in place by one rename."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
from collections.abc import Iterable
from pathlib import Path

from spotsurfer_agent import jobroot, linux
from spotsurfer_agent.images.errors import ImageError, Kind, failure
from spotsurfer_agent.images.reference import Reference
from spotsurfer_agent.images.registry import LAYOUT
from spotsurfer_agent.tools import Tools

ROOT = "root"  # of an image's folder: its tree
FOLDERS = ("/dev", "/proc", "/sys", "/run", "/tmp", "/var/tmp")  # noqa: S108 -- mount points


def unpack(tools: Tools, layout: Path, into: Path, reference: Reference) -> None:
    """Unpack the image of an OCI layout to the folder `into`, owners and modes as they are. Raises ImageError."""
    if not tools.umoci:
        raise ImageError(Kind.WRONG, "this agent's runtime has no umoci to unpack images with: build the runtime anew")
    done = subprocess.run(
        [*tools.umoci, "raw", "unpack", "--image", f"{layout}:{LAYOUT}", str(into)],
        stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", check=False,
        preexec_fn=linux.die_with_parent,
    )  # fmt: skip
    if done.returncode:
        raise failure(done.stderr, reference.asked.removeprefix("docker://"), reference.host)


def mount_points(root: Path, base: str, extra: Iterable[jobroot.Mount] = ()) -> None:
    """Make what the job's mounts lie on: folders, and empty files for the files among them. Raises ImageError.

    Nothing is followed: an image's own link could lead out of its tree.
    """
    for folder in (*FOLDERS, base):
        make(root, folder, folder=True)
    for name in jobroot.NAME_FILES:
        make(root, f"/etc/{name}", folder=False)
    for m in extra:
        make(root, m.target, folder=Path(m.source).is_dir())


def working_folder(root: Path, folder: str) -> None:
    """Make the image's working folder where it lacks it, as other tools do. What lies behind a link is left to the image."""
    parts = [x for x in os.path.normpath(folder).split("/") if x not in ("", ".")]
    way = [root.joinpath(*parts[: i + 1]) for i in range(len(parts))]
    if parts and not any(p.is_symlink() or p.is_file() for p in way):
        make(root, "/".join(parts), folder=True)


def make(root: Path, path: str, *, folder: bool) -> None:
    """One mount point. What is there in another form is replaced where it is a link or empty. Raises ImageError."""
    at = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        *above, last = [x for x in path.split("/") if x]
        for name in above:
            inner = _folder(at, name, path)
            os.close(at)
            at = inner
        _last(at, last, folder=folder)
    except OSError as e:
        raise ImageError(Kind.WRONG, f"the image has no room for the mount point {path} ({e.strerror}): change it there") from e
    finally:
        os.close(at)


def _folder(at: int, name: str, path: str) -> int:
    try:
        _fresh(at, name)
    except FileExistsError:
        if stat.S_ISLNK(os.stat(name, dir_fd=at, follow_symlinks=False).st_mode):
            raise ImageError(
                Kind.WRONG, f"in the image {name} of {path} is a link, and something is to be mounted there: make it a folder"
            ) from None
    return os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=at)


def _last(at: int, name: str, *, folder: bool) -> None:
    try:
        found = os.stat(name, dir_fd=at, follow_symlinks=False).st_mode
    except FileNotFoundError:
        found = 0
    if stat.S_ISDIR(found) == folder and not stat.S_ISLNK(found) and found:
        return
    if stat.S_ISDIR(found):
        os.rmdir(name, dir_fd=at)
    elif found:
        os.unlink(name, dir_fd=at)
    if folder:
        _fresh(at, name)
    else:
        os.close(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644, dir_fd=at))


def _fresh(at: int, name: str) -> None:
    """A folder that every user may enter, whatever the agent's umask. Raises FileExistsError."""
    os.mkdir(name, dir_fd=at)
    os.chmod(name, 0o755, dir_fd=at)  # noqa: S103 -- a folder of the image


def settle(made: Path, place: Path) -> None:
    """Give a finished folder its name, after everything in it is on the disk: it is there whole or not at all."""
    fd = os.open(made, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        linux.syncfs(fd)
    finally:
        os.close(fd)
    made.rename(place)
    fd = os.open(place.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def remove(folder: Path) -> None:
    """Take an image's folder away: its name first, so that half of it is never taken for the whole."""
    gone = folder.with_name(f".gone-{folder.name}")
    if folder.exists():
        shutil.rmtree(gone, ignore_errors=True)
        folder.rename(gone)
    shutil.rmtree(gone, ignore_errors=True)
