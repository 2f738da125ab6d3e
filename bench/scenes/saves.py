"""Scenes of saving: live, again with a base, final; each beside CRIU's own dump of the same process."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any
from unittest import mock

from spotsurfer_agent.save import precopy

from bench.scenes import images, kit, memory, reference
from bench.scenes.kit import Runner

Figures = dict[str, Any]


def freeze(size: str) -> Figures:
    """First live saves of a mixed memory, beside dumps to tmpfs."""
    return _live(int(size), 50, kit.TMPFS)


def unwatched(size: str) -> Figures:
    """As `freeze` on a kernel before 6.8.10, which can't tell what the job writes: all is read while it stands still."""
    with mock.patch.object(precopy, "can_watch_writes", lambda: False):
        return freeze(size)


def durable(size: str) -> Figures:
    """First live saves of noise, beside dumps to the same disk, synced."""
    return _live(int(size), 100, kit.SHARE, durable=True)


def _live(size: int, noise: int, where: Path, *, durable: bool = False) -> Figures:
    run = Runner()
    run.start("stamped", size, noise)
    rounds = []
    for number in range(kit.ROUNDS):
        run.forget()
        rounds.append(_one_live(run, where, durable=durable))
        kit.say(f"round {number + 1} of {kit.ROUNDS}: {rounds[-1]}")
    run.engine.kill()
    return {"rounds": rounds, "noise_percent": noise}


def _one_live(run: Runner, where: Path, *, durable: bool = False, base: str | None = None) -> Figures:
    """One save of ours and one of CRIU's own to files in this folder, with what the job saw of each."""
    with memory.watch() as peak:
        gap, facts = run.gap(lambda: run.save(base=base))
    stages, ordered = run.stages, run.ordered_seconds
    if kit.ROUNDS == 1 and base is None:
        run.forget()  # a large job leaves no room in memory for two images
    files = reference.fresh(where / "ref")
    plain_gap, seconds = run.gap(lambda: kit.timed(lambda: reference.dump(files, durable=durable)))
    kit.settle()
    return {
        "freeze": gap,
        "freeze_by_engine": facts.frozen_seconds,
        "durable": facts.durable_seconds,
        "ordered": ordered,
        "image_bytes": facts.image_bytes,
        "sent_bytes": facts.new_bytes,
        "agent_above_idle_bytes": peak.above_idle,
        "agent_idle_bytes": peak.idle,
        "criu_freeze": plain_gap,
        "criu_seconds": seconds,
        "checkpoint": facts.checkpoint,
        "stages": stages,
    }


def second(size: str) -> Figures:
    """Live saves with a base, each after a tenth of the pages changed at random."""
    run = Runner()
    run.start("stamped", int(size), 50)
    run.forget()
    base = run.save().checkpoint
    rounds = []
    for number in range(kit.ROUNDS):
        run.tell("dirty 100", "dirty")
        kit.settle()
        rounds.append(_one_live(run, kit.TMPFS, base=base))
        base = rounds[-1]["checkpoint"]
        kit.say(f"round {number + 1} of {kit.ROUNDS}: {rounds[-1]}")
    run.engine.kill()
    return {"rounds": rounds}


def final(size: str) -> Figures:
    """Memory that a final save needs; the image is on the store, nobody wants it."""
    run = Runner()
    run.start("stamped", int(size), 50)
    run.forget()
    with memory.watch() as peak:
        facts = run.save(final=True)
    run.engine.kill()
    return {
        "agent_above_idle_bytes": peak.above_idle,
        "image_bytes": facts.image_bytes,
        "freeze": facts.frozen_seconds,
        "durable": facts.durable_seconds,
        "ordered": run.ordered_seconds,
        "stages": run.stages,
    }


def share(size: str, kind: str) -> Figures:
    """What a second image has to send, and the least that any tool could send: pages that were in no place before."""
    run = Runner()
    run.start(kind, int(size), 70)
    run.forget()
    base = run.save().checkpoint
    first = run.newest()
    run.tell("train", "trained")
    facts = run.save(base=base)
    image = run.newest()
    run.engine.kill()
    kit.say("count pages")
    known = _pages_of(first)
    now = _pages_of(image)
    total = sum(now.values())
    return {
        "new_share": images.new_bytes(image, first) / images.all_bytes(image),
        "page_floor": sum(n for page, n in now.items() if page not in known) / total,
        "page_floor_once": sum(1 for page in now if page not in known) / total,
        "pages": total,
        "image_bytes": facts.image_bytes,
        "sent_bytes": facts.new_bytes,
        "first_bytes": first.image_bytes,
    }


def _pages_of(image: Any) -> Counter[bytes]:
    folder = Path(kit.TMPFS, "built")
    images.build(image, folder)
    return images.counted(folder)


def dirty(size: str, megabytes: str) -> Figures:
    """How much longer the freeze is when the job has just written a lot to its disk."""
    run = Runner()
    run.start("stamped", int(size), 50)
    rounds = []
    for number in range(kit.ROUNDS):
        run.forget()
        Path(run.engine.scratch(), "work/big").unlink(missing_ok=True)
        kit.settle()
        quiet, _ = run.gap(run.save)
        run.forget()
        run.tell(f"file {megabytes}", "file")
        gap, facts = run.gap(run.save)
        rounds.append({
            "freeze_quiet": quiet, "freeze_dirty": gap, "durable": facts.durable_seconds,
            "stages": run.stages, "freeze_by_engine": facts.frozen_seconds, "dirty_bytes": int(megabytes) << 20,
        })  # fmt: skip
        kit.say(f"round {number + 1} of {kit.ROUNDS}: {rounds[-1]}")
        if int(megabytes) > 2048:
            break  # once is enough for a disk: three times would be thirty gigabytes twice
    run.engine.kill()
    return {"rounds": rounds}
