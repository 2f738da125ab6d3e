"""Restores that wait for all memory before the job runs; run on a minibox by `python -m support.whole_scenes`."""

from __future__ import annotations

import contextlib
import dataclasses
import faulthandler
import os
import re
import shutil
import signal
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from spotsurfer_agent.host import shim_protocol
from spotsurfer_agent.ports.engine import EngineError
from spotsurfer_agent.restore.pager.process_memory import GONE, WRITERS
from spotsurfer_agent.restore.pager_process import Phase
from spotsurfer_wire.manifest import Manifest
from spotsurfer_wire.messages import Spec
from spotsurfer_wire.store.obstore import open_store
from support.engine_kit import (
    BASE,
    JOB,
    CriuEngine,
    W,
    begin,
    engine,
    file_of,
    job,
    newest,
    output,
    refused,
    request,
    runs,
    until,
)
from support.lazy_scenes import FOLDER, SIZE, STORE, cmdline, heap_chunk, moves_on, nothing_left, order, pager, saved, says

TRIES = 10
MARK = "only memory is missing"  # what a pager writes when CRIU says that it is done


def patient(hands: int | None = None) -> tuple[CriuEngine, Manifest]:
    """A saved job, and an engine that lets it run only with all its memory."""
    e, image = saved()
    e.origin = dataclasses.replace(e.origin, lazy=False, workers=hands)
    return e, image


@contextlib.contextmanager
def restoring(e: CriuEngine, image: Manifest, failures: list[EngineError]) -> Iterator[int]:
    """A restore whose pager is stopped when only memory is missing; its pid. It goes on when the body ends."""

    def work() -> None:
        try:
            e.restore(image, Spec(JOB, []))
        except EngineError as error:
            failures.append(error)

    for _ in range(TRIES):
        (FOLDER / "pager.log").unlink(missing_ok=True)
        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        while MARK not in pager_said():
            assert thread.is_alive() and not failures, failures
            time.sleep(0.001)
        pid = pager().pid
        os.kill(pid, signal.SIGSTOP)
        if pager().phase is not Phase.DONE:
            break
        os.kill(pid, signal.SIGCONT)
        thread.join(60)
        e.kill()
    else:
        raise AssertionError(f"all memory was there before the pager could be stopped, {TRIES} times")
    yield pid
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGCONT)
    thread.join(60)
    assert not thread.is_alive()


def pager_said() -> str:
    path = FOLDER / "pager.log"
    return path.read_text() if path.exists() else ""


def held_until_whole() -> None:
    """Not a line of output while memory is missing; then everything is right, and what it saves comes back."""
    e, image = patient()
    before, failures = len(output(e)), list[EngineError]()
    with restoring(e, image, failures):
        assert pager().lazy, pager()
        time.sleep(1.0)
        assert len(output(e)) <= before, output(e)[before:]
    assert not failures, failures
    assert (pager().phase, e.status().arriving_bytes) == (Phase.DONE, None)
    order(e, "fork", "all")
    says(e, "whole parent", "whole child", "whole all")
    moves_on(e, request(2, final=True, base=image.id))


def by_hands() -> None:
    """Further processes write what can be written: all of it arrives, as if there were none of them."""
    e, image = patient(hands=3)
    e.restore(image, Spec(JOB, []))
    given = [int(x) for x in re.findall(r"stands still: (\d+) MB", pager_said())]
    assert WRITERS in pager_said() and sum(given) << 20 > SIZE // 2, pager_said()[-2000:]
    order(e, "fork", "all")
    says(e, "whole parent", "whole child", "whole all")
    moves_on(e, request(2, final=True, base=image.id))
    nothing_left(e)


def a_hand_fails() -> None:
    """One of them can't get a chunk, or is killed: the restore fails and says why, the job has not run, nobody is left."""
    e, image = patient(hands=2)
    chunk = heap_chunk(image)
    path, kept = file_of(chunk), file_of(chunk).with_name("kept")
    path.rename(kept)
    told = refused("restore", lambda: e.restore(image, Spec(JOB, [])))
    assert chunk.digest in told and image.id in told, told
    kept.rename(path)
    (FOLDER / "pager.log").unlink()
    with ThreadPoolExecutor(1) as threads:
        told_later = threads.submit(refused, "restore", lambda: e.restore(image, Spec(JOB, [])))
        until(lambda: WRITERS in pager_said())
        os.kill(int(pager_said().split(WRITERS)[1].strip(" [").split(",")[0]), signal.SIGKILL)
    assert GONE in told_later.result(), (told_later.result(), pager_said()[-2000:])
    assert e.status().state is W.ABSENT
    e.restore(image, Spec(JOB, []))
    runs(e)
    nothing_left(e)


def server_killed() -> None:
    """The pager dies while the job is held: it never ran, nothing is left, and the same image is good for another try."""
    e, image = patient()
    failures = list[EngineError]()
    with restoring(e, image, failures) as pid:
        os.kill(pid, signal.SIGKILL)
    assert failures and "killed" in str(failures[0]), (failures, pager_said()[-2000:])
    assert e.status().state is W.ABSENT
    nothing_left(e)
    e.restore(image, Spec(JOB, []))
    runs(e)
    nothing_left(e)


def damaged() -> None:
    """A chunk that is missing or wrong: the restore fails and names it, and the job has not run."""
    e, image = patient()
    chunk = heap_chunk(image)
    path = file_of(chunk)
    whole = path.read_bytes()
    for damage in (None, whole[: len(whole) // 2] + bytes(8) + whole[len(whole) // 2 + 8 :]):
        path.unlink()
        if damage is not None:
            path.write_bytes(damage)
        told = refused("restore", lambda: e.restore(image, Spec(JOB, [])))
        assert chunk.digest in told and image.id in told, told
        assert e.status().state is W.ABSENT
        path.write_bytes(whole)
    e.restore(image, Spec(JOB, []))
    runs(e)
    nothing_left(e)


def stands_by() -> None:
    """A restore that was expected is done by the pager that waited; one that died meanwhile is replaced; none is left."""
    e, image = patient()
    waiting = expecting(e, image)
    e.expect(image)
    assert pagers() == [waiting], "one is enough"
    e.restore(image, Spec(JOB, []))
    assert pager().pid == waiting
    runs(e)
    e.kill()
    killed = expecting(e, image)
    os.kill(killed, signal.SIGKILL)
    until(lambda: killed not in pagers())
    e.restore(image, Spec(JOB, []))
    assert pager().pid != killed
    runs(e)
    e.kill()
    expecting(e, image)
    begin(e, job())
    until(lambda: not pagers())
    nothing_left(e)


def keeps_ready() -> None:
    """The shim that waited is the job's; one that died is replaced; to hold what is not there yet holds nothing later.

    With its agent, one that has nothing to do ends.
    """
    e, image = patient()
    e.expect(image)
    began = time.monotonic()
    e.kill()  # as the agent does before it brings a job, here while the shim still loads
    assert time.monotonic() - began < 5
    waiting = the_shim()
    until(lambda: answers(waiting))
    e.hold()
    e.kill()
    e.restore(image, Spec(JOB, []))
    assert shims() == [waiting]
    runs(e)
    e.kill()
    e.expect(image)
    killed = the_shim()
    os.kill(killed, signal.SIGKILL)
    until(lambda: killed not in shims())
    e.restore(image, Spec(JOB, []))
    assert the_shim() != killed
    runs(e)
    e.kill()
    agent = os.fork()
    if agent == 0:
        engine().expect(image)
        the_shim()
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(agent, 0)
    until(lambda: not shims())
    nothing_left(e)


def answers(shim: int) -> bool:
    """Whether this one is asked by whoever asks."""
    with contextlib.suppress(shim_protocol.ShimGone):
        return bool(shim_protocol.ask(BASE / "job", "hello")["pid"] == shim)
    return False


def the_shim() -> int:
    """The one shim that there is."""
    until(lambda: len(shims()) == 1)
    return shims()[0]


def shims() -> list[int]:
    """Shims of this machine that are alive."""
    return alive("shim")


def store_fails() -> None:
    """A store that gives no answer for a chunk is no fault of the image: it is told as what it is, with and without hands."""
    e, image = patient()
    path = file_of(heap_chunk(image))
    for hands in (0, 2):
        e.origin = dataclasses.replace(e.origin, workers=hands)
        path.rename(path.with_suffix(".away"))
        path.mkdir()
        assert image.id in refused("store", lambda: e.restore(image, Spec(JOB, [])))
        path.rmdir()
        path.with_suffix(".away").rename(path)
        e.restore(image, Spec(JOB, []))
        runs(e)
        nothing_left(e)


def falls_behind() -> None:
    """A restore that failed before its pager had done a thing: it is gone with it, and does not end the next one."""
    e, image = patient()
    waiting = expecting(e, image)
    os.kill(waiting, signal.SIGSTOP)
    path = file_of(image.chunks[next(x for x in image.scratch if len(x.extents)).extents[0].chunk])
    path.rename(path.with_suffix(".away"))
    assert "is missing in the store" in refused("restore", lambda: e.restore(image, Spec(JOB, [])))
    assert waiting not in pagers()
    path.with_suffix(".away").rename(path)
    e.restore(image, Spec(JOB, []))
    runs(e)
    nothing_left(e)


def expecting(e: CriuEngine, image: Manifest) -> int:
    """The pager that waits for a restore to be ordered."""
    until(lambda: not pagers())
    e.expect(image)
    until(lambda: len(pagers()) == 1)
    return pagers()[0]


def pagers() -> list[int]:
    """Pagers of this machine that are alive."""
    return alive("restore.pager")


def alive(module: str) -> list[int]:
    """Processes that run this module of the agent."""
    found = [p for p in Path("/proc").glob("[0-9]*") if f"spotsurfer_agent.{module}".encode() in cmdline(p)]
    return [int(p.name) for p in found]


def timers(way: str) -> None:
    """A job whose timers have all run out unseen, saved live and for the last time."""
    e = engine()
    shutil.copy(Path(__file__).with_name("timing_job.py"), Path(e.scratch(), "work"))
    e.start(Spec(JOB, ["/usr/bin/python3", "timing_job.py"]))
    until(lambda: len(lines(e)) >= 2)
    e.save(request(1, final=False))
    until(lambda: len(lines(e)) >= 3)
    e.save(request(2, final=True))
    e.kill()
    e.origin = dataclasses.replace(e.origin, lazy=way == "lazy")
    image = newest(open_store(STORE))
    e.restore(image, Spec(JOB, []))
    until(lambda: len(lines(e)) >= 4)
    assert all(int(line[0]) > 1 and line[1] == "True" for line in lines(e)), lines(e)
    e.kill()


def lines(e: CriuEngine) -> list[list[str]]:
    """What the machine that runs it now has of its output."""
    return [x.split() for x in output(e).decode().splitlines()[:-1]]


if __name__ == "__main__":
    faulthandler.dump_traceback_later(float(os.environ.get("SCENE_SECONDS", "100")), exit=True)  # before the box is ended
    globals()[sys.argv[1]](*sys.argv[2:])
