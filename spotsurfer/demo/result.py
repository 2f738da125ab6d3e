"""Figures of the demonstration, from the timeline, the cost report and the head log."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from spotsurfer_agent.headlog import HeadLog
from spotsurfer_agent.protocol import Head, HeadKind
from spotsurfer_agent.store import open_store

from spotsurfer.demo.plain import Undisturbed
from spotsurfer.demo.scene import INTERVAL_SECONDS
from spotsurfer.demo.story import Story
from spotsurfer.model.money import for_seconds

Json = dict[str, Any]


def figures(story: Story, costs: Sequence[Json], plain: Undisturbed, md5: str, store: Path) -> Json:
    """`result.json`. Money in USD, times in seconds.

    `work_lost_seconds`: by attempt, CPU time that the job used there and that no committed checkpoint or end contains; the
    program has one thread, so this is time of work. `usd_on_demand`: one on-demand machine of the same type for as long as the
    undisturbed run took.
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
    """Work of the attempt that its successor had to do again, in seconds of its one thread."""
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
    """What the demonstration promised and did not show."""
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
