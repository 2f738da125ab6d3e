"""Scenes of restoring: ours beside `criu restore` from files in memory."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path
from typing import Any

from spotsurfer_agent.ports.engine import WorkloadState
from spotsurfer_wire.manifest import Manifest
from support import engine_kit

from bench.scenes import kit, reference
from bench.scenes.kit import Runner

ARRIVING_LOOK_SECONDS = 0.05  # a look costs processor time that the arriving memory needs
TRIES = 5  # to kill a server while memory arrives
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
    reference.dump(reference.fresh(kit.TMPFS / "ref"))
    reference.keep_scratch(kit.BASE / "ref-scratch")
    plain = reference.Plain.here()

    def by_criu() -> float:
        run.engine.kill()
        kit.settle()
        return reference.restore(kit.TMPFS / "ref", kit.BASE / "ref-scratch", plain)

    if kit.ROUNDS == 1:  # a large job leaves no room in memory for two images: each is made of a job of its own
        criu = by_criu()
        reference.fresh(kit.TMPFS / "ref")
        run.start("stamped", size, 50)
        run.save(final=True)
        run.engine.kill()
        rounds = [{"criu_seconds": criu, **one(run, lazy=lazy)}]
        kit.say(f"the round: {rounds[0]}")
        run.engine.kill()
        return {"rounds": rounds}
    run.save(final=True)
    rounds = []
    for number in range(kit.ROUNDS):
        criu = by_criu()
        kit.settle()
        rounds.append({"criu_seconds": criu, **one(run, lazy=lazy)})
        kit.say(f"round {number + 1} of {kit.ROUNDS}: {rounds[-1]}")
    run.engine.kill()
    return {"rounds": rounds}


def one(run: Runner, *, lazy: bool) -> Figures:
    """One restore of the newest image, checked page by page in the end."""
    run.set_lazy(lazy)
    image = run.newest()
    run.engine.expect(image)  # as on every machine that waits for its job
    kit.warm()
    kit.settle()
    began = time.monotonic()
    first = run.first_line(lambda: _brought(run, image))
    _all_in(run)
    all_in = time.monotonic() - began
    wrong = int(run.tell("verify", "verified")[1])
    return {"first_line": first, "all_in": all_in, "wrong_pages": wrong}


def _brought(run: Runner, image: Manifest) -> None:
    """As an agent does it, which never knows what an earlier one may have left."""
    run.engine.kill()
    run.engine.restore(image, engine_kit.job())


def stamps(size: str) -> Figures:
    """Wrong pages of jobs that fork, move and give back memory while it arrives; and where its server is killed midway."""
    wrong: dict[str, int] = {}
    for kind in ("stamped", "threads"):
        run = Runner()
        run.start(kind, int(size), 50)
        run.forget()
        run.save(final=True)
        run.engine.kill()
        wrong[kind] = _busy_while_it_arrives(run)
        kit.say(f"{kind}: {wrong[kind]} wrong pages")
        wrong[f"{kind}, server killed"] = _server_killed(run)
        kit.say(f"{kind}, server killed: {wrong[f'{kind}, server killed']} wrong pages")
        run.engine.kill()
    return {"wrong_pages": wrong}


def _busy_while_it_arrives(run: Runner) -> int:
    """The job does to its memory what is hard to follow; each page is compared in the child and in the parent."""
    run.set_lazy(True)
    at = run.read_from()
    run.engine.restore(run.newest(), engine_kit.job())
    arriving = run.engine.status().arriving_bytes
    wrong = int(run.tell("fork", "forked")[1])
    for command, answer in (("remap", "moved"), ("dirty 100", "dirty"), ("dontneed", "dontneed")):
        run.tell(command, answer)
    wrong += int(run.tell("verify", "verified")[1])
    _all_in(run)
    wrong += int(run.tell("verify", "verified")[1])
    seen = run.read(at).decode().splitlines()
    kit.say(f"{arriving} bytes were missing when it began to run")
    return wrong + sum(1 for x in seen if x.startswith(("wrong ", "thread-saw-wrong-page ")))


def _server_killed(run: Runner) -> int:
    """The job dies with its server rather than see zeros, and comes back from the image."""
    image = run.newest()
    for _ in range(TRIES):
        run.engine.kill()
        run.engine.restore(image, engine_kit.job())
        servers = _servers()
        for pid in servers:
            os.kill(pid, signal.SIGSTOP)  # what is still missing stays so
        if run.engine.status().arriving_bytes:
            break
        for pid in servers:
            os.kill(pid, signal.SIGCONT)
    else:
        raise AssertionError(f"all memory was there before its server could be killed, {TRIES} times: use a larger job")
    for pid in servers:
        os.kill(pid, signal.SIGKILL)
    end = time.monotonic() + kit.PATIENCE_SECONDS
    while run.engine.status().state is WorkloadState.RUNNING and time.monotonic() < end:
        time.sleep(kit.LOOK_SECONDS)
    status = run.engine.status()
    assert status.state is WorkloadState.LOST, f"its server was killed, and the job is {status.state}"
    assert status.lost_because, "nobody says why the job was killed"
    assert not status.image_is_bad, "the image is blamed for a server that was killed"
    run.engine.kill()
    run.engine.restore(image, engine_kit.job())
    _all_in(run)
    return int(run.tell("verify", "verified")[1])


def _servers() -> list[int]:
    """Processes that bring memory on this machine."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if b"spotsurfer_agent.restore.pager" in (folder / "cmdline").read_bytes():
                found.append(int(folder.name))
    return found


def _all_in(run: Runner) -> None:
    while run.engine.status().arriving_bytes is not None:
        time.sleep(ARRIVING_LOOK_SECONDS)
