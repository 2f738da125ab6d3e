"""Facts and states of the agent's machine: valid by default, one thing changed."""

from __future__ import annotations

import dataclasses
from typing import Any

from spotsurfer_agent.control.facts import AgentRules, Facts, Notice, Outcome, Task
from spotsurfer_agent.control.state_machine import State
from spotsurfer_agent.ports.engine import Status
from spotsurfer_agent.ports.engine import WorkloadState as W
from spotsurfer_wire.messages import AgentState as S
from spotsurfer_wire.messages import Desired, Done, Head, HeadKind, SaveFacts, Want

RULES = AgentRules(attempt=2, interval_seconds=100.0, lease_seconds=60.0, limit_seconds=0.0)
MINE = Head(3, HeadKind.GRANT, 2, "000001-000001", 1, False, None, 5.0, "n3", "")
THEIRS = dataclasses.replace(MINE, number=4, epoch=3)
CLOSED = dataclasses.replace(MINE, number=4, kind=HeadKind.DONE, done=Done(None, "cancelled"))
FINAL = dataclasses.replace(MINE, number=4, kind=HeadKind.COMMIT, final=True)
KEPT: dict[str, Any] = {  # its final save is in the log, and the job stands frozen still
    "head": dataclasses.replace(FINAL, checkpoint="000002-000002"),
    "own_final": True,
    "pending_final": "000002-000002",
    "rules": dataclasses.replace(RULES, keep_seconds=60.0),
}
GONE_ON = Head(5, HeadKind.GRANT, 3, "000002-000002", 2, False, None, 5.0, "n5", "")
BACK = dataclasses.replace(GONE_ON, number=6, epoch=2)
NOTICE = Notice("interruption", "x", 1120.0)
SAVED = SaveFacts("000002-000002", 2, "live", 1, 1, 0.1, 3.0)


def facts(**changes: Any) -> Facts:
    """A world in which the attempt owns the job and it runs."""
    base = Facts(now=1000.0, rules=RULES, head=MINE, head_read=True, lease_age_seconds=5.0)
    return dataclasses.replace(base, status=status(changes), **changes)


def status(changes: dict[str, Any]) -> Status:
    """Takes what the shim says out of these facts; the job runs unless they say something else."""
    names = changes.keys() & {field.name for field in dataclasses.fields(Status)}
    return Status(changes.pop("workload", W.RUNNING), **{name: changes.pop(name) for name in names})


def state(name: S, **changes: Any) -> State:
    return State(**{"name": name, "since": 990.0, "shown": name, "booted": True, "freeze_at": 990.0, **changes})


def ended(task: Task, error: str = "", **more: Any) -> Outcome:
    return Outcome(task, 1000.0, error, **more)


def desired(want: Want = Want.RUN, sequence: int = 4, **more: Any) -> Desired:
    return Desired(sequence, want, **more)
