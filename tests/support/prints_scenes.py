"""Restores whose fingerprints come late, or whose disk is full; run on a minibox by `python -m support.prints_scenes`."""

from __future__ import annotations

import dataclasses
import faulthandler
import os
import signal
import sys
import time
from pathlib import Path

from spotsurfer_wire.manifest import Manifest
from spotsurfer_wire.messages import Spec
from support.engine_kit import JOB, file_of, request, runs
from support.faults import full_disk
from support.lazy_scenes import all_in, cmdline, moves_on, nothing_left, order, restored, saved, says

SOON_SECONDS = 15.0  # for a save of a few hundred megabytes, half of what a pager waits for a store that hangs


def kept_back(image: Manifest) -> Manifest:
    """The same, with a part of the fingerprints in an object of its own for which the store gives no answer: nobody writes."""
    entry = max((x for x in image.image if x.path.startswith("fingerprints-")), key=lambda x: x.size)
    number = entry.extents[0].chunk
    chunk = dataclasses.replace(image.chunks[number], pack="", at=0)
    path = file_of(chunk)
    path.parent.mkdir(parents=True, exist_ok=True)
    os.mkfifo(path)
    return dataclasses.replace(image, chunks=[*image.chunks[:number], chunk, *image.chunks[number + 1 :]])


def store_hangs() -> None:
    """The store gives no answer for what only the next save would use: the job has its memory, and the save goes on without."""
    e, image = saved()
    e.restore(kept_back(image), Spec(JOB, []))
    all_in(e, SOON_SECONDS)
    began = time.monotonic()
    e.save(request(2, final=False, base=image.id))
    took = time.monotonic() - began
    assert pager_lives(), "nobody waited for the store"
    assert took < SOON_SECONDS, f"the save took {took:.1f} s"
    order(e, "all")
    says(e, "whole all")
    nothing_left(e)


def disk_full() -> None:
    """The machine's disk is filled to the last block while memory arrives: all of it comes, the job goes on, and is saved."""
    e, image = saved()
    pid = restored(e, image)
    with full_disk():
        os.kill(pid, signal.SIGCONT)
        all_in(e)
    runs(e)
    moves_on(e, request(2, final=True, base=image.id))
    nothing_left(e)


def pager_lives() -> bool:
    return any(b"spotsurfer_agent.restore.pager" in cmdline(p) for p in Path("/proc").iterdir() if p.name.isdigit())


if __name__ == "__main__":
    faulthandler.dump_traceback_later(float(os.environ.get("SCENE_SECONDS", "100")), exit=True)  # before the box is ended
    globals()[sys.argv[1]](*sys.argv[2:])
