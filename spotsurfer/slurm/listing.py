"""What `squeue` and `sacct` share: rows of jobs, those that are wanted, and pending tasks of an array as one line."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from spotsurfer.common.units import ranges
from spotsurfer.slurm.rows import ENDED, SHORT, Row
from spotsurfer.slurm.site import Site
from spotsurfer.slurm.values import JobIds
from spotsurfer.web.client import NAME_MAX, Client, Json, job_path

FEW = 20  # so many ended jobs are brought home before a list is shown
DETAILS = "SPOTSURFER_SLURM"  # variable of a job: what Slurm's commands tell of it and the controller does not need


@dataclass(frozen=True)
class Entry:
    """A line of a list: a job, a task, or pending tasks of an array. `client`: for what only the whole job tells."""

    row: Row
    tasks: Sequence[int] = ()
    client: Client | None = field(default=None, repr=False)

    @property
    def tasks_words(self) -> str:
        """Numbers of the tasks as squeue's %K: 3, or 1-3%2 of pending ones."""
        if not self.tasks:
            return "N/A" if self.row.task is None else str(self.row.task)
        limit = self.row.brief["array_limit"]
        return ranges(self.tasks) + (f"%{limit}" if limit else "")

    @property
    def slurm_id(self) -> str:
        """The id that people write."""
        return f"{self.row.number}_[{self.tasks_words}]" if self.tasks else self.row.slurm_id

    @property
    def raw(self) -> int:
        """A number of its own."""
        return self.row.number if self.tasks else self.row.raw

    @cached_property
    def job(self) -> Json:
        """The whole job."""
        assert self.client is not None
        return self.client.get(job_path(self.row.id))

    @property
    def output(self) -> str:
        """The file on the submit host for its stdout."""
        return self._file(str(self.job["spec"].get("stdout", "")))

    @property
    def error(self) -> str:
        """The same for stderr."""
        return self._file(str(self.job["spec"].get("stderr", ""))) or self.output

    def _file(self, pattern: str) -> str:
        task = self.row.task
        return pattern.replace("{number}", str(self.row.number)).replace("{task}", "%a" if task is None else str(task))

    @cached_property
    def details(self) -> Mapping[str, Any]:
        """What the submission said besides: command, comment, partition …; empty for a job that did not come by `sbatch`."""
        found = json.loads(self.job["spec"]["environment"].get(DETAILS, "{}"))
        return found if isinstance(found, dict) else {}


def fetch(site: Site, ended: bool, folded: bool = False) -> list[Row]:
    """Jobs that the caller may see, oldest first: all, or those that have not ended or are not at home yet.

    What has ended is brought home first, unless that is much: then the user's courier does it. `folded`: tasks of an array that
    are alike share a row.
    """
    rows = _rows(site, ended, folded)
    awaited = site.home.awaited(site.client) - {id for row in rows if row.brief["state"] not in ENDED for id in row.ids}
    if awaited:
        every = rows if ended and not folded else _rows(site, ended=True, folded=False)
        late = frozenset(r.id for r in every if r.id in awaited and r.brief["state"] in ENDED and r.started)
        if 0 < len(late) <= FEW:
            site.home.deliver(site.client, sorted(late))
            late &= site.home.awaited(site.client)
        rows = [replace(r, at_home=r.id not in late) for r in every if ended or r.brief["state"] not in ENDED or r.id in late]
    return sorted(rows, key=lambda row: (row.number, row.task if row.task is not None else -1))


def _rows(site: Site, ended: bool, folded: bool) -> list[Row]:
    briefs = site.client.get("/v1/brief", ended=ended, folded=folded)["jobs"]
    return [Row(b, site.now, site.partition_of(b)) for b in briefs]


def wanted(rows: Iterable[Row], ids: Sequence[JobIds]) -> list[Row]:
    """Those with one of the ids; all if there are none."""
    by_number: dict[int, list[JobIds]] = {}
    for one in ids:
        by_number.setdefault(one.number, []).append(one)
    return [r for r in rows if not ids or any(one.covers(r.number, r.task) for one in by_number.get(r.number, ()))]


def places(chosen: Sequence[Row], every: Sequence[Row]) -> list[str]:
    """Few names that mean these jobs for the controller: ids, arrays, `ARRAY-[1-3,7]`. `every`: all that are listed."""
    by_array: dict[str, list[Row]] = {}
    for row in chosen:
        by_array.setdefault(row.array or row.id, []).append(row)
    going_on = Counter(r.array for r in every if r.array and r.brief["state"] not in ENDED)
    found = list[str]()
    for name, rows in by_array.items():
        if len(rows) == 1:
            found.append(rows[0].id)
        elif len(rows) == going_on[name]:
            found.append(name)
        else:
            tasks = ranges(r.task for r in rows if r.task is not None)
            found += [f"{name}-[{part}]" for part in _parts(tasks, NAME_MAX - len(name) - 3)]
    return found


def _parts(text: str, size: int) -> list[str]:
    """Ranges in pieces of at most so many letters."""
    parts = [""]
    for span in text.split(","):
        if parts[-1] and len(parts[-1]) + 1 + len(span) > size:
            parts.append(span)
        else:
            parts[-1] = f"{parts[-1]},{span}".removeprefix(",")
    return parts


def entries(rows: Sequence[Row], client: Client, apart: bool = False) -> list[Entry]:
    """A line for each; pending tasks of an array share one, unless `apart`."""
    pending: dict[int, list[Row]] = {}
    if not apart:
        for row in rows:
            if row.task is not None and row.state == "PENDING" and not any("_" in on for on in row.brief["after"]):
                pending.setdefault(row.number, []).append(row)
    shared = {row.id for some in pending.values() for row in some}
    found, told = list[Entry](), set[int]()
    for row in rows:
        if row.id not in shared:
            found.append(Entry(row, client=client))
        elif row.number not in told:
            told.add(row.number)
            together = pending[row.number]
            tasks = [task for r in together for task in r.tasks]
            found.append(Entry(_speaker(together), tasks, client))
    return found


def _speaker(rows: Sequence[Row]) -> Row:
    """The task whose reason is told for all: one that only its array holds back comes last."""
    return next((r for r in rows if r.reason != "JobArrayTaskLimit"), rows[0])


def as_json(found: Sequence[Entry], site: Site) -> str:
    """Jobs in the form of Slurm's REST API 0.0.38, with the fields that clients read."""
    jobs = [_json_job(e) for e in found]
    meta = {"plugin": {"type": "openapi/v0.0.38", "name": "spotsurfer"}, "Slurm": {"release": site.version.rpartition(" ")[2]}}
    return json.dumps({"meta": meta, "errors": [], "jobs": jobs}, indent=1)


def _json_job(entry: Entry) -> Json:
    row = entry.row
    limit = row.limit
    return {
        "job_id": row.number,
        "array_job_id": row.number if row.task is not None else 0,
        "array_task_id": row.task,
        "array_task_string": entry.tasks_words if entry.tasks else "",
        "name": row.name,
        "job_state": row.state,
        "state_reason": row.reason,
        "user_name": row.user,
        "account": row.account,
        "partition": row.partition,
        "nodes": row.node,
        "cpus": row.brief["cpus"],
        "memory_per_node": row.brief["memory_bytes"] >> 20,
        "time_limit": None if limit is None else int(limit) // 60,
        "submit_time": int(row.submitted.timestamp()),
        "start_time": int(row.started.timestamp()) if row.started else 0,
        "end_time": int(row.ended_at.timestamp()) if row.ended_at else 0,
        "exit_code": int(row.exit.partition(":")[0]) << 8 | int(row.exit.partition(":")[2]),
        "current_working_directory": row.brief["home"],
    }


def read_states(text: str) -> frozenset[str]:
    """Names of states, long or short, any case; "all" = all. Raises KeyError with one that is none."""
    by_short = {short: name for name, short in SHORT.items()}
    found = set[str]()
    for part in filter(None, (p.strip() for p in text.split(","))):
        upper = part.upper()
        if upper == "ALL":
            return frozenset(SHORT)
        name = by_short.get(upper) or next((n for n in SHORT if n.startswith(upper)), None)
        if name is None:
            raise KeyError(part)
        found.add(name)
    return frozenset(found)
