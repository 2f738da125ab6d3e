"""The programs of the agent's runtime: where they are, how to call them, and how to notice one that hangs."""

from __future__ import annotations

import contextlib
import dataclasses
import platform
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spotsurfer_agent.host import shim_protocol

NAMES = ("ip", "nft", "btrfs")
IMAGE_NAMES = ("skopeo", "umoci")  # needed only by jobs that bring a container image
CERTIFICATES = "usr/share/ca-certificates/mozilla"
FOLDERS = ("usr/sbin", "usr/bin", "sbin", "bin")


class ToolMissing(Exception):
    """A program is neither in the runtime nor on the machine."""


@dataclass(frozen=True, slots=True)
class Tools:
    """Argument lists to begin a call with. `tini` is the path of a static binary: it becomes part of every image."""

    criu: tuple[str, ...]
    ip: tuple[str, ...]
    nft: tuple[str, ...]
    btrfs: tuple[str, ...]
    tini: str
    python: tuple[str, ...]  # an interpreter that finds this package
    skopeo: tuple[str, ...] = ()  # empty: there is none
    umoci: tuple[str, ...] = ()
    certificates: str = ""  # folder of the authorities that registries are trusted by, besides the machine's own
    cuda: tuple[str, ...] = ()  # starts the side-car that speaks with the GPU driver; empty = the usual one

    @staticmethod
    def from_json(raw: dict[str, Any]) -> Tools:
        """The tools from `dataclasses.asdict` that went through JSON."""
        known = {f.name for f in dataclasses.fields(Tools)} & set(raw)
        found: dict[str, Any] = {name: tuple(raw[name]) if isinstance(raw[name], list) else raw[name] for name in known}
        return Tools(**found)

    @staticmethod
    def find(prefix: Path | None) -> Tools:
        """The tools of a runtime prefix (Debian packages unpacked there), each falling back to the machine's own.

        Raises ToolMissing with the names that are nowhere.
        """
        roots = [prefix] if prefix is not None else []
        found = {name: _program(name, roots) for name in ("criu", *NAMES)}
        tini = _program("tini-static", roots)
        missing = [name for name, argv in {**found, "tini-static": tini}.items() if not argv]
        if missing:
            where = f"neither in {prefix or 'a runtime'} nor"
            raise ToolMissing(f"{', '.join(missing)} not found, {where} on this machine: build the runtime")
        criu, ip, nft, btrfs = (found[name] for name in ("criu", *NAMES))
        skopeo, umoci = (_program(name, roots) for name in IMAGE_NAMES)
        folders = [str(root / CERTIFICATES) for root in roots if (root / CERTIFICATES).is_dir()]
        return Tools(criu, ip, nft, btrfs, tini[-1], (sys.executable,), skopeo, umoci, ":".join(folders))


def _program(name: str, roots: list[Path]) -> tuple[str, ...]:
    for root in roots:
        for folder in FOLDERS:
            path = root / folder / name
            if path.is_file():
                return (*_loader(root), str(path)) if name != "tini-static" else (str(path),)
    plain = shutil.which(name)
    return (plain,) if plain else ()


def _loader(root: Path) -> tuple[str, ...]:
    """How to run a program of the prefix with the prefix's own C library; empty if it brings none."""
    triplet = f"{platform.machine()}-linux-gnu"
    for folder in (root / "usr/lib" / triplet, root / "lib" / triplet):
        for loader in sorted(folder.glob("ld-linux*.so*")):
            return (str(loader), "--inhibit-cache", "--library-path", str(folder))
    return ()


@contextlib.contextmanager
def beside(work: Callable[[threading.Event], None], name: str) -> Iterator[None]:
    """Runs `work` in a thread while the body runs; then sets the event that `work` got, and waits for its end."""
    over = threading.Event()
    thread = threading.Thread(target=work, args=(over,), name=name, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


# ---- Stalls: nothing moves any more while a job stands still for it.

STALL_SECONDS = 90.0  # longer than anybody is patient with the store
LOOK_SECONDS = 1.0


@contextlib.contextmanager
def watched(signs: Callable[[], object], give_up: Callable[[], None], after_seconds: float) -> Iterator[Callable[[], bool]]:
    """Calls `give_up` once, from another thread, if `signs` stay the same for so long while the body runs.

    The body gets a function that returns whether that happened.
    """
    given_up = threading.Event()

    def watch(over: threading.Event) -> None:
        seen, at = signs(), time.monotonic()
        while not over.wait(min(LOOK_SECONDS, after_seconds / 4)):
            now = signs()
            if now != seen:
                seen, at = now, time.monotonic()
            elif time.monotonic() - at > after_seconds:
                given_up.set()
                give_up()
                return

    with beside(watch, "stall"):
        yield given_up.is_set


def ending_criu(folder: Path, verb: str, **arguments: Any) -> Callable[[], None]:
    """A function that gives up a run of CRIU that hangs: the shim of the job's folder ends it when asked by this verb."""

    def give_up() -> None:
        # It may have come to its end just now, or the shim may be an older one.
        with contextlib.suppress(shim_protocol.ShimRefused, shim_protocol.ShimGone):
            shim_protocol.ask(folder, verb, **arguments)

    return give_up
