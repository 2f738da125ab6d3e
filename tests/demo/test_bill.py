"""The bill of boxes that really lived: a CUR 2.0 of what their host saw, beside the ledger of the controller."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from spotsurfer_providers.local import manual_control
from support.cloud_bills import cur, cur_row, write_cur
from support.fleet import Fleet, fleet

from spotsurfer.model.charges import ChargeKind, ChargeLine
from spotsurfer.model.errors import BillDiffers
from spotsurfer.model.job import JobId
from spotsurfer.model.market import Market

pytestmark = [pytest.mark.real, pytest.mark.slow]
MINIMUM_SECONDS = 60.0
HOUR = timedelta(hours=1)
LINES, PAUSE = 1800, 0.05  # a minute and a half of work


def lived(boxes: Sequence[dict[str, Any]], prices: dict[str, int]) -> list[dict[str, Any]]:
    """What a cloud would bill for these boxes, by their own records."""
    lines = []
    for box in boxes:
        begins, ends = (datetime.fromisoformat(box[name]) for name in ("launched_at", "ended_at"))
        seconds = max((ends - begins).total_seconds(), MINIMUM_SECONDS)
        job, attempt = JobId(box["tags"]["spotsurfer:job"]), int(box["tags"]["spotsurfer:attempt"])
        micros = round(prices[box["id"]] * seconds / 3600)
        where = {"zone": box["zone"], "instance_type": box["instance_type"], "market": Market(box["market"])}
        lines.append(
            ChargeLine(
                *(ChargeKind.MACHINE, begins, ends, seconds, micros, micros, job, job, attempt, "local"),
                resource=box["id"],
                **where,
            )
        )
    return cur(lines)


def reconciled(world: Fleet, path: Path, rows: Sequence[dict[str, Any]]) -> tuple[int, dict[str, Any]]:
    write_cur(path, rows)
    words = [sys.executable, "-m", "spotsurfer", "--config", str(world.config), "report", "--reconcile", str(path), "--json"]
    done = subprocess.run(words, capture_output=True, text=True)
    return done.returncode, json.loads(done.stdout)


def test_the_bill_of_what_boxes_lived_and_two_planted_differences(tmp_path: Path) -> None:
    with fleet(tmp_path / "world") as world:
        job = world.submit(LINES, PAUSE)
        world.wait_line(job, LINES * 4 // 5, 180)
        manual_control.reclaim(world.data, world.box(job, 1), 20)
        world.wait_end(job, 180)
        seen = {box["id"]: box for box in manual_control.list_boxes(world.data) if box.get("ended_at")}
        attempts = [a for a in world.show(job)["attempts"] if a["instance"]]
        prices = {a["instance"]: a["price_usd_micros_per_hour"] for a in attempts}
        assert set(seen) == set(prices)
        rows = lived(list(seen.values()), prices)
        end = max(datetime.fromisoformat(box["ended_at"]) for box in seen.values())
        month = end.astimezone(UTC).replace(day=1, hour=0, minute=0, second=0, microsecond=0)
        period = {
            "bill_invoice_id": "1",
            "bill_billing_period_start_date": f"{month:%Y-%m-%dT%H:%M:%SZ}",
            "bill_billing_period_end_date": f"{(month + timedelta(days=32)).replace(day=1):%Y-%m-%dT%H:%M:%SZ}",
        }
        rows = [{**row, **period} for row in rows]
        code, found = reconciled(world, tmp_path / "bill.csv", rows)
        assert (code, found["differences"], found["machines"]) == (0, [], len(seen))
        usage = {**period, "line_item_usage_type": "SpotUsage:m6i.large", "line_item_usage_amount": "1", "pricing_unit": "Hrs"}
        last = attempts[-1]["instance"]
        tags = json.dumps({"user_spotsurfer_job": job, "user_spotsurfer_attempt": "9"})
        hour = end.replace(minute=0, second=0, microsecond=0)
        planted = [
            cur_row("Usage", hour, hour + HOUR, 0.03, line_item_resource_id="box-forgotten", resource_tags=tags, **usage),
            cur_row("Usage", hour, hour + HOUR, prices[last] / 1e6, line_item_resource_id=last, **usage),
        ]
        code, found = reconciled(world, tmp_path / "planted.csv", [*rows, *planted])
        told = {d["resource"]: d["cause"] for d in found["differences"]}
        assert (code, told) == (BillDiffers.exit_code, {"box-forgotten": "unknown machine", last: "other hours"})
