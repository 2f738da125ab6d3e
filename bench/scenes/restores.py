"""Scenes of restoring: ours beside `criu restore` from files in memory."""

from __future__ import annotations

import time
from typing import Any

from support import engine_kit

from bench.scenes import kit, reference
from bench.scenes.kit import Runner

ROUNDS = 3
Figures = dict[str, Any]


def restore(size: str) -> Figures:
    """From store to the first line, all memory in before the program runs."""
    return _restores(int(size), lazy=False)


def lazy(size: str) -> Figures:
    """From the order to the first line, and until all memory is in."""
    return _restores(int(size), lazy=True)


def _restores(size: int, *, lazy: bool) -> Figures:
    run = Runner()
    run.start("stamped", size, 50)
    run.forget()
    reference.dump(kit.TMPFS / "ref")
    reference.keep_scratch(kit.BASE / "ref-scratch")
    plain = reference.Plain.here()
    run.save(final=True)
    rounds = []
    for number in range(ROUNDS):
        run.engine.kill()
        kit.settle()
        criu = reference.restore(kit.TMPFS / "ref", kit.BASE / "ref-scratch", plain)
        kit.settle()
        rounds.append({"criu_seconds": criu, **one(run, lazy=lazy)})
        kit.say(f"round {number + 1} of {ROUNDS}: {rounds[-1]}")
    run.engine.kill()
    return {"rounds": rounds}


def one(run: Runner, *, lazy: bool) -> Figures:
    """One restore of the newest image, checked page by page in the end."""
    run.set_lazy(lazy)
    image = run.newest()
    began = time.monotonic()
    first = run.first_line(lambda: run.engine.restore(image, engine_kit.job()))
    while run.engine.status().arriving_bytes is not None:
        time.sleep(kit.LOOK_SECONDS * 5)
    all_in = time.monotonic() - began
    wrong = int(run.tell("verify", "verified")[1])
    return {"first_line": first, "all_in": all_in, "wrong_pages": wrong}
