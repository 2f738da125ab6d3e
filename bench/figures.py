"""Figures of the benchmark: each with its target, what it was made of, and whether the target is met."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Raw = Mapping[str, Any]
AT_MOST, AT_LEAST, JUST_TOLD = "<=", ">=", ""
TAIL = "_thp_"  # ends keys, with a setting of huge pages that this machine does not have; the same must hold
# Key -> what must hold for it. A figure without a row here is told and judged by nobody.
TARGETS: dict[str, tuple[str, float]] = {
    "freeze_ratio": (AT_MOST, 0.25),
    "durable_ratio": (AT_MOST, 1.0),
    "second_new_share_above_floor": (AT_MOST, 0.03),
    "lazy_first_seconds": (AT_MOST, 1.0),
    "lazy_first_seconds_1gbit": (AT_MOST, 2.0),
    "lazy_all_ratio": (AT_MOST, 1.3),
    "lazy_wrong_pages": (AT_MOST, 0),
    "warm_move_pause_seconds": (AT_MOST, 6.0),
    "restore_ratio": (AT_MOST, 1.3),
    "repo_ratio": (AT_LEAST, 5.0),
    "second_freeze_ratio": (AT_MOST, 0.45),
    "second_rss_share": (AT_MOST, 0.3),
    "agent_memory_final_bytes": (AT_MOST, 512 << 20),
    "steady_overhead": (AT_MOST, 0.005),
    "scratch_dirty_freeze_growth_seconds": (AT_MOST, 1.0),
    "torn": (AT_MOST, 0),
    "torn_without_wait": (AT_LEAST, 1),
    "link_use": (AT_LEAST, 0.9),
}


# What stands in the way where a figure is missed; said on the page only then.
BOTTLENECKS: dict[str, str] = {
    "freeze_ratio": "what is left of the freeze is CRIU, which hands references to all pages over, by one processor.",
    "durable_ratio": "the store is slower than the job's memory is read: much of what was copied ahead is yet to be sent.",
    "second_freeze_ratio": "what is left of the freeze is CRIU, which hands references to all pages over, by one processor.",
    "restore_ratio": "what is put into the job's memory is read, unpacked and checked against its name first, which CRIU does "
    "not do with its files. With huge pages CRIU has little to do but to copy.",
    "lazy_all_ratio": "the job runs meanwhile, so userfaultfd puts its pages, one of 4 KiB after the other: that alone takes "
    "as long as all that CRIU does, which gets huge pages. Reading, unpacking and checking share the two processors with it.",
    "repo_ratio": "what is sent is half of the memory and keeps this disk busy most of the time; it rests while CRIU, which "
    "needs a processor, has the job frozen.",
}


@dataclass(frozen=True, slots=True)
class Figure:
    """One value. `raw` has the seconds and bytes behind it; `limit` stands in for a target that depends on the run."""

    key: str
    value: float | None
    compared: str
    raw: Raw = field(default_factory=dict)
    limit: float | None = None

    @property
    def target(self) -> tuple[str, float]:
        """How it is compared, and with what."""
        return (AT_MOST, self.limit) if self.limit is not None else TARGETS.get(plain(self.key), (JUST_TOLD, 0.0))

    @property
    def passed(self) -> bool | None:
        """Whether the target is met; None where there is none. A figure that could not be measured has not passed."""
        how, limit = self.target
        if how == JUST_TOLD:
            return None
        if self.value is None:
            return False
        return self.value <= limit if how == AT_MOST else self.value >= limit

    def as_json(self) -> dict[str, Any]:
        """Everything about it."""
        how, limit = self.target
        return {
            "value": self.value,
            "target": f"{how} {limit:g}" if how else None,
            "passed": self.passed,
            "compared": self.compared,
            "raw": dict(self.raw),
        }


def plain(key: str) -> str:
    """The key of the same figure as it is usually measured."""
    return key.partition(TAIL)[0]


def median(rounds: Sequence[Raw], key: str) -> float:
    """The middle one of what the rounds measured."""
    return float(statistics.median(r[key] for r in rounds))


def ratio(rounds: Sequence[Raw], ours: str, theirs: str) -> float:
    """Ours over theirs, medians of both."""
    return median(rounds, ours) / median(rounds, theirs)


def write(path: Path, figures: Iterable[Figure], about: Raw) -> None:
    """The report as JSON: a plain value a key, and the details of each. Keys of an earlier run that were not measured stay."""
    try:
        before = json.loads(path.read_text())
    except (OSError, ValueError):
        before = {}
    details = {**before.get("details", {}), **{f.key: {**f.as_json(), "about": dict(about)} for f in figures}}
    report = {**{key: d["value"] for key, d in details.items()}, "about": dict(about), "details": details}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(report, indent=1, sort_keys=True) + "\n")


def table(figures: Iterable[Figure]) -> str:
    """For people."""
    rows = [("figure", "value", "target", "", "compared with")]
    for f in figures:
        how, limit = f.target
        verdict = {None: "", True: "met", False: "MISSED"}[f.passed]
        rows.append((f.key, _short(f.value), f"{how} {_short(limit)}" if how else "", verdict, f.compared))
    widths = [max(len(r[i]) for r in rows) for i in range(4)]
    return "\n".join("  ".join([*(c.ljust(w) for c, w in zip(r, widths, strict=False)), r[4]]) for r in rows)


def page(path: Path) -> str:
    """A report that was written, as Markdown."""
    report = json.loads(path.read_text())
    about = report["about"]
    rows = [f"| `{key}` | {_short(d['value'])} | {_limit(d['target'])} | {_VERDICTS[d['passed']]} | {d['compared']} |"
            for key, d in report["details"].items()]  # fmt: skip
    text = _PAGE.format(
        size=about["size_bytes"] >> 20,
        processors=about["processors"],
        kernel=about["kernel"],
        huge_pages=about["huge_pages"],
        rows="\n".join(rows),
    )
    missed = [key for key, d in report["details"].items() if d["passed"] is False]
    why = "\n".join(f"- `{key}`: {BOTTLENECKS.get(plain(key), 'not known yet.')}" for key in missed)
    return text + (f"\nMissed, and why:\n\n{why}\n" if missed else "")


def _limit(target: str | None) -> str:
    how, _, value = (target or "").partition(" ")
    return f"{how} {_short(float(value))}" if value else ""


_VERDICTS = {None: "", True: "met", False: "**missed**"}
_PAGE = """\
# The checkpoint engine beside plain CRIU, restic and borg

Made by `make bench-checkpoint PAGE=docs/checkpoint.md`, which also writes `build/bench/checkpoint.json` with the seconds
and bytes behind each figure. Both sides of a ratio were measured in turn in the same run: {processors} processors,
kernel {kernel}, a job of {size} MB where nothing else is said. Times and their ratios are medians of three rounds, but
for moves, `steady_overhead`, the memory of a final save and files of more than 2048 MB, which were measured once each, as was
what is counted; the memory of a first live save is the largest of three. Memory is what is needed on top of what the agent
holds at rest.

Transparent huge pages were set to `{huge_pages}`, as this machine has them. Keys that end in `_thp_` and another setting were
measured with that one: Debian and Red Hat have `always`, Ubuntu and Amazon Linux 2023 have `madvise`. With `madvise` CRIU's
restore takes more than twice as long as with `always`, and a freeze of ours up to twice as long.

Where the machine gives free memory back to its host, that is switched off for the run (`bench/machine.py: kept_memory`): the
first touch of such memory is ten times as slow and hits one side or the other at random.

| figure | value | target | | compared |
|---|---|---|---|---|
{rows}
"""


def _short(value: float | None) -> str:
    if value is None:
        return "-"
    if abs(value) >= 1e6:
        return f"{value / 1e6:,.0f} MB"
    return f"{value:.4g}"
