"""Container images on this machine: resolved, pulled and unpacked once, kept while there is room."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import json
import logging
import os
import shutil
import stat
import subprocess
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spotsurfer_wire.container_image import Pin, Pins, Reference
from spotsurfer_wire.linux import syscalls
from spotsurfer_wire.messages import Spec
from spotsurfer_wire.store.obstore import fsync
from spotsurfer_wire.store.port import ObjectStore

from spotsurfer_agent.host import root_fs
from spotsurfer_agent.host.tools import Tools
from spotsurfer_agent.prepare.images.registry import (
    LAYOUT,
    ImageConfig,
    ImageError,
    ImageRules,
    Kind,
    Registry,
    architecture,
    failure,
)
from spotsurfer_agent.store.cache import evict, free_bytes, locked

log = logging.getLogger(__name__)


def check_architecture(pin: Pin, architecture: str) -> None:
    """A pin for another architecture can't be followed here. Raises ImageError."""
    if pin.architecture != architecture:
        raise ImageError(
            Kind.MACHINE,
            f"the job's image was resolved for {pin.architecture}, this machine is {architecture}: ask for a machine type of "
            f"architecture {pin.architecture}",
        )


# ---- Unpacking: umoci unpacks into a temporary folder, mount points are added, and one rename puts the image in place

ROOT = "root"  # of an image's folder: its tree
FOLDERS = ("/dev", "/proc", "/sys", "/run", "/tmp", "/var/tmp")  # noqa: S108 -- mount points


def unpack(tools: Tools, layout: Path, into: Path, reference: Reference) -> None:
    """Unpack the image of an OCI layout to the folder `into`, owners and modes as they are. Raises ImageError."""
    if not tools.umoci:
        raise ImageError(Kind.WRONG, "this agent's runtime has no umoci to unpack images with: build the runtime anew")
    done = subprocess.run(
        [*tools.umoci, "raw", "unpack", "--image", f"{layout}:{LAYOUT}", str(into)],
        stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", check=False,
        preexec_fn=syscalls.die_with_parent,
    )  # fmt: skip
    if done.returncode:
        raise failure(done.stderr, reference.asked.removeprefix("docker://"), reference.host)


def mount_points(root: Path, base: str, extra: Iterable[root_fs.Mount] = ()) -> None:
    """Make the mount points of the job: folders, and empty files for mounted files. Raises ImageError.

    No link is followed: an image's own link could lead out of its tree.
    """
    for folder in (*FOLDERS, base):
        make(root, folder, folder=True)
    for name in root_fs.NAME_FILES:
        make(root, f"/etc/{name}", folder=False)
    for m in extra:
        make(root, m.target, folder=Path(m.source).is_dir())


def working_folder(root: Path, folder: str) -> None:
    """Make the image's working folder if it is missing, as other tools do. Links are not followed."""
    parts = [x for x in os.path.normpath(folder).split("/") if x not in ("", ".")]
    way = [root.joinpath(*parts[: i + 1]) for i in range(len(parts))]
    if parts and not any(p.is_symlink() or p.is_file() for p in way):
        make(root, "/".join(parts), folder=True)


def make(root: Path, path: str, *, folder: bool) -> None:
    """Make one mount point. An entry of another kind is replaced if it is a link or empty. Raises ImageError."""
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
    """Rename a finished folder after everything in it is on the disk, so that it exists whole or not at all."""
    fd = os.open(made, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        syscalls.syncfs(fd)
    finally:
        os.close(fd)
    made.rename(place)
    fsync(place.parent)


def remove(folder: Path) -> None:
    """Remove an image's folder: its name first, so that a half-removed one never counts as whole."""
    gone = folder.with_name(f".gone-{folder.name}")
    if folder.exists():
        shutil.rmtree(gone, ignore_errors=True)
        folder.rename(gone)
    shutil.rmtree(gone, ignore_errors=True)


# ---- The shelf: each image unpacked once, below `<base>/images/<digest>`, kept while there is room
#
# A folder without a dot is whole. `.lock` keeps processes from unpacking the same image twice. Other names with a leading dot
# are leftovers of killed processes; the next process removes them when it begins.

FOLDER = "images"
FACTS = "image.json"  # beside the tree
TREE_LAYOUT = "layout"
UNPACKED_SHARE = 4  # an unpacked image is about so many times as large as the packed one


@dataclass(frozen=True, slots=True)
class Root:
    """An image that is here and whole."""

    digest: str
    path: str  # of its tree
    config: ImageConfig

    @staticmethod
    def from_json(raw: dict[str, Any]) -> Root:
        """What `dataclasses.asdict` made, after JSON. Raises TypeError, KeyError for other data."""
        return Root(str(raw["digest"]), str(raw["path"]), ImageConfig(**raw["config"]))


class Shelf:
    """The folder of images."""

    def __init__(self, base: Path) -> None:
        self.folder = base / FOLDER

    def get(self, digest: str) -> Root | None:
        """An image that is here; it counts as used now."""
        place = self._place(digest)
        try:
            facts = json.loads((place / FACTS).read_text())
            os.utime(place)
            return Root(digest, str(place / ROOT), ImageConfig(**facts["config"]))
        except (OSError, ValueError, KeyError, TypeError):
            return None

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Exclusive access to the shelf; leftovers are removed first."""
        with locked(self.folder / ".lock"):
            for left in self.folder.glob(".*-*"):
                shutil.rmtree(left, ignore_errors=True)
            yield

    @contextlib.contextmanager
    def aside(self, digest: str) -> Iterator[Path]:
        """A temporary folder on the same disk to make an image in; removed afterwards unless it was put in place."""
        made = self.folder / f".making-{_hex(digest)[:16]}"
        made.mkdir(mode=0o755)
        try:
            yield made
        finally:
            shutil.rmtree(made, ignore_errors=True)

    def room(self, packed_bytes: int, keep: str, bytes_max: int) -> None:
        """Remove the least recently used images until one of so many packed bytes fits. Raises ImageError.

        `bytes_max`: what all images may take; 0 = half of the disk.
        """
        wanted, limit = packed_bytes * (1 + UNPACKED_SHARE), bytes_max or shutil.disk_usage(self.folder).total // 2

        def fits() -> bool:
            return sum(self._held(keep).values()) + wanted <= limit and wanted <= free_bytes(self.folder)

        evict(self._held(keep), remove, fits)
        if packed_bytes > (free := free_bytes(self.folder)):
            raise ImageError(
                Kind.MACHINE,
                f"the machine's disk is full: the image takes {packed_bytes >> 20} MiB packed and more unpacked, "
                f"{free >> 20} MiB are free: ask for a larger disk or a smaller image",
            )

    def put(self, made: Path, digest: str, config: ImageConfig) -> Root:
        """Put what was unpacked to `made`/root in place under its digest."""
        shutil.rmtree(made / TREE_LAYOUT, ignore_errors=True)
        facts = {"digest": digest, "bytes": used_bytes(made / ROOT), "config": dataclasses.asdict(config)}
        (made / FACTS).write_text(json.dumps(facts))
        place = self._place(digest)
        settle(made, place)
        return Root(digest, str(place / ROOT), config)

    def _place(self, digest: str) -> Path:
        return self.folder / _hex(digest)

    def _held(self, keep: str) -> dict[Path, int]:
        """Images with their sizes, least recently used first."""
        found = []
        for place in self.folder.glob("[0-9a-f]*"):
            with contextlib.suppress(OSError, ValueError, KeyError):
                size = int(json.loads((place / FACTS).read_text())["bytes"])
                found.append((place.stat().st_mtime, place, size))
        return {place: size for _, place, size in sorted(found) if place != self._place(keep)}


def _hex(digest: str) -> str:
    return digest.removeprefix("sha256:")


def used_bytes(folder: Path) -> int:
    """Disk usage of a tree; hard links count once."""
    seen: set[int] = set()
    total = 0
    for at, _, names in os.walk(folder):
        for name in names:
            st = os.lstat(os.path.join(at, name))  # noqa: PTH118 -- many of them
            if st.st_ino not in seen:
                seen.add(st.st_ino)
                total += st.st_blocks * 512
    return total


# ---- From a name to an unpacked image on this machine: resolve, pin, fetch, unpack, put in place; each once


class Images:
    """The images of one job on one machine. Safe to use from several threads."""

    def __init__(
        self, base: Path, job: str, store: ObjectStore, tools: Tools, auth: Callable[[], bytes | None] = lambda: None
    ) -> None:
        """`auth` gives the job's containers-auth.json."""
        self._base, self._tools, self._auth, self.rules = base, tools, auth, ImageRules()
        self._pins, self._shelf = Pins(store, job), Shelf(base)
        self._lock = threading.Lock()

    def digest(self, spec: Spec) -> str:
        """The digest of the job's image, without asking a registry; "" = the machine's own root, or not known yet.

        Raises StoreError, ProtocolError.
        """
        if not spec.image:
            return ""
        found = self._pins.read()
        return found.digest if found is not None else ""

    def here(self, spec: Spec) -> Root | None:
        """The job's image if it is unpacked here already. Raises StoreError, ProtocolError."""
        digest = self.digest(spec)
        return self._shelf.get(digest) if digest else None

    def ready(self, spec: Spec, progress: Callable[[str], None] = lambda _: None) -> Root | None:
        """The job's image, unpacked here; None for a job that has none. Raises ImageError, StoreError, ProtocolError."""
        if not spec.image:
            return None
        with self._lock:
            try:
                return self._ready(spec, progress)
            except OSError as e:
                full = e.errno in (errno.ENOSPC, errno.EDQUOT)
                why = "the machine's disk is full" if full else f"the machine's disk does not take it ({e.strerror or e})"
                raise ImageError(Kind.MACHINE, f"{why}: the image {spec.image} does not fit: ask for a larger disk") from e

    def _ready(self, spec: Spec, progress: Callable[[str], None]) -> Root:
        try:
            reference = Reference.parse(spec.image)
        except ValueError as e:
            raise ImageError(Kind.WRONG, f"image {e}") from e
        pin = self._pins.read()
        if pin is not None:
            check_architecture(pin, architecture())
            if (here := self._shelf.get(pin.digest)) is not None:
                return here
        with self._shelf.alone(), self._shelf.aside("sha256:registry") as folder:
            registry = Registry(self._tools, folder, self.rules, self._auth())
            progress("asking for the image")
            if pin is None:
                digest, packed_bytes = registry.find(reference)
                log.info("%s is %s", spec.image, digest)
                pin = self._pins.write(spec.image, digest, architecture(), packed_bytes)
            if (here := self._shelf.get(pin.digest)) is not None:
                return here
            self._shelf.room(pin.packed_bytes, pin.digest, self.rules.cache_bytes)
            with self._shelf.aside(pin.digest) as made:
                progress("fetching the image")
                config = registry.config(reference, pin.digest)
                registry.fetch(reference, pin.digest, made / TREE_LAYOUT)
                progress("unpacking the image")
                unpack(self._tools, made / TREE_LAYOUT, made / ROOT, reference)
                mount_points(made / ROOT, str(self._base))
                working_folder(made / ROOT, config.folder)
                return self._shelf.put(made, pin.digest, config)
