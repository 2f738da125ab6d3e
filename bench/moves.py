"""Parts with real boxes: moves of a job between two of them, and what the agent costs while nothing happens."""

from __future__ import annotations

import itertools
import os
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from spotsurfer_wire import clock
from support.fleet import Fleet, fleet

from bench.figures import Figure
from bench.machine import WORK, build_job
from bench.order import Order

LINK_BITS = 10**9
MOVE_SECONDS, START_SECONDS = 900.0, 300.0
IDLE_SECONDS = 60.0
CHANGED_THOUSANDTHS = 100
CONFIG = """\
[controller]
data_dir = "{{data}}"
[limits]
instances_max = 4
idle_seconds = 0
warm_wait_seconds = {warm_wait}
[agent]
checkpoint_interval = "{{interval}}s"
[provider.local]
disk_bytes = {disk_bytes}
link_bits_per_second = {link}
pools = ["local-a/{machine}", "local-b/{machine}"]
"""
MACHINE_MEMORY = (("m6i.large", 8 << 30), ("m6i.xlarge", 16 << 30), ("m6i.2xlarge", 32 << 30))
Figures = dict[str, Any]


def warm(order: Order) -> Iterable[Figure]:
    """A move whose machine has the base already, and beside it one that has nothing."""
    measured = {name: _move(order, wait) for name, wait in (("warm", 300), ("cold", 0))}
    for name, raw in measured.items():
        compared = f"largest gap in the output of a {order.size >> 20} MB job from the order on, a tenth changed, 1 Gbit/s"
        yield Figure(f"{name}_move_pause_seconds", raw["pause"], compared, raw)


def idle(_order: Order) -> Iterable[Figure]:
    """Processor time of agent and shim while a job prints a line a second."""
    text = CONFIG.format(warm_wait=0, disk_bytes=4 << 30, link=LINK_BITS, machine=MACHINE_MEMORY[0][0])
    with tempfile.TemporaryDirectory(prefix="idle-", dir=WORK) as at, fleet(Path(at), 86400, text) as world:
        job = world.submit(10**6, pause=1.0)
        world.wait(lambda: world.show(job)["phase"] == "running", "the job", START_SECONDS)
        box = world.box(job, 1)
        pids = agent_pids(world, box)
        time.sleep(10)
        before, began = {p: cpu_seconds(p) for p in pids}, time.monotonic()
        time.sleep(IDLE_SECONDS)
        took = time.monotonic() - began
        used = {name: cpu_seconds(p) - before[p] for p, name in pids.items()}
        world.client.post(f"/v1/jobs/{job}/cancel", {})
        world.wait_end(job)
    raw = {"seconds": took, "cpu_seconds": used}
    yield Figure("steady_overhead", sum(used.values()) / took, f"CPU seconds of {', '.join(used)} a second", raw)


def agent_pids(world: Fleet, box: str) -> dict[int, str]:
    """Agent and shim of a box."""
    return {world.agent_pid(box): "agent", world.shim_pid(box): "shim"}


def cpu_seconds(pid: int) -> float:
    """What a process used so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _move(order: Order, warm_wait: int) -> Figures:
    machine = next(name for name, room in MACHINE_MEMORY if room >= 5 * order.size // 3)
    text = CONFIG.format(warm_wait=warm_wait, disk_bytes=3 * order.size + (6 << 30), link=LINK_BITS, machine=machine)
    with tempfile.TemporaryDirectory(prefix="move-", dir=WORK) as at, fleet(Path(at), 20, text) as world:
        job = _submit(world, order.size)
        world.wait(lambda: world.moments(job, "saved"), "a base", MOVE_SECONDS)
        first = world.box(job, 1)
        work = world.root(first) / "var/lib/spotsurfer/job/scratch/work"
        (work / "command.new").write_text(f"dirty {CHANGED_THOUSANDTHS}\n")
        (work / "command.new").replace(work / "command")
        asked_at = clock.utc().timestamp()
        ordered = world.client.post(f"/v1/jobs/{job}/move", {})
        began = time.monotonic()
        world.wait(lambda: world.attempt(job, "running", 2), "the second machine", MOVE_SECONDS)
        time.sleep(5)
        world.wait(lambda: world.attempt(job, "running", 2), "output of the second machine", 60)
        lines = _lines(world, job)
        facts: Figures = {
            "pause": max(b - a for a, b in itertools.pairwise(lines) if b > asked_at),
            "call_to_running": time.monotonic() - began,
        }
        facts |= {"moments": [f"{m['at'][11:23]} {m['attempt']} {m['kind']} {m['text']}" for m in world.moments(job)]}
        world.client.post(f"/v1/jobs/{job}/cancel", {})
        world.wait_end(job, MOVE_SECONDS)
    assert ordered is not None
    return {**facts, "size": order.size, "machine": machine}


def _submit(world: Fleet, size: int) -> str:
    job = str(world.client.post("/v1/ids", {"name": "stamped"})["job"])
    program = build_job().read_bytes()
    world.client.upload(f"/v1/jobs/{job}/inputs/job", iter([program]), len(program))
    body = {
        "name": "stamped", "command": ["./job", "stamped", str(size), "50"], "inputs": ["job"], "outputs": [], "cpus": 1,
        "memory_bytes": size + (256 << 20),
    }  # fmt: skip
    world.client.put(f"/v1/jobs/{job}", {"spec": body, "modes": {"job": 0o755}})
    world.steps[job] = 0
    return job


def _lines(world: Fleet, job: str) -> list[float]:
    """When each line was printed, by the machine's clock of the day: it is the same one in every box."""
    text, piece = b"", b"x"
    while piece:
        piece = world.client.data(f"/v1/jobs/{job}/log/out", offset=len(text), limit=1 << 20)
        text += piece
    beats = [x.split() for x in text[: text.rfind(b"\n")].decode(errors="replace").splitlines()]
    found = [int(w[3]) / 1e9 for w in beats if len(w) == 4 and w[0] == "n"]
    assert len(found) > 100, "the job's output is not there"
    return found
