"""The two runs of the demonstration, undisturbed and surfed, and the figures that compare them."""

from __future__ import annotations

import hashlib
import os
import resource
import shutil
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from spotsurfer_wire.head_log import HeadLog
from spotsurfer_wire.messages import Head, HeadKind
from spotsurfer_wire.store.obstore import open_store

from spotsurfer.demo.environment import INTERVAL_SECONDS, Stage
from spotsurfer.model.errors import SpotsurferError
from spotsurfer.model.money import for_seconds

# ---- Undisturbed run: the same command on this host at the same time, so that only the surfing differs.

LOOK_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class Undisturbed:
    """Figures and result of the undisturbed run."""

    wall_seconds: float
    cpu_seconds: float
    md5: str


class PlainRun:
    """The command as a process of this host; end it with `stop`, whatever happens."""

    def __init__(self, command: Sequence[str], folder: Path, inputs: Sequence[Path], result: str) -> None:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        for path in inputs:
            os.link(path, folder / path.name)
        self._folder = folder
        self._result = folder / result
        self._begin = time.monotonic()
        with (folder / "log").open("wb") as log:
            self._process = subprocess.Popen(
                command, cwd=folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        self._ended: tuple[float, resource.struct_rusage] | None = None

    def poll(self) -> bool:
        """Whether it has ended; call it often, because it measures the time. Raises SpotsurferError if the command failed."""
        if self._ended is None:
            pid, status, usage = os.wait4(self._process.pid, os.WNOHANG)
            if pid:
                self._process.returncode = os.waitstatus_to_exitcode(status)
                self._ended = (time.monotonic() - self._begin, usage)
        if self._ended is not None and self._process.returncode != 0:
            log = self._folder / "log"
            raise SpotsurferError(f"the undisturbed run failed with status {self._process.returncode}: see {log}")
        return self._ended is not None

    def wait(self, tell: Callable[[str], None]) -> Undisturbed:
        """Wait for the end; returns its figures."""
        if not self.poll():
            tell("waiting for the undisturbed run to end")
        while not self.poll():
            time.sleep(LOOK_SECONDS)
        assert self._ended is not None
        wall, usage = self._ended
        return Undisturbed(wall, usage.ru_utime + usage.ru_stime, md5_of(self._result))

    def stop(self) -> None:
        """End it, if it has not."""
        if self._process.returncode is None:
            os.killpg(self._process.pid, 9)
            self._process.wait()


def md5_of(path: Path) -> str:
    """The MD5 of a file's bytes."""
    with path.open("rb") as f:
        return hashlib.file_digest(f, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()


# ---- Surfed run: follows the job, asks for a move, kills the controller in the middle of it, and starts it again.

Json = dict[str, Any]
# The n-th spot machine meets its fate so many seconds after its launch. Between the first reclaim and the loss the user asks
# for a move, and the controller is killed in the middle of it. With the last reclaim spot is sold out for a while, so the job
# falls back to on-demand, then returns.
SCENARIO = """\
[[reclaim]]
launch = 1
after_seconds = 22
notice_seconds = 30

[[reclaim]]
launch = 3
after_seconds = 35
notice_seconds = 0

[[reclaim]]
launch = 4
after_seconds = 22
notice_seconds = 30

[[outage]]
market = "spot"
at_reclaim = 3
seconds = 20
"""
SETTLED_SECONDS = 12  # work of the second machine before the user asks for a move
LIMIT_SECONDS = 1500


class Story:
    """What happened to the job so far. It plays the user and the accident; the scenario and spotsurfer do all the rest."""

    def __init__(self, stage: Stage, job: str, tell: Callable[[str], None]) -> None:
        self.job = job
        self.moments: list[Json] = []
        self.show: Json = {}
        self.controller_kills = 0
        self._asked = False
        self._stage = stage
        self._tell = tell

    def play(self, draw: Callable[[Story], None]) -> None:
        """Play until the job has ended; raises SpotsurferError if it takes too long."""
        end = time.monotonic() + LIMIT_SECONDS
        while time.monotonic() < end:
            self.show = self._stage.ask(f"/v1/jobs/{self.job}")
            self.moments = self._stage.ask(f"/v1/jobs/{self.job}/timeline")["moments"]
            draw(self)
            released = all(a["state"] in ("released", "refused") for a in self.show["attempts"])
            if self.show["state"] in ("succeeded", "failed", "cancelled") and released:
                return
            self._act()
            time.sleep(LOOK_SECONDS)
        raise SpotsurferError(f"the job did not end within {LIMIT_SECONDS} s: see `spotsurfer show {self.job}`")

    def _act(self) -> None:
        second = [a for a in self.show["attempts"] if a["number"] == 2 and a["state"] == "running"]
        if second and not self._asked and _age(second[0]["since"]) >= SETTLED_SECONDS:
            self._asked = True
            self._tell("the user asks for a move: spotsurfer move assembly")
            self._stage.call("move", self.job)
        if self._asked and not self.controller_kills and self._in_the_middle():
            self._tell("the controller is killed with -9 in the middle of the move")
            self._stage.kill()
            self.controller_kills += 1
            time.sleep(3)
            self._tell("and started again")
            self._stage.start()

    def _in_the_middle(self) -> bool:
        """Whether the old machine has its order for the final save, and the new one waits."""
        states = {a["state"] for a in self.show["attempts"]}
        return "draining" in states or ("running" in states and bool(states & {"booting", "ready"}))


def _age(since: str) -> float:
    return (datetime.now(datetime.fromisoformat(since).tzinfo) - datetime.fromisoformat(since)).total_seconds()  # noqa: TID251


# ---- Figures: from the timeline, the cost report and the head log.


def figures(story: Story, costs: Sequence[Json], plain: Undisturbed, md5: str, store: Path) -> Json:
    """`result.json`. Money in USD, times in seconds.

    `work_lost_seconds`: by attempt, CPU time of the job there that no committed checkpoint or end contains; the program has
    one thread, so this is time of work. `usd_on_demand`: one on-demand machine of the same type for the time of the
    undisturbed run.
    """
    attempts = [a for a in story.show["attempts"] if a["granted_at"]]
    log = HeadLog(open_store(store.as_uri()), story.job)
    log.refresh()
    lost = {a["number"]: _lost(a, log.entries) for a in attempts}
    silent = [a["number"] for a in attempts if _unannounced(a, story.moments)]
    cpu = sum(a["cpu_seconds"] for a in attempts)
    list_price = max(a["list_price_usd_micros_per_hour"] for a in attempts)
    usd = sum(c["usd_micros"] for c in costs)
    return {
        "identical": md5 == plain.md5,
        "md5": md5,
        "md5_undisturbed": plain.md5,
        "moves": story.show["moves"],
        "machines": len(costs),
        "controller_kills": story.controller_kills,
        "unnoticed_losses": len(silent),
        "notices": sum(1 for m in story.moments if m["kind"] == "notice"),
        "on_demand_fallbacks": sum(1 for a in attempts if a["market"] == "on-demand"),
        "restarts_from_zero": sum(1 for a in attempts[1:] if a["from_checkpoint"] is None),
        "work_lost_seconds": round(sum(lost.values()), 2),
        "work_lost_announced_seconds": [round(s, 2) for n, s in lost.items() if n not in silent],
        "work_lost_unannounced_seconds": [round(lost[n], 2) for n in silent],
        "frozen_seconds": round(sum(a["frozen_seconds"] for a in attempts), 2),
        "saves": sum(a["saves"] for a in attempts),
        "usd": round(usd / 1e6, 6),
        "usd_on_demand": round(for_seconds(list_price, max(plain.wall_seconds, 60.0)) / 1e6, 6),
        "usd_same_machines_on_demand": round(sum(c["usd_micros_on_demand"] for c in costs) / 1e6, 6),
        "job_cpu_seconds": round(cpu, 1),
        "undisturbed_cpu_seconds": round(plain.cpu_seconds, 1),
        "job_cpu_ratio": round(cpu / plain.cpu_seconds, 4),
        "undisturbed_wall_seconds": round(plain.wall_seconds, 1),
        "wall_seconds": round(_seconds(story.show["submitted_at"], story.show["ended_at"]), 1),
    }


def _lost(attempt: Json, entries: Sequence[Head]) -> float:
    """Work of the attempt that its successor had to repeat, in seconds of its one thread."""
    mine = [e for e in entries if e.epoch == attempt["number"]]
    start = next(e.cpu_seconds for e in mine if e.kind is HeadKind.GRANT)
    if any(e.kind is HeadKind.DONE for e in mine):
        return 0.0
    kept = max((e.cpu_seconds for e in mine), default=start)
    used = float(attempt["cpu_seconds"])
    return max(used - (kept - start), 0.0)


def _unannounced(attempt: Json, moments: Sequence[Json]) -> bool:
    mine = [m for m in moments if m["attempt"] == attempt["number"]]
    gone = any(m["data"].get("event") == "instance gone" and m["data"].get("to") == "lost" for m in mine)
    return gone and not any(m["kind"] == "notice" for m in mine)


def _seconds(begin: str, end: str) -> float:
    return (datetime.fromisoformat(end) - datetime.fromisoformat(begin)).total_seconds()


def failures(result: Json) -> list[str]:
    """Promises of the demonstration that the result does not show."""
    promises = {
        "the contigs are identical": result["identical"],
        "at least five moves": result["moves"] >= 5,
        "the controller was killed": result["controller_kills"] >= 1,
        "one machine was lost without notice": result["unnoticed_losses"] >= 1,
        "one on-demand fallback": result["on_demand_fallbacks"] >= 1,
        "never begun again": result["restarts_from_zero"] == 0,
        "work is continued, not redone": result["job_cpu_ratio"] <= 1.1,
        "at most a second lost at an announced move": all(s <= 1 for s in result["work_lost_announced_seconds"]),
        "at most an interval lost without notice": all(s <= INTERVAL_SECONDS for s in result["work_lost_unannounced_seconds"]),
    }
    return [name for name, kept in promises.items() if not kept]
