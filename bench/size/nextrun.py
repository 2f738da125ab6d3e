"""E5: how much memory the next run gets, learned from earlier runs of the same task, against plain rules."""

from __future__ import annotations

import csv
import gzip
import itertools
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from spotsurfer_lab.size_backtest import MAX_FACTOR

from bench.report import Part, percent, table
from bench.size.settings import DATA
from spotsurfer.core.scheduling.next_size import LATEST, LINE_RUNS, Ran, next_bytes
from spotsurfer.ports.policies import USABLE

Rule = Callable[[Sequence[float], float], float]  # peaks so far, request -> limit, all in bytes
MIB, GIB = 1 << 20, 1 << 30
REQUEST_BYTES = 6 * GIB  # what the test profiles of nf-core ask for; the tasks' file does not say it
SHARES = (0.05, 0.04, 0.03, 0.02, 0.01, 0.005)  # of runs that may exceed what they are given
KNOWN = (1, 2, 3, 5)  # earlier runs from which on a margin holds
MARGINS = (1.0, 1.02, 1.05, 1.1, 1.2, 1.3, 1.5, 2.0)
ROOM_MIB = (12, 24, 36, 48, 64, 96, 128)
SAMPLES_A_DAY = 288
VPA_FLOOR, VPA_SHARE, VPA_MARGIN = 250 * MIB, 0.9, 1.15


@dataclass(frozen=True, slots=True)
class Step:
    """Runs of one task in order: their peaks, and what was asked for."""

    peaks: Sequence[float]
    request: float


def run() -> Part:
    """All tasks that ran before; first runs have nothing to learn from and are left out for all rules alike."""
    sets = {"nf-core": list(_nf_core()), "VM": list(_vm())}
    both = [*sets["nf-core"], *sets["VM"]]
    found = {rule: {name: judged(steps, RULES[rule]) for name, steps in {**sets, "both": both}.items()} for rule in RULES}
    ours = found["surf"]["both"]
    keys = {
        "e5_slack": ours["slack"],
        "e5_oom_share": ours["killed"],
        "e5_near_miss_share": ours["exceeded"],
        "e5_oom_share_without_guard": ours["exceeded"],
        "e5_runs": ours["runs"],
    }
    rows = []
    for rule, by_set in found.items():
        cells = [x for f in by_set.values() for x in (percent(f["slack"]), percent(f["exceeded"]))]
        rows.append([rule, *cells])
    columns = ["rule", *(f"{name} {what}" for name in found["surf"] for what in ("slack, %", "exceeded, % of runs"))]
    unguarded = traded(both)
    keys["e5_slack_without_guard_at_1_percent"] = unguarded[0.01][0]
    curve = [[percent(share), percent(slack), rule] for share, (slack, rule) in unguarded.items()]
    told = ["exceeded at most, % of runs", "least slack, %", "margin after 1, 2, 3 and 5 runs, and room"]
    inputs, beside = by_inputs()
    tables = {"size-next": table(columns, rows), "size-next-unguarded": table(told, curve), "size-next-inputs": beside}
    return Part(keys | inputs, tables)


def by_inputs() -> tuple[dict[str, object], str]:
    """With and without the size of inputs, if earlier runs of a step are enough for a line: recorded steps and made-up ones."""
    keys: dict[str, object] = {}
    lines = []
    for name, steps in {"nf-core": _nf_core_inputs(), "made up": made_up()}.items():
        for rule, known in (("highest so far", False), ("by the size of inputs", True)):
            runs = [(s[:i], s[i]) for s in steps for i in range(LINE_RUNS, len(s)) if s[i].input_bytes > 0]
            limit = np.array([next_bytes(before, now.input_bytes * known) or 0.0 for before, now in runs])
            peak = np.array([now.peak_bytes for _, now in runs])
            slack, exceeded = float(np.maximum(limit - peak, 0).sum() / limit.sum()), float((peak > limit).mean())
            keys[f"e5_{name} {rule}".replace(" ", "_")] = (slack, exceeded)
            lines.append([name, str(len(runs)), rule, percent(slack), percent(exceeded)])
    return keys, table(["steps", "runs", "rule", "slack, %", "exceeded, % of runs"], lines)


def made_up(rules: int = 200, runs: int = 20) -> list[list[Ran]]:
    """Memory is a constant and a multiple of the input, a tenth more or less; one run of fifty takes three times that."""
    rng = np.random.default_rng(1)
    found = []
    for _ in range(rules):
        base, per = rng.uniform(0, 2), rng.uniform(0.2, 4)
        sizes, noise = np.exp(rng.normal(0, 0.7, runs)), np.exp(rng.normal(0, 0.1, runs))
        peaks = (base + per * sizes) * noise * np.where(rng.random(runs) < 0.02, 3.0, 1.0)
        found.append([Ran(float(p) * GIB, float(x) * GIB) for p, x in zip(peaks, sizes, strict=True)])
    return found


def _nf_core_inputs() -> list[list[Ran]]:
    """What a task read stands for the size of its inputs."""
    steps: defaultdict[tuple[str, str], list[Ran]] = defaultdict(list)
    for row in _rows("nf-core-tasks.csv.gz"):
        if (peak := float(row["peak_memory_bytes"])) > 0:
            steps[row["workflow"], row["spec_name"]].append(Ran(peak, float(row["read_bytes"] or 0)))
    return list(steps.values())


def traded(steps: Sequence[Step]) -> dict[float, tuple[float, str]]:
    """By share of runs that may exceed what they are given: the least slack of any rule of a family, and that rule.

    The family: highest peak of the last 20 times a margin by how many runs are known, and room besides. Each is chosen on the
    data that it is judged by, which flatters it.
    """
    known = [(i, max(s.peaks[:i][-LATEST:]), s.peaks[i]) for s in steps for i in range(1, len(s.peaks))]
    count, highest, peak = (np.array(column) for column in zip(*known, strict=True))
    group = np.searchsorted(KNOWN, count, side="right") - 1
    found: dict[float, tuple[float, str]] = {}
    for margins, room in itertools.product(itertools.product(MARGINS, repeat=len(KNOWN)), ROOM_MIB):
        if list(margins) != sorted(margins, reverse=True):
            continue
        limit = np.array(margins)[group] * highest + room * MIB
        exceeded, slack = float((peak > limit).mean()), float(np.maximum(limit - peak, 0).sum() / limit.sum())
        for share in SHARES:
            if exceeded <= share and slack < found.get(share, (1.0, ""))[0]:
                found[share] = slack, f"{', '.join(f'{m:g}' for m in margins)} times and {room} MiB"
    return found


def judged(steps: Sequence[Step], rule: Rule) -> dict[str, float]:
    """Slack: what of all that was given was not used at the peaks. Exceeded: runs that needed more than they were given.

    Killed: those of them for which the guard has no machine either, because it may not be so much larger than was asked for.
    """
    given, used, most = [], [], []
    for step in steps:
        for i in range(1, len(step.peaks)):
            given.append(rule(step.peaks[:i], step.request))
            used.append(step.peaks[i])
            most.append(USABLE * MAX_FACTOR * step.request)
    limit, peak = np.array(given), np.array(used)
    exceeded = peak > limit
    slack = float(np.maximum(limit - peak, 0).sum() / limit.sum())
    return {
        "slack": slack,
        "exceeded": float(exceeded.mean()),
        "killed": float((exceeded & (peak > most)).mean()),
        "runs": len(peak),
    }


def _surf(peaks: Sequence[float], request: float) -> float:
    return next_bytes([Ran(p) for p in peaks]) or request


def _vpa(peaks: Sequence[float], request: float) -> float:
    """As the recommender of Kubernetes: the 90th percentile of peaks, 15 % more, a floor; its decay is left out."""
    del request
    return max(float(np.quantile(np.array(peaks), VPA_SHARE)) * VPA_MARGIN, VPA_FLOOR)


RULES: Mapping[str, Rule] = {
    "surf": _surf,
    "request": lambda _, request: request,
    "max seen + 20 %": lambda peaks, _: 1.2 * max(peaks),
    "VPA-like": _vpa,
}


def _nf_core() -> Iterator[Step]:
    steps: defaultdict[tuple[str, str], list[float]] = defaultdict(list)
    for row in _rows("nf-core-tasks.csv.gz"):
        if (peak := float(row["peak_memory_bytes"])) > 0:  # 0: too short to be seen
            steps[row["workflow"], row["spec_name"]].append(peak)
    return (Step(peaks, REQUEST_BYTES) for peaks in steps.values())


def _vm() -> Iterator[Step]:
    """Each day is a run."""
    rows = _rows("vm-memory.csv.gz")
    used = [float(r["memory_used_mib"]) * MIB for r in rows]
    days = [max(used[i : i + SAMPLES_A_DAY]) for i in range(0, len(used) - SAMPLES_A_DAY + 1, SAMPLES_A_DAY)]
    yield Step(days, float(rows[0]["memory_provisioned_mib"]) * MIB)


def _rows(name: str) -> list[dict[str, str]]:
    with gzip.open(DATA / name, "rt") as opened:
        return list(csv.DictReader(opened))
