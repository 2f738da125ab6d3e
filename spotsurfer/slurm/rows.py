"""A job of the controller as Slurm's users know it: id, state, reason, exit code, times. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache, cached_property
from typing import Any

from spotsurfer.slurm.values import exit_words, raw_id, read_tasks, show_memory

ENDED = frozenset({"succeeded", "failed", "cancelled"})
SHORT = {
    "PENDING": "PD",
    "RUNNING": "R",
    "SUSPENDED": "S",
    "COMPLETED": "CD",
    "CANCELLED": "CA",
    "FAILED": "F",
    "TIMEOUT": "TO",
    "NODE_FAIL": "NF",
    "PREEMPTED": "PR",
    "BOOT_FAIL": "BF",
    "DEADLINE": "DL",
    "OUT_OF_MEMORY": "OOM",
    "COMPLETING": "CG",
    "CONFIGURING": "CF",
    "RESIZING": "RS",
    "RESV_DEL_HOLD": "RD",
    "REQUEUED": "RQ",
    "REQUEUE_FED": "RF",
    "REQUEUE_HOLD": "RH",
    "REVOKED": "RV",
    "SIGNALING": "SI",
    "SPECIAL_EXIT": "SE",
    "STAGE_OUT": "SO",
    "STOPPED": "ST",
}
IN_QUEUE = frozenset({"PENDING", "RUNNING", "SUSPENDED", "COMPLETING", "CONFIGURING"})
BY_ITS_END = {
    "FAILED": "NonZeroExitCode",
    "TIMEOUT": "TimeLimit",
    "OUT_OF_MEMORY": "OutOfMemory",
    "COMPLETED": "None",
    "CANCELLED": "None",
    "RUNNING": "None",
    "COMPLETING": "None",
    "SUSPENDED": "None",
}
WAITS = {
    "dependency": "Dependency",
    "begin": "BeginTime",
    "array": "JobArrayTaskLimit",
    "licences": "Licenses",
    "never": "DependencyNeverSatisfied",
}


@dataclass(frozen=True)
class Row:
    """One job or task. `brief`: as GET /v1/brief lists it; `now`: for those that run; `at_home`: of an ended one."""

    brief: Mapping[str, Any]
    now: datetime
    partition: str
    at_home: bool = True

    @property
    def id(self) -> str:
        """The controller's id."""
        return str(self.brief["id"])

    @property
    def number(self) -> int:
        """The number of the submission."""
        return int(self.brief["number"])

    @property
    def task(self) -> int | None:
        """The number within an array."""
        task = self.brief["task"]
        return None if task is None else int(task)

    @cached_property
    def tasks(self) -> Sequence[int]:
        """The tasks of an array that the row stands for; none of a job that is no task."""
        return read_tasks(self.brief["tasks"]) if self.brief["tasks"] else [] if self.task is None else [self.task]

    @property
    def ids(self) -> Sequence[str]:
        """The controller's ids of all jobs that the row stands for."""
        return [f"{self.array}-{task}" for task in self.tasks] or [self.id]

    @property
    def array(self) -> str:
        """The controller's id of the array that it is a task of; "" = none."""
        return str(self.brief["array"])

    @property
    def slurm_id(self) -> str:
        """The id that people write."""
        return f"{self.number}" if self.task is None else f"{self.number}_{self.task}"

    @cached_property
    def ended(self) -> bool:
        """Whether it has, and what it made is at home."""
        return self.brief["state"] in ENDED and self.at_home

    @cached_property
    def state(self) -> str:
        """The name of its state."""
        b = self.brief
        if b["state"] in ENDED:
            return _ended(b) if self.at_home else "COMPLETING"
        if b["wish"] == "cancel":
            return "COMPLETING" if self.started else "CANCELLED"
        if not self.started:
            return "PENDING"
        return "SUSPENDED" if b["wish"] == "hold" or b["state"] == "held" else "RUNNING"

    @property
    def short(self) -> str:
        """The state in two letters."""
        return SHORT[self.state]

    @cached_property
    def reason(self) -> str:
        """Why it waits, or why it ended as it did."""
        b, state = self.brief, self.state
        if state != "PENDING":
            signalled = state == "FAILED" and not self.exit.endswith(":0")
            return f"RaisedSignal:{self.exit[2:]}({_signal_words(int(self.exit[2:]))})" if signalled else BY_ITS_END[state]
        if b["wish"] == "hold" or b["state"] == "held":
            return "JobHeldUser"
        waits = "licences" if "licence" in b["reason"] else b["waits_for"]
        return WAITS.get(waits) or ("Resources" if b.get("machine") or b["phase"] != "queued" else "Priority")

    @property
    def exit(self) -> str:
        """`code:signal`."""
        known = {"TIMEOUT": "0:0", "CANCELLED": "0:0", "OUT_OF_MEMORY": "0:125"}  # 125: a number of Slurm's own
        return known.get(self.state) or exit_words(self.brief["exit_code"])

    @cached_property
    def submitted(self) -> datetime:
        """When it was submitted."""
        return datetime.fromisoformat(self.brief["submitted_at"])

    @cached_property
    def started(self) -> datetime | None:
        """When its first machine began with it."""
        return _moment(self.brief["started_at"])

    @cached_property
    def ended_at(self) -> datetime | None:
        """When it ended; None as long as its files are on their way home."""
        return _moment(self.brief["ended_at"]) if self.ended else None

    @property
    def seconds(self) -> float:
        """So long since it began, to its end."""
        begin = self.started
        return 0.0 if begin is None else max(0.0, ((self.ended_at or self.now) - begin).total_seconds())

    @property
    def limit(self) -> float | None:
        """Its time limit in seconds."""
        seconds = self.brief["time_limit_seconds"]
        return None if seconds is None else float(seconds)

    @property
    def user(self) -> str:
        """Who submitted it, as Slurm names users."""
        return str(self.brief["owner"]) or "nobody"

    @property
    def raw(self) -> int:
        """A number of its own for each task, too; see `values.raw_id`."""
        return raw_id(self.number, self.task)

    @property
    def name(self) -> str:
        """Its name."""
        return str(self.brief["name"])

    @property
    def account(self) -> str:
        """The project that pays, else the user."""
        return str(self.brief["project"]) or self.user

    @property
    def uid(self) -> str:
        """The user's number on this host."""
        return str(_passwd(self.user)[0])

    @property
    def gid(self) -> str:
        """Their group's number."""
        return str(_passwd(self.user)[1])

    @property
    def group(self) -> str:
        """Their group."""
        return _group(_passwd(self.user)[1])

    @property
    def resources(self) -> str:
        """What it asked for, as Slurm counts it."""
        b = self.brief
        gpus = f",gres/gpu={b['gpus']}" if b["gpus"] else ""
        return f"cpu={b['cpus']},mem={show_memory(b['memory_bytes'])},node=1,billing={b['cpus']}{gpus}"

    @property
    def node(self) -> str:
        """The machine that it is on."""
        return str(self.brief["machine"] or "") if self.state in ("RUNNING", "COMPLETING") or self.ended else ""


def _ended(b: Mapping[str, Any]) -> str:
    if b["state"] != "failed":
        return "COMPLETED" if b["state"] == "succeeded" else "CANCELLED"
    return {"time limit": "TIMEOUT", "memory": "OUT_OF_MEMORY"}.get(b["ended_by"], "FAILED")


def _signal_words(number: int) -> str:
    import signal

    return signal.strsignal(number) or "Unknown signal"


@cache
def _passwd(user: str) -> tuple[int, int]:
    import pwd

    try:
        found = pwd.getpwnam(user)
    except KeyError:
        return 65534, 65534
    return found.pw_uid, found.pw_gid


@cache
def _group(number: int) -> str:
    import grp

    try:
        return grp.getgrgid(number).gr_name
    except KeyError:
        return str(number)


def _moment(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text)
