"""`python -m bench.memory.machine SCENE ARGUMENTS…`: a small machine with the runtime's own agent, which is told over the store
what a controller tells it. The memory of the agent's processes goes into the shared folder.
"""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from http.server import ThreadingHTTPServer
from pathlib import Path

from spotsurfer_agent.shim import output
from spotsurfer_wire import json_codec, object_keys
from spotsurfer_wire.head_log import HeadLog
from spotsurfer_wire.messages import AgentConfig, AgentState, Desired, Head, HeadKind, Report, Spec, Want
from spotsurfer_wire.store.obstore import open_store
from support.engine_kit import BASE, JOB, SHARE, STORE

from bench.memory import processes
from bench.memory.processes import Memory, Peak

LIMIT_SECONDS, LOOK_SECONDS = 180.0, 0.02
METADATA_PORT = 9991
MORE_SAVES = 3
CHANGED_THOUSANDTHS = 100  # of the job's pages, between two saves
Figures = dict[str, object]


class Machine:
    """An attempt's machine, and its agent below a respawner, as user-data starts it."""

    def __init__(self, attempt: int) -> None:
        from bench.gpu.agentbox import Metadata  # here: the host imports this module, too, and has none of its parts

        self._attempt, self._store = attempt, open_store(STORE)
        self._heads, self._told = HeadLog(self._store, JOB), 0
        server = ThreadingHTTPServer(("127.0.0.1", METADATA_PORT), Metadata)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        config = AgentConfig(
            JOB, attempt, STORE, metadata_url=f"http://127.0.0.1:{METADATA_PORT}", poll_seconds=0.5, report_seconds=1.0,
            warm_wait_seconds=300.0,
        )  # fmt: skip
        (SHARE / "agent.json").write_bytes(json_codec.encode(config))
        runtime = Path(os.environ["SPOTSURFER_PREFIX"]).parent
        (BASE / "runtime").mkdir()
        (BASE / "runtime/current").symlink_to(runtime)
        words = ["--respawn", "--config", str(SHARE / "agent.json"), "--base", str(BASE), "--power-off", "true"]
        with (SHARE / "agent.log").open("wb") as log:
            self._agent = subprocess.Popen([str(runtime / "bin/spotsurfer-agent"), *words], stdout=log, stderr=log)

    def grant(self) -> None:
        """The job is this machine's from here on."""
        last = self._heads.refresh()
        number = last.number + 1 if last else 1
        head = Head(number, HeadKind.GRANT, self._attempt, None, 0, False, None, 0.0, f"g{number}", "")
        if last is not None:
            head = dataclasses.replace(head, checkpoint=last.checkpoint, sequence=last.sequence, cpu_seconds=last.cpu_seconds)
        self._heads.append(head)

    def want(self, want: Want, save_at_least: int = 0) -> None:
        """Tell the agent."""
        self._told += 1
        self._store.put(
            object_keys.desired_key(JOB, self._attempt), json_codec.encode(Desired(self._told, want, save_at_least))
        )

    def save(self) -> None:
        """One live save; returns when the agent has reported that the job runs on."""
        last = self._heads.refresh()
        sequence = (last.sequence if last else 0) + 1
        self.want(Want.RUN, sequence)
        self.until(lambda: (h := self._heads.refresh()) is not None and h.sequence >= sequence, "the save")
        self.until(lambda: self.shows(AgentState.RUNNING, saves=sequence), "the report of the save")

    def shows(self, state: AgentState, saves: int = 0) -> bool:
        """Whether the agent's newest report says so; its memory must have arrived, too."""
        data = self._store.get(object_keys.live_key(JOB, self._attempt))
        report = json_codec.decode(Report, data) if data is not None else None
        return (
            report is not None and report.state is state and report.arriving_bytes is None
            and (report.last_save.sequence if report.last_save is not None else 0) >= saves
        )  # fmt: skip

    def tell(self, command: str, answer: str) -> None:
        """Have the job do something."""
        at = len(self.output())
        work = BASE / "job/scratch/work"
        (work / "command.new").write_text(command + "\n")
        (work / "command.new").replace(work / "command")
        self.until(lambda: f"\n{answer} " in self.output()[max(0, at - 1) :], answer)

    def output(self) -> str:
        """What the job printed on this machine."""
        begins = [int(p.name.rpartition("-")[2]) for p in (BASE / "job/log").glob("out-*")]
        out, at = b"", min(begins, default=0)
        while piece := output.read_segments(BASE / "job/log", "out", at + len(out), 1 << 20):
            out += piece
        return "\n" + out.decode(errors="replace")

    def until(self, what: Callable[[], object], told: str) -> None:
        """Wait for it."""
        end = time.monotonic() + LIMIT_SECONDS
        while not what():
            said = (SHARE / "agent.log").read_text(errors="replace")[-3000:]
            assert time.monotonic() < end, f"{told} did not happen; the agent said: {said}"
            time.sleep(LOOK_SECONDS)

    def end(self, want: Want) -> None:
        """The attempt ends so, and its agent with it."""
        self.want(want)
        assert self._agent.wait(LIMIT_SECONDS) == 0

    def close(self) -> None:
        """The machine goes, whatever runs on it."""
        self._agent.kill()


def saves(size: str, rest: str) -> Figures:
    """An agent whose job is idle, saved once, saved more often with changes between, and drained."""
    program, store = (SHARE / "job").read_bytes(), open_store(STORE)
    store.create(object_keys.input_key(JOB, "job"), program)
    command = ["./job", "stamped", size, "50"]
    spec = Spec(JOB, command, inputs={"job": len(program)}, input_modes={"job": 0o755})
    store.create(object_keys.spec_key(JOB), json_codec.encode(spec))
    machine, figures = Machine(1), Figures()
    machine.grant()
    machine.until(lambda: "\nready " in machine.output(), "the job's memory")
    figures["idle"] = _rest(float(rest))
    with processes.watched() as peak:
        machine.save()
    figures["first save"] = _most(peak)
    figures["after the first save"] = _rest(float(rest))
    with processes.watched() as peak:
        for _ in range(MORE_SAVES):
            machine.tell(f"dirty {CHANGED_THOUSANDTHS}", "dirty")
            machine.save()
    figures["more saves"] = _most(peak)
    figures["after more saves"] = _rest(float(rest))
    with processes.watched() as peak:
        machine.end(Want.DRAIN)
    figures["final save"] = _most(peak)
    return figures


def restore(rest: str) -> Figures:
    """An agent that waits, is granted the job and brings it back."""
    machine, figures = Machine(2), Figures()
    machine.until(lambda: machine.shows(AgentState.STANDBY), "the machine's readiness")
    figures["waiting"] = _rest(float(rest))
    with processes.watched() as peak:
        machine.grant()
        machine.until(lambda: machine.shows(AgentState.RUNNING), "the restore")
    figures["restore"] = _most(peak)
    figures["after the restore"] = _rest(float(rest))
    machine.end(Want.STOP)
    return figures


def _rest(seconds: float) -> Figures:
    """What is held after so long."""
    time.sleep(seconds)
    now = processes.agents()
    return {"pss": sum(m.pss for m in now.values()), "processes": {kind: _told(m) for kind, m in sorted(now.items())}}


def _told(m: Memory) -> Figures:
    return {"rss": m.rss, "pss": m.pss, "anonymous": m.anonymous, "groups": dict(sorted(m.groups.items()))}


def _most(peak: Peak) -> Figures:
    return {
        "pss": peak.pss, "pss_own": peak.pss_own,
        "processes": {k: {"rss": v, "own": peak.own[k], "buffers": peak.buffers[k]} for k, v in sorted(peak.rss.items())},
    }  # fmt: skip


if __name__ == "__main__":
    scene, *words = sys.argv[1:]
    figures = saves(*words) if scene == "saves" else restore(*words)
    (SHARE / "figures.json").write_text(json.dumps(figures))
