"""The images of one machine: each unpacked once, below `<base>/images/<digest>`, kept while there is room.

A folder without a dot is whole. `.lock` keeps processes from unpacking the same twice; what begins with a dot otherwise is left
of somebody who was killed, and goes when the next one begins.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spotsurfer_agent.images import tree
from spotsurfer_agent.images.config import ImageConfig
from spotsurfer_agent.images.errors import ImageError, Kind

FOLDER = "images"
FACTS = "image.json"  # beside the tree
LAYOUT = "layout"
UNPACKED_SHARE = 4  # an unpacked image takes about so many times what was sent


@dataclass(frozen=True, slots=True)
class Root:
    """An image that is here, whole."""

    digest: str
    path: str  # of its tree
    config: ImageConfig

    def to_json(self) -> dict[str, Any]:
        """For a file of the agent."""
        return dataclasses.asdict(self)

    @staticmethod
    def from_json(raw: dict[str, Any]) -> Root:
        """The same again. Raises TypeError, KeyError for what is not one."""
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
            return Root(digest, str(place / tree.ROOT), ImageConfig(**facts["config"]))
        except (OSError, ValueError, KeyError, TypeError):
            return None

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Nobody else changes the shelf; what was left half done is gone."""
        self.folder.mkdir(mode=0o755, parents=True, exist_ok=True)
        with (self.folder / ".lock").open("w") as f:
            fcntl.flock(f, fcntl.LOCK_EX)
            for left in self.folder.glob(".*-*"):
                shutil.rmtree(left, ignore_errors=True)
            yield

    @contextlib.contextmanager
    def aside(self, digest: str) -> Iterator[Path]:
        """A folder on the same disk to make an image in; gone afterwards unless it was put in place."""
        made = self.folder / f".making-{_hex(digest)[:16]}"
        made.mkdir(mode=0o755)
        try:
            yield made
        finally:
            shutil.rmtree(made, ignore_errors=True)

    def room(self, packed_bytes: int, keep: str, bytes_max: int) -> None:
        """Let the images go that were not used for longest, until one that is sent as so many bytes fits. Raises ImageError.

        `bytes_max`: what all images may take; 0 = half of the disk.
        """
        wanted = packed_bytes * (1 + UNPACKED_SHARE)
        held = self._held(keep)
        st, total = os.statvfs(self.folder), sum(size for _, size in held)
        limit, free = bytes_max or st.f_blocks * st.f_frsize // 2, st.f_bavail * st.f_frsize
        for place, size in held:
            if total + wanted <= limit and wanted <= free:
                return
            tree.remove(place)
            total, free = total - size, free + size
        if packed_bytes > free:
            raise ImageError(
                Kind.MACHINE,
                f"the machine's disk is full: the image takes {packed_bytes >> 20} MiB packed and more unpacked, "
                f"{free >> 20} MiB are free: ask for a larger disk or a smaller image",
            )

    def put(self, made: Path, digest: str, config: ImageConfig) -> Root:
        """Put what was unpacked to `made`/root in place under its digest."""
        shutil.rmtree(made / LAYOUT, ignore_errors=True)
        facts = {"digest": digest, "bytes": used_bytes(made / tree.ROOT), "config": dataclasses.asdict(config)}
        (made / FACTS).write_text(json.dumps(facts))
        place = self._place(digest)
        tree.settle(made, place)
        return Root(digest, str(place / tree.ROOT), config)

    def _place(self, digest: str) -> Path:
        return self.folder / _hex(digest)

    def _held(self, keep: str) -> list[tuple[Path, int]]:
        """Images with their sizes, that which was not used for longest first."""
        found = []
        for place in self.folder.glob("[0-9a-f]*"):
            with contextlib.suppress(OSError, ValueError, KeyError):
                size = int(json.loads((place / FACTS).read_text())["bytes"])
                found.append((place.stat().st_mtime, place, size))
        return [(place, size) for _, place, size in sorted(found) if place != self._place(keep)]


def _hex(digest: str) -> str:
    return digest.removeprefix("sha256:")


def used_bytes(folder: Path) -> int:
    """What a tree takes on the disk, links counted once."""
    seen: set[int] = set()
    total = 0
    for at, _, names in os.walk(folder):
        for name in names:
            st = os.lstat(os.path.join(at, name))  # noqa: PTH118 -- many of them
            if st.st_ino not in seen:
                seen.add(st.st_ino)
                total += st.st_blocks * 512
    return total
