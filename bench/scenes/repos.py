"""Backup repositories fed with the files of the same image, beside our save from the order until it is durable."""

from __future__ import annotations

import mmap
import os
import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from bench.scenes import kit, reference
from bench.scenes.kit import Runner

ROUNDS = 3
PIECE_BYTES, PIECES = 16 << 20, 8
Figures = dict[str, Any]


def repos(size: str) -> Figures:
    """restic and borg with their defaults, into a new repository each time, on the disk of our store; the dump before them."""
    run = Runner()
    run.start("stamped", int(size), 50)
    files = kit.SHARE / "image"
    rounds = []
    for number in range(ROUNDS):
        run.forget()
        facts = run.save()
        ordered = run.ordered_seconds
        kit.settle()
        dump = kit.timed(lambda: reference.dump(files))
        kit.settle()
        took = {"ordered": ordered, "durable": facts.durable_seconds, "freeze": facts.frozen_seconds, "dump": dump}
        took |= {name: _into(name) for name in ("restic", "borg")}
        kept = {"image_bytes": facts.image_bytes, "sent_bytes": facts.new_bytes, "disk": _disk(facts.new_bytes)}
        rounds.append({**took, **kept})
        kit.say(f"round {number + 1} of {ROUNDS}: {rounds[-1]}")
    run.engine.kill()
    return {"rounds": rounds}


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


def _into(name: str) -> float:
    """Seconds of a first backup, synced; making the empty repository is not counted."""
    place, home = kit.SHARE / "repository", kit.SHARE / "home"
    for folder in (place, home):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
    words = {
        "restic": (["init"], ["backup", "image"]),
        "borg": (["init", "--encryption", "repokey"], ["create", "::image", "image"]),
    }[name]
    secrets = {"RESTIC_PASSWORD": "benchmark", "BORG_PASSPHRASE": "benchmark"}
    places = {"RESTIC_REPOSITORY": str(place), "BORG_REPO": str(place), "HOME": str(home)}
    environment = {**os.environ, **places, **secrets, "XDG_CACHE_HOME": str(home), "BORG_BASE_DIR": str(home)}
    kit.run([name, *words[0]], env=environment, cwd=kit.SHARE)
    kit.settle()
    began = time.monotonic()
    kit.run([name, *words[1]], env=environment, cwd=kit.SHARE)
    os.sync()
    seconds = time.monotonic() - began
    shutil.rmtree(place)
    kit.settle()
    return seconds
