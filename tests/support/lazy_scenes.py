"""Restores whose memory comes behind the running job; run on a minibox by `python -m support.lazy_scenes`."""

from __future__ import annotations

import contextlib
import faulthandler
import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from spotsurfer_agent.host.tools import beside
from spotsurfer_agent.ports.engine import EngineError, SaveRequest, Status
from spotsurfer_agent.restore.pager_process import ORDER, PagerState, Phase
from spotsurfer_wire import object_keys
from spotsurfer_wire.manifest import Manifest, Stored
from spotsurfer_wire.messages import Spec
from spotsurfer_wire.store.obstore import open_store
from support.engine_kit import (
    BASE,
    JOB,
    STORE,
    CriuEngine,
    W,
    engine,
    file_of,
    newest,
    output,
    refused,
    request,
    runs,
    stands_still,
    turns_pass,
    until,
)

PROGRAM = Path(__file__).with_name("lazy_job.py")
FOLDER = BASE / "job"
SIZE = 192 << 20


def saved(size: int = SIZE, user: str | None = None, *words: str) -> tuple[CriuEngine, Manifest]:
    """A job that was saved for the last time."""
    e = engine()
    assert e.preflight() == []
    shutil.copy(PROGRAM, Path(e.scratch(), "work"))
    e.start(Spec(JOB, ["/usr/bin/python3", "lazy_job.py", str(size), *words], user=user))
    turns_pass(e, 5)
    e.save(request(1, final=True))
    e.kill()
    return e, newest(open_store(STORE))


def restored(e: CriuEngine, image: Manifest) -> int:
    """Restore, with the pager stopped as soon as the job runs, and before all of its memory is there; its pid."""
    with withheld(file_of(heap_chunk(image))):
        e.restore(image, Spec(JOB, []))
        state = pager()
        assert state.lazy, (FOLDER / "pager.log").read_text()
        assert state.phase in (Phase.READY, Phase.ARRIVING), state
        os.kill(state.pid, signal.SIGSTOP)
    return state.pid


def heap_chunk(image: Manifest) -> Stored:
    """A chunk of the job's own memory, not of what CRIU needs first."""
    pages = next(x for x in image.image if x.path.startswith("pages-") and x.size > SIZE // 2)
    large = sorted(pages.extents, key=lambda x: x.length)[-8:]
    return image.chunks[sorted(large)[4].chunk]


@contextlib.contextmanager
def withheld(path: Path) -> Iterator[None]:
    """The store can't give what is there, for a while: a loop of links is neither there nor missing."""
    away, back = (path.with_name(f"{word}-{time.monotonic_ns()}") for word in ("away", "back"))
    path.rename(away)
    path.symlink_to(path.name)
    yield
    back.symlink_to(away.name)
    back.replace(path)  # at once: in between there would be a moment in which it is missing, and its image bad


def pager() -> PagerState:
    state = PagerState.read(FOLDER)
    assert state is not None
    return state


@contextlib.contextmanager
def stuttering(pid: int) -> Iterator[None]:
    """Let the pager work a little now and then, so that whatever the job does happens in the middle."""

    def beat(over: threading.Event) -> None:
        while not over.wait(0.02):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
                time.sleep(0.004)
                os.kill(pid, signal.SIGSTOP)

    try:
        with beside(beat, "stutter"):
            yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


def order(e: CriuEngine, *words: str) -> None:
    path = Path(e.scratch(), "work", "order")
    path.with_suffix(".new").write_text(" ".join(words))
    path.with_suffix(".new").chmod(0o644)  # whoever the job runs as
    path.with_suffix(".new").replace(path)


def says(e: CriuEngine, *lines: str, seconds: float = 30.0) -> None:
    def said() -> bool:
        text = output(e).decode()
        status = e.status()
        assert "WRONG" not in text and status.state is W.RUNNING, (status, text[-300:], output(e, "err")[-2000:])
        return set(lines) <= set(text.splitlines())

    try:
        until(said, seconds)
    except AssertionError as error:
        lines_said = output(e).splitlines()
        other = [(n, x) for n, x in enumerate(lines_said) if not x.startswith(b"turn")]
        left = sorted(p.name for p in Path(e.scratch(), "work").iterdir())
        told = (
            (FOLDER / "pager.log").read_text()[-3000:],
            lines_said[:3],
            other,
            lines_said[-3:],
            left,
            output(e, "err")[-2000:],
        )
        raise AssertionError(f"{lines} were not said\n{pager()}\n" + "\n".join(map(str, told))) from error


def all_in(e: CriuEngine, seconds: float = 60.0) -> Status:
    until(lambda: e.status().arriving_bytes is None, seconds)
    status = e.status()
    assert status.state is W.RUNNING, (status, (FOLDER / "pager.log").read_text()[-2000:])
    return status


def nothing_left(e: CriuEngine) -> None:
    e.kill()
    assert e.status().state is W.ABSENT
    assert not any(b"spotsurfer_agent.restore.pager" in cmdline(p) for p in Path("/proc").iterdir() if p.name.isdigit())


def moves_on(e: CriuEngine, last: SaveRequest) -> None:
    """Saved for the last time, it goes on whole elsewhere, and nothing is left of it afterwards."""
    e.save(last)
    e.kill()
    e.restore(newest(open_store(STORE)), Spec(JOB, []))
    order(e, "all")
    says(e, "whole all")
    nothing_left(e)


def cmdline(process: Path) -> bytes:
    try:
        return (process / "cmdline").read_bytes()
    except OSError:
        return b""


# ------------------------------------------------------------ scenes


def stamped(user: str, *words: str) -> None:
    """Every page is right, whatever the job does to its memory meanwhile; afterwards it is saved and moves on."""
    e, image = saved(user=None if user == "-" else user)
    pid = restored(e, image)
    order(e, *words, "all")
    with stuttering(pid):
        says(e, *(f"whole {w}" for w in words if w != "fork"), "whole all")
        if "fork" in words:
            says(e, "whole parent", "whole child")
    all_in(e)
    stages: list[str] = []
    e.save(request(2, final=False, base=image.id, progress=stages.append))
    order(e, "all")
    moves_on(e, request(3, final=True))


def aligned() -> None:
    """A thread whose stack pointer is a multiple of the page size: CRIU then takes every page for one of a stack."""
    e, image = saved(SIZE, None, "aligned")
    pid = restored(e, image)
    order(e, "fork", "all")
    with stuttering(pid):
        says(e, "whole parent", "whole child", "whole all")
    all_in(e)
    e.save(request(2, final=True, base=image.id))
    e.kill()
    restored(e, newest(open_store(STORE)))
    os.kill(pager().pid, signal.SIGCONT)
    order(e, "all")
    says(e, "whole all")
    nothing_left(e)


def waits() -> None:
    """A save that is asked for while memory arrives waits for it, and says so; the order of pages is kept for the next time."""
    e, image = saved()
    pid = restored(e, image)
    arriving = e.status().arriving_bytes
    assert arriving, arriving  # of what there may be little: all but the chunk that is withheld comes at full speed
    stages: list[str] = []

    def progress(stage: str) -> None:
        if stage == "memory" and stage not in stages:
            os.kill(pid, signal.SIGCONT)
        stages.append(stage)

    facts = e.save(request(2, final=False, base=image.id, progress=progress))
    assert stages[0] == "memory", stages
    assert "memory" not in stages[stages.index("freeze") :]
    print("second save", facts)
    kept = open_store(STORE).get(object_keys.order_key(JOB))
    assert kept is not None and b"windows" in kept
    assert not (FOLDER / ORDER).exists()
    e.kill()
    restored(e, image)
    os.kill(pager().pid, signal.SIGCONT)
    all_in(e)
    runs(e)
    nothing_left(e)


def server_killed() -> None:
    """The pager dies midway: the job is killed, that is no exit of its command, and the same image is good for another try."""
    e, image = saved()
    for _ in range(2):
        pid = restored(e, image)
        turns_or_waits = e.status()
        assert turns_or_waits.state is W.RUNNING
        os.kill(pid, signal.SIGKILL)
        until(lambda: e.status().state is W.LOST)
        status = e.status()
        assert status.exit_code is None and not status.image_is_bad and "killed" in status.lost_because, status
        assert engine().adopt().state is W.LOST
        assert "WRONG" not in output(e).decode()
        nothing_left(e)
    os.kill(restored(e, image), signal.SIGCONT)
    order(e, "all")
    says(e, "whole all")
    nothing_left(e)


def holders_killed() -> None:
    """A holder that dies is replaced; where pager and holders are killed at once, the agent sees to it."""
    e, image = saved()
    pid = restored(e, image)
    group = e.shim.tool_group()
    for _ in range(4):
        until(lambda: len(set(group.pids()) - {pid}) == 2)
        os.kill(max(set(group.pids()) - {pid}), signal.SIGKILL)
        time.sleep(0.1)
    until(lambda: len(set(group.pids()) - {pid}) == 2)
    os.kill(min(set(group.pids()) - {pid}), signal.SIGKILL)
    until(lambda: len(set(group.pids()) - {pid}) == 2)
    os.kill(pid, signal.SIGKILL)
    until(lambda: e.status().state is W.LOST)
    nothing_left(e)
    restored(e, image)
    assert e.shim.tool_group().kill()
    until(lambda: e.status().state is W.LOST)
    assert e.shim.cgroup().pids() == []
    nothing_left(e)


def lost_for(e: CriuEngine, image: Manifest) -> str:
    """What is said of a job whose memory can't come: at once, or when it is missed."""
    try:
        e.restore(image, Spec(JOB, []))
    except EngineError as error:
        return str(error)
    until(lambda: e.status().state is W.LOST)
    assert e.status().image_is_bad, (e.status(), pager(), (FOLDER / "pager.log").read_text()[-2000:])
    return e.status().lost_because


def damaged() -> None:
    """A chunk that is missing or wrong: the job is lost and its image is to blame; it never sees a wrong page."""
    e, image = saved()
    chunk = heap_chunk(image)
    path = file_of(chunk)
    whole = path.read_bytes()
    for damage in (None, whole[:-1], whole[: len(whole) // 2] + bytes(8) + whole[len(whole) // 2 + 8 :]):
        path.unlink()
        if damage is not None:
            path.write_bytes(damage)
        told = lost_for(e, image)
        assert chunk.digest in told and image.id in told, told
        assert "WRONG" not in output(e).decode()
        nothing_left(e)
        path.write_bytes(whole)
    os.kill(restored(e, image), signal.SIGCONT)
    order(e, "all")
    says(e, "whole all")
    nothing_left(e)


def stumbling_store() -> None:
    """A store that fails for a while only makes the job wait."""
    e, image = saved()
    pid = restored(e, image)
    with withheld(Path("/run/store", f"jobs/{JOB}/chunks")):
        os.kill(pid, signal.SIGCONT)
        time.sleep(1.5)
        assert e.status().state is W.RUNNING
        assert e.status().arriving_bytes
    order(e, "all")
    says(e, "whole all")
    all_in(e)
    nothing_left(e)


def agent_killed() -> None:
    """The agent dies while memory arrives: the pager goes on, and the next agent knows."""
    child = os.fork()
    if child == 0:
        e, image = saved()
        restored(e, image)
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)
    e = engine()
    status = e.adopt()
    assert status.state is W.RUNNING and status.arriving_bytes, status
    os.kill(pager().pid, signal.SIGCONT)
    order(e, "fork", "all")
    says(e, "whole child", "whole parent", "whole all")
    all_in(e)
    e.save(request(2, final=False))
    nothing_left(e)


def held() -> None:
    """Hold and release while memory arrives; it comes meanwhile. And a kill in the middle leaves nothing."""
    e, image = saved()
    pid = restored(e, image)
    e.hold()
    assert e.status().held
    stands_still(e)
    os.kill(pid, signal.SIGCONT)
    all_in(e)
    assert e.status().held
    stands_still(e)
    e.release()
    order(e, "all")
    says(e, "whole all")
    nothing_left(e)
    restored(e, image)
    order(e, "all")
    nothing_left(e)
    restored(e, image)
    e.hold()
    nothing_left(e)


def early() -> None:
    """What is wrong before the job runs is told at once: a small file that is missing, and a pager that dies."""
    e, image = saved()
    small = next(x for x in image.image if x.path.startswith("core-") and len(x.extents))
    path = file_of(image.chunks[small.extents[0].chunk])
    path.rename(path.with_suffix(".away"))
    told = refused("restore", lambda: e.restore(image, Spec(JOB, [])))
    assert "is missing in the store" in told and image.id in told, told
    assert e.status().state is W.ABSENT
    path.with_suffix(".away").rename(path)
    os.kill(restored(e, image), signal.SIGCONT)
    all_in(e)
    nothing_left(e)


def tiny() -> None:
    """A job without much memory gets it all before it runs."""
    e = engine()
    e.start(Spec(JOB, ["sh", "-c", "i=0; while :; do i=$((i+1)); echo turn $i; sleep 0.02; done"]))
    turns_pass(e, 3)
    e.save(request(1, final=True))
    e.restore(newest(open_store(STORE)), Spec(JOB, []))
    assert not pager().lazy
    assert e.status().arriving_bytes is None
    runs(e)
    nothing_left(e)


if __name__ == "__main__":
    faulthandler.dump_traceback_later(float(os.environ.get("SCENE_SECONDS", "100")), exit=True)  # before the box is ended
    globals()[sys.argv[1]](*sys.argv[2:])
