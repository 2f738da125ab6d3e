"""Jobs whose memory would end; run on a minibox with little of it by `python -m support.memory_scenes`."""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
import time
from dataclasses import replace
from pathlib import Path

from spotsurfer_agent.host import shim_protocol
from spotsurfer_wire.linux import cgroups, memory
from spotsurfer_wire.messages import NearMiss, Spec
from support import growing_job
from support.engine_kit import (
    BASE,
    JOB,
    CriuEngine,
    W,
    engine,
    job,
    newest,
    output,
    refused,
    request,
    stands_still,
    turns_pass,
    until,
)
from support.engine_kit import begin as begin_job

PROGRAM = Path(__file__).with_name("growing_job.py")
SMALL, LARGE = 700 << 20, 4 << 30
SIZE = 900  # mebibytes
OLD_LIMIT, OLD_SCORE = "memory.limit_in_bytes", "memory.oom_control"


def limit(size: int) -> None:
    """So much memory for the whole machine; beyond it the kernel kills."""
    found = cgroups.places(Path("/proc/self/cgroup").read_text(), Path("/proc/self/mountinfo").read_text())
    folder = cgroups.home(found.get("memory", found.get(cgroups.UNIFIED, (Path("/nowhere"), Path())))[0])
    name = OLD_LIMIT if (folder / OLD_LIMIT).exists() else "memory.max"
    (folder / name).write_text(str(size))
    assert memory.whole_bytes() == size


def grower(*words: object) -> Spec:
    return Spec(JOB, ["/usr/bin/python3", "growing_job.py", *map(str, words)])


def begin(e: CriuEngine, spec: Spec) -> None:
    shutil.copy(PROGRAM, Path(e.scratch(), "work"))
    e.start(spec)


def pressed(e: CriuEngine) -> NearMiss:
    """Wait until the job stands still, and see that it lives and nobody was killed."""
    until(lambda: e.status().near_miss is not None, 30.0)
    until(lambda: (m := e.status().near_miss) is not None and m.stop_seconds > 0, 30.0)
    status = e.status()
    assert status.near_miss is not None
    assert (status.state, status.held) == (W.RUNNING, False), status
    assert kills(e) == 0
    stands_still(e)
    return status.near_miss


def kills(e: CriuEngine) -> int:
    """Processes of the job that the kernel killed for want of memory."""
    folders = shim_protocol.read_json(BASE / "job/cgroup.json") or {}
    at = Path(folders["memory"], OLD_SCORE) if "memory" in folders else Path(folders[""], "memory.events")
    return next(int(line.split()[1]) for line in at.read_text().splitlines() if line.startswith("oom_kill "))


def digest(words: tuple[str, ...]) -> str:
    """Of all memory that the program takes."""
    made = hashlib.blake2b()
    for i in range(SIZE * (1 << 20) // growing_job.BLOCK):
        made.update(bytes(range(256)) * (growing_job.BLOCK // 256) if "read" in words else bytes([i % 256]) * growing_job.BLOCK)
    return made.hexdigest()


def ends_well(e: CriuEngine, said: str) -> None:
    """Let go on a machine that has more memory."""
    limit(LARGE)
    e.unguard()
    until(lambda: e.status().state is W.EXITED, 60.0)
    assert e.status().exit_code == 0
    assert output(e).split()[-1] == said.encode()


def frozen_in_time(times: str, *words: str) -> None:
    """A program that takes memory as fast as it can is stopped each time; the first, let go, ends as if nothing had been."""
    for number in range(int(times)):
        limit(SMALL)
        e = engine()
        began = time.monotonic()
        begin(e, grower(SIZE, *words))
        miss = pressed(e)
        assert miss.limit_bytes < miss.machine_bytes == SMALL
        assert 0.98 * miss.limit_bytes <= miss.used_bytes < SMALL, miss
        took, still, rate = time.monotonic() - began, 1e3 * miss.stop_seconds, output(e, "err").split(b"\n")[-2].decode()
        if number == 0:
            ends_well(e, digest(words))
        print(f"{number}: {miss.used_bytes >> 20} MiB, still after {still:.1f} ms, {took:.2f} s, {rate}")
        e.kill()


def saved(*words: str) -> None:
    """Frozen, and saved as it stands: no instruction of it runs before another machine has it."""
    limit(SMALL)
    e = engine()
    begin(e, grower(*words))
    pressed(e)
    said = output(e)
    done = e.save(replace(request(1, final=True), pressed=True))
    assert done.kind == "final"
    assert e.status().state is W.ABSENT
    shutil.rmtree("/run/share/said", ignore_errors=True)
    Path("/run/store/said").write_bytes(said)


def goes_on() -> None:
    """On a larger machine, to the end."""
    e = engine()
    image = newest(e.store)
    e.restore(image, grower())
    until(lambda: e.status().state is W.EXITED, 60.0)
    assert e.status().exit_code == 0
    Path("/run/store/said").write_bytes(Path("/run/store/said").read_bytes() + output(e))
    e.kill()


def failing_save() -> None:
    """A save that fails leaves it frozen, to be tried again; let go it runs on."""
    limit(SMALL)
    e = engine()
    begin(e, grower(SIZE))
    pressed(e)
    no = replace(request(1, final=True, commit=lambda _: False), pressed=True)
    refused("save", lambda: e.save(no))
    stands_still(e)
    assert e.status().near_miss is not None
    limit(LARGE)
    e.unguard()
    assert e.status().near_miss is None
    until(lambda: e.status().state is W.EXITED, 60.0)
    assert e.status().exit_code == 0
    e.kill()


def page_cache() -> None:
    """Files that fill the memory are no reason: the kernel gives it back, and the job ends by itself."""
    limit(SMALL)
    e = engine()
    words = "dd if=/dev/zero of=big bs=1M count=800 2>/dev/null; cat big big >/dev/null; echo done"
    e.start(Spec(JOB, ["/bin/sh", "-c", words]))
    until(lambda: e.status().state is W.EXITED, 100.0)
    assert output(e) == b"done\n"
    e.kill()


def too_little_to_go_on() -> None:
    """A machine without room for all of its memory does not let it run before that is there, so where it was has it still."""
    e = engine()
    begin_job(e, job(memory=400 << 20))
    e.save(request(1, final=True))
    e.kill()
    limit(450 << 20)
    why = refused("refused", lambda: e.restore(newest(e.store), job()))
    assert "memory" in why, why
    assert e.status().state is W.ABSENT
    assert output(e) == b"", "no instruction of it ran"
    limit(LARGE)
    e.restore(newest(e.store), job())
    turns_pass(e, 3)
    e.kill()


SCENES = {f.__name__: f for f in (frozen_in_time, saved, goes_on, failing_save, page_cache, too_little_to_go_on)}

if __name__ == "__main__":
    os.environ["PYTHONUNBUFFERED"] = "1"
    SCENES[sys.argv[1]](*sys.argv[2:])
