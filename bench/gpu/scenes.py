"""One machine of a GPU run: `python -m bench.gpu.scenes NAME PLAN`, with the plan as JSON; its figures go to /run/share."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from spotsurfer_agent.chunks import print_workers
from spotsurfer_agent.engines.choice import JobEngine
from spotsurfer_agent.engines.criu_cuda import CudaSave
from spotsurfer_agent.engines.job_host import Origin
from spotsurfer_agent.gpu import process_discovery, suspend_resume
from spotsurfer_agent.host.tools import Tools
from spotsurfer_agent.ports.engine import EngineError, SaveRequest
from spotsurfer_agent.store.credentials import StoreAccess
from spotsurfer_wire import gpu_facts, json_codec, object_keys
from spotsurfer_wire.chunks.budget import Limits
from spotsurfer_wire.gpu_facts import About
from spotsurfer_wire.messages import SaveFacts, Spec
from spotsurfer_wire.store.obstore import open_store
from support import cuda_scenes, cuda_standin
from support.engine_kit import BASE, JOB, STORE, W, newest, output, request

from bench.gpu import floor, jobs
from bench.gpu.memory import Pages, pages

SHARE = Path("/run/share")
START_SECONDS, END_SECONDS = 300.0, 400.0
STAND_BY_SECONDS = 1.0  # a pager loads its modules meanwhile
Plan = dict[str, Any]
SEEN: dict[str, Pages] = {}  # stage of a save -> the machine's memory when it began


class Machine:
    """The engines of this machine, and the job of the plan."""

    def __init__(self, plan: Plan) -> None:
        self.spec = Spec(JOB, plan["command"], environment={**jobs.environment(), **plan["environment"]})
        self.store = open_store(STORE)
        self.store.create(object_keys.spec_key(JOB), json_codec.encode(self.spec))
        tools = Tools.find(Path(os.environ["SPOTSURFER_PREFIX"]))
        CudaSave.holds_threads, suspend_resume.COMPACTS = bool(plan["hold"]), bool(plan["compact"])
        if not plan.get("print_workers", True):
            print_workers.WORKERS_MAX = 0
        if plan["standin"]:
            cuda_scenes.machine()
            tools = dataclasses.replace(tools, cuda=(sys.executable, str(cuda_standin.__file__)))

        self.engine = JobEngine(BASE, JOB, self.store, tools, Origin(StoreAccess(STORE), lazy=plan.get("lazy", True)))
        self.engine.limits = Limits(2 << 30, plan["threads"], compression=plan["compression"])
        self.engine.memory_bytes = plan["memory_bytes"]
        problems = self.engine.preflight()
        assert not problems, problems

    @property
    def cuda(self) -> CudaSave:
        return self.engine.cuda

    def step(self) -> int:
        lines = [x.split() for x in output(self.engine).decode(errors="replace").splitlines()]
        return max((int(x[1]) for x in lines if len(x) > 2 and x[0] in ("step", "turn")), default=-1)

    def wait_step(self, number: int, seconds: float = START_SECONDS) -> None:
        end = time.monotonic() + seconds
        while self.step() < number:
            status = self.engine.status()
            assert status.state is W.RUNNING, (status, output(self.engine, "err")[-2000:], output(self.engine)[-500:])
            assert time.monotonic() < end, (number, output(self.engine)[-500:], output(self.engine, "err")[-2000:])
            time.sleep(0.05)

    def save(self, wanted: SaveRequest) -> SaveFacts:
        try:
            return self.engine.save(wanted)
        except EngineError as e:
            status, said = self.engine.status(), output(self.engine, "err").decode(errors="replace")
            raise AssertionError(f"{e}: {status}; the job said: {said[-3000:]}") from None


def _stage(name: str) -> None:
    now = SEEN[name] = pages()
    free = f"{now.free >> 20} free, {now.free_huge >> 20} of it in huge blocks"
    sizes = f"{now.anonymous >> 20} MB in use, {now.huge >> 20} huge; {free}"
    say(f"{time.monotonic():.2f} {name}: {sizes}")


def say(text: str) -> None:
    with (SHARE / "progress").open("a") as f:
        print(text, file=f)


def save(plan: Plan) -> Plan:
    """Start, save as planned, leave nothing running."""
    m = Machine(plan)
    for name in plan["files"]:
        shutil.copy(name, Path(m.engine.scratch(), "work"))
    m.engine.start(m.spec)
    m.wait_step(plan["first"])
    say(f"step {m.step()}")
    found, last = [], None
    for number, kind in enumerate(plan["saves"], 1):
        began = time.monotonic()
        facts = m.save(request(number, final=kind == "final", base=last, progress=_stage))
        found.append(_figures(m, facts, time.monotonic() - began))
        say(json.dumps(found[-1]))
        if kind == "live":
            last = facts.checkpoint
            m.wait_step(m.step() + plan["between"])
    told = {"saves": found, "out": output(m.engine).decode(), "step": m.step(), "rung": newest(m.store).engine}
    return {**told, "floor": floor.of(m.store, [s["checkpoint"] for s in found[:2]])}


def _figures(m: Machine, facts: SaveFacts, seconds: float) -> Plan:
    times, bases = m.cuda.driver()[1].times, m.engine.bases
    moved = {"lock": times.lock, "tries": times.tries, "gpu_bytes": times.bytes}
    came = SEEN["freeze"].since(SEEN["gpu"]).told(times.bytes)
    shares = {"new_share": bases.new_share, **came}
    return {**{n: getattr(facts, n) for n in SaveFacts.__slots__}, **moved, **shares, "call_seconds": seconds}


def _swapped(facts: Mapping[str, str], here: About) -> list[tuple[str, str]]:
    """Each GPU's content to another GPU."""
    return list(zip(facts[gpu_facts.UUIDS].split(), reversed([card.uuid for card in here.cards]), strict=True))


def restore(plan: Plan) -> Plan:
    """Bring the newest checkpoint back and see the end."""
    m = Machine(plan)
    image = newest(m.store)
    if why := m.engine.unfit(image):  # also what a machine that stands by does: the driver is attached
        raise AssertionError(why)
    m.engine.expect(image)  # likewise
    time.sleep(STAND_BY_SECONDS)
    if plan["swap"]:
        gpu_facts.pairs = _swapped
    began = time.monotonic()
    m.engine.restore(image, m.spec)
    seconds = time.monotonic() - began
    before = image.log["out"]
    while not m.engine.read_log("out", before, 1 << 20):
        assert m.engine.status().state in (W.RUNNING, W.EXITED), output(m.engine, "err")[-2000:]
        time.sleep(0.01)
    first = time.monotonic() - began
    say(f"restored in {seconds:.2f} s, first output after {first:.2f} s")
    brought = pager_says()
    say("\n".join(brought))
    end = time.monotonic() + END_SECONDS
    while (status := m.engine.status()).state is not W.EXITED:
        assert status.state is W.RUNNING, status
        assert time.monotonic() < end, output(m.engine)[-500:]
        time.sleep(0.1)
    back = m.cuda.driver()[1].times.back
    told = {"code": status.exit_code, "out": output(m.engine).decode(), "err": output(m.engine, "err").decode()[-2000:]}
    return {"seconds": seconds, "first_output_seconds": first, "back": back, **told, "facts": image.facts, "brought": brought}


def pager_says() -> list[str]:
    """How memory came, and when: what the pager wrote down."""
    return [x for x in (BASE / "job/pager.log").read_text(errors="replace").splitlines() if " INFO " in x]


def undisturbed(plan: Plan) -> Plan:
    """The same job, never saved."""
    m = Machine(plan)
    for name in plan["files"]:
        shutil.copy(name, Path(m.engine.scratch(), "work"))
    m.engine.start(m.spec)
    end = time.monotonic() + START_SECONDS + END_SECONDS
    while m.engine.status().state is not W.EXITED:
        assert time.monotonic() < end, output(m.engine)[-500:]
        time.sleep(0.1)
    return {
        "out": output(m.engine).decode(),
        "err": output(m.engine, "err").decode()[-2000:],
        "gpus": process_discovery.present(),
    }


if __name__ == "__main__":
    scene = {"save": save, "restore": restore, "undisturbed": undisturbed}[sys.argv[1]]
    (SHARE / "figures.json").write_text(json.dumps(scene(json.loads(sys.argv[2]))))
