"""CRIU's own dump and backup repositories fed with its files, beside our save from the order until it is durable."""

from __future__ import annotations

import mmap
import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from bench.scenes import kit, reference
from bench.scenes.kit import Runner

PIECE_BYTES, PIECES = 16 << 20, 8
Figures = dict[str, Any]


def repos(size: str) -> Figures:
    """restic and borg with their defaults, into a new repository each time, on the disk of our store; the dump before them.

    No image or repository is removed meanwhile, for the reason of `Runner.forget`: a job of 4 GB needs 33 GB of disk.
    """
    run = Runner()
    run.start("stamped", int(size), 50)
    rounds = []
    for number in range(kit.ROUNDS):
        run.forget()
        place = kit.SHARE / f"round-{number}"
        rounds.append(_round(run, place))
        kit.say(f"round {number + 1} of {kit.ROUNDS}: {rounds[-1]}")
    run.engine.kill()
    return {"rounds": rounds}


def _round(run: Runner, place: Path) -> Figures:
    facts = run.save()
    ours: Figures = {"ordered": run.ordered_seconds, "durable": facts.durable_seconds, "freeze": facts.frozen_seconds}
    ours |= {"stages": run.stages, "image_bytes": facts.image_bytes, "sent_bytes": facts.new_bytes}
    files = reference.fresh(place / "image")
    dump = kit.timed(lambda: reference.dump(files))
    kit.settle()
    return {**ours, "dump": dump, **{name: _into(name, place) for name in ("restic", "borg")}, "disk": _disk(facts.new_bytes)}


def _disk(size: int) -> float:
    """Seconds that the disk needs for so many bytes, in large pieces, several at once, with nothing else to do."""
    path, piece = kit.SHARE / "plain", mmap.mmap(-1, PIECE_BYTES)
    piece.write(os.urandom(PIECE_BYTES))
    fd = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_DIRECT, 0o600)
    began = time.monotonic()
    with ThreadPoolExecutor(PIECES) as threads:
        list(threads.map(lambda at: os.pwrite(fd, piece, at), range(0, size, PIECE_BYTES)))
    os.fsync(fd)
    seconds = time.monotonic() - began
    os.close(fd)
    path.unlink()
    kit.settle()
    return seconds


def _into(name: str, within: Path) -> float:
    """Seconds of a first backup, synced; making the empty repository is not counted."""
    place, home = within / name, within / f"{name}-home"
    for folder in (place, home):
        folder.mkdir()
    words = {
        "restic": (["init"], ["backup", "image"]),
        "borg": (["init", "--encryption", "repokey"], ["create", "::image", "image"]),
    }[name]
    secrets = {"RESTIC_PASSWORD": "benchmark", "BORG_PASSPHRASE": "benchmark"}
    places = {"RESTIC_REPOSITORY": str(place), "BORG_REPO": str(place), "HOME": str(home)}
    environment = {**os.environ, **places, **secrets, "XDG_CACHE_HOME": str(home), "BORG_BASE_DIR": str(home)}
    kit.run([name, *words[0]], env=environment, cwd=within)
    kit.settle()
    began = time.monotonic()
    kit.run([name, *words[1]], env=environment, cwd=within)
    os.sync()
    seconds = time.monotonic() - began
    kit.settle()
    return seconds
