"""Memory for the next run of a kind of job: what earlier runs used, and how that grows with the size of their inputs. Pure.

The guard freezes and moves up a run that needs more, instead of a kill. So a small margin and a plain rule suffice. A run
that the guard does not watch gets no less than was asked for.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from spotsurfer.model.job import Job

MARGIN = 1.08  # of what the earlier runs tell
ROOM_BYTES = 12 << 20  # in addition, because small runs differ by more than a share
LATEST = 20  # runs that are looked at
KILLED = 1.5  # a run that was killed for want of memory needed more than it had: so many times that
LINE_RUNS, LINE_SPREAD = 4, 1.5  # so many runs, of which the largest input is so many times the smallest, show a line
STEEPEST = 1.5  # power of the input's size
BEYOND = 4.0  # times the largest known input, or a part of the smallest: the line is not followed further
HIGH = 0.95  # quantile of what runs used beside the line
RULE, INPUT_BYTES = "rule", "input_bytes"  # tags
NUMBERED = re.compile(r"[-_.]\d+$")


@dataclass(frozen=True, slots=True, order=True)
class JobKind:
    """Jobs that are alike. `text`: "rule align" of the tag, or the name without the number at its end."""

    owner: str
    project: str
    text: str


@dataclass(frozen=True, slots=True)
class Ran:
    """An earlier run. `input_bytes` 0 = unknown; `killed`: for want of memory."""

    peak_bytes: float
    input_bytes: float = 0.0
    killed: bool = False

    @property
    def need_bytes(self) -> float:
        """What it needed, as far as known."""
        return self.peak_bytes * (KILLED if self.killed else 1.0)


def kind_of(job: Job) -> JobKind:
    """The kind of a job: owner, project, and the tag `rule` or else the name."""
    rule = job.spec.tags.get(RULE)
    return JobKind(job.owner, job.spec.project, f"rule {rule}" if rule else NUMBERED.sub("", job.spec.name))


def input_bytes_of(job: Job) -> float:
    """The size of its inputs, by its tag; 0 = unknown."""
    told = job.spec.tags.get(INPUT_BYTES, "")
    return float(told) if told.isascii() and told.isdigit() else 0.0


def next_bytes(runs: Sequence[Ran], input_bytes: float = 0.0) -> float | None:
    """Bytes of memory for the next run, margin included. `runs`: the latest last. None without runs: the request counts."""
    return None if not runs else MARGIN * likely_bytes(runs, input_bytes) + ROOM_BYTES


def likely_bytes(runs: Sequence[Ran], input_bytes: float = 0.0) -> float:
    """Bytes that the next run may need: by a line through the logarithms if input sizes tell one, else the highest so far."""
    latest = runs[-LATEST:]
    known = [r for r in latest if r.input_bytes > 0]
    if input_bytes > 0 and len(known) >= LINE_RUNS and (found := _by_line(known, input_bytes)) is not None:
        return found
    return max(r.need_bytes for r in latest)


def _by_line(runs: Sequence[Ran], input_bytes: float) -> float | None:
    """An outlier hardly turns the line: its slope is the median of those of all pairs. None: the inputs differ too little."""
    x, y = np.log([r.input_bytes for r in runs]), np.log([max(r.need_bytes, 1.0) for r in runs])
    if x.max() - x.min() < np.log(LINE_SPREAD):
        return None
    i, j = np.triu_indices(len(x), 1)
    apart = x[i] != x[j]
    slope = float(np.clip(np.median((y[j] - y[i])[apart] / (x[j] - x[i])[apart]), 0.0, STEEPEST))
    at = float(np.clip(np.log(input_bytes), x.min() - np.log(BEYOND), x.max() + np.log(BEYOND)))
    return float(np.exp(slope * at + np.quantile(y - slope * x, HIGH)))
