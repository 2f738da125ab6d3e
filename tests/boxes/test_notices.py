"""What `show` foretells of 120 s of notice, of 30 s and of none, for ten shapes of jobs; and the same notices, for real.

Nothing is scaled: the notices are as long as the clouds' own, and the links slow enough for them to matter.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator

import pytest
from spotsurfer_agent.control.final_save_timing import AGAIN_SECONDS
from spotsurfer_providers.local import manual_control
from spotsurfer_wire.final_save_forecast import Prospect
from support.fleet import CONFIG, MARKS, Fleet, Json, fleet, with_disks
from support.notice_shapes import MB, NOTICES, SHAPES, Shape, became
from support.patience import FACTOR

# Slow links need a host with nothing else to do; each commit tries the same in virtual time (tests/simulation/test_notices.py).
pytestmark = [*MARKS, pytest.mark.slow, pytest.mark.timeout(600)]
NEVER = 86400.0  # checkpoints are made when the test asks
SEEN_SECONDS = 15.0  # from what happens in the job to the forecast of its agent
FRESH_SECONDS = AGAIN_SECONDS + 2.0  # by then a report has a forecast from after the last save
# In a /dev of its own, the controller and its boxes find the device of a GPU: /dev/null under another name.
PRETENDS = """\
set -e
new=$(mktemp -d)
mount -t tmpfs dev "$new"
cp -a --one-file-system /dev/. "$new"
for i in $(seq 0 63); do test -e "$new/loop$i" || mknod -m 660 "$new/loop$i" b 7 "$i"; done
mknod -m 666 "$new/nvidia0" c 1 3
for name in pts shm; do mount --rbind "/dev/$name" "$new/$name"; done
mount --move "$new" /dev
exec "$@"
"""
PROGRAM = """\
import os, signal, sys, time
table = bytearray(os.urandom(TABLE))
for _ in range(PROCESSES - 1):
    if os.fork() == 0:
        mine = os.urandom(500_000)
        signal.pause()
more = []
signal.signal(signal.SIGUSR1, lambda *_: more.extend(os.urandom(1_000_000) for _ in range(GROWS)))
out, step = open("out.bin", "wb"), 0
while True:
    out.write(os.urandom(WRITES))
    if DIRTY: table[::4096] = os.urandom(len(table[::4096]))
    print(step, flush=True)
    step += 1
    time.sleep(1)
"""


@pytest.fixture(scope="module", params=NOTICES, ids=lambda s: f"{s:.0f} s")
def world(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    config = with_disks(4 << 30).replace("[provider.local]", f"[provider.local]\nnotice_seconds = {request.param}")
    config = config.replace("[limits]", "[limits]\ngpus_max = 4")
    launcher = ("unshare", "--mount", "sh", "-c", PRETENDS, "sh")
    assert config != CONFIG
    with fleet(tmp_path_factory.mktemp("notices"), NEVER, config, launcher=launcher) as made:
        yield made


def submitted(world: Fleet, shape: Shape) -> str:
    """The job on its first machine, behind its link, with as many checkpoints as it should have."""
    values = {"TABLE": shape.table * MB, "PROCESSES": shape.processes, "GROWS": shape.grows, "WRITES": int(shape.writes * MB)}
    text = PROGRAM.replace("DIRTY", str(shape.dirty))
    for name, value in values.items():
        text = text.replace(name, str(value))
    job = world.submit(0, text=text, outputs=["out.bin"], memory_bytes=1 << 30, gpus=shape.gpus)
    if shape.link is not None:
        world.wait(lambda: any(a["instance"] for a in world.show(job)["attempts"]), "its machine")
        rate = int(shape.link * 8 * MB)
        world.wait(lambda: manual_control.set_link_rate(world.data, world.box(job, 1), rate) or True, "its machine's link")
    world.wait_line(job, 0)
    began = time.monotonic()
    for number, at in enumerate(shape.saves, start=1):
        time.sleep(max(began + at * FACTOR - time.monotonic(), 0.0))
        world.client.post(f"/v1/jobs/{job}/checkpoint")
        world.wait(lambda number=number: len(world.moments(job, "saved")) >= number, f"checkpoint {number}", 120)
    if shape.grows:
        os.kill(world.job_pid(world.box(job, 1)), signal.SIGUSR1)
    time.sleep(FRESH_SECONDS * FACTOR)
    return job


@pytest.mark.parametrize("shape", SHAPES, ids=lambda s: s.name)
def test_what_was_foretold_is_what_happens(world: Fleet, shape: Shape, request: pytest.FixtureRequest) -> None:
    notice: float = request.node.callspec.params["world"]
    job, expected = submitted(world, shape), shape.outcome(notice)

    def settled() -> tuple[Json, Json] | None:
        """The forecast, once it is the expected one."""
        attempt = world.show(job)["attempts"][0]
        told = next(f for f in attempt["foretold"] if f["notice_seconds"] == notice)
        return (told, attempt) if told["outcome"] == expected else None

    told, before = world.wait(settled, f"{expected} as the forecast", SEEN_SECONDS)
    assert told["measured"] is bool(shape.saves)
    manual_control.reclaim(world.data, world.box(job, 1), notice)
    noticed = time.monotonic()
    world.wait_state(job, "running", 2, notice + 90)
    did = became(world.head(job))
    fit = before["fit"]
    numbers = f"{fit['least_seconds']:.0f} s to {fit['enough_seconds']:.0f} s" if fit else "not measured"
    after = time.monotonic() - noticed
    print(f"| {shape.name} | {notice:.0f} s | {numbers} | {told['outcome']} | {did} | {after:.0f} s |", flush=True)
    assert did == expected
    if did is Prospect.LOST:
        [_, grant] = world.moments(job, "granted")
        assert (grant["data"]["checkpoint"] is None) is (not shape.saves)
    world.client.post(f"/v1/jobs/{job}/cancel")
    world.wait_end(job)
