"""`report`: the bill by machine and by group, for people, programs and spreadsheets."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from cli.conftest import Call
from support.fake_service import START, FakeService, an_attempt

from spotsurfer.cli.commands.report import repeated_seconds
from spotsurfer.model.job import AttemptState


def test_report(job: str, controller: FakeService, call: Call) -> None:
    old = an_attempt(controller.statuses[job].job.id, 1, AttemptState.RELEASED)
    new = an_attempt(controller.statuses[job].job.id, 2)
    controller.statuses[job] = replace(controller.statuses[job], attempts=[controller.status(old), controller.status(new)])
    text = call("report").out
    for part in (
        "0.0300",
        "0.0960",
        "0.0660",
        "69 %",
        "work repeated",
        "42s",
        "2026-03-01",
        "storage, requests, other traffic",
    ):
        assert part in text
    bill = json.loads(call("report", job, "--json").out)
    assert bill["usd_micros"] == 30_000
    assert bill["usd_micros_saved"] == 66_000
    assert bill["repeated_seconds"] == 42.0
    assert bill["frozen_seconds"] == 1.5
    assert bill["not_counted"] == ["storage", "requests", "other traffic"]
    assert len(bill["attempts"]) == 1


def test_a_step_that_begins_again_elsewhere_is_work_repeated() -> None:
    first = {"granted_at": "x", "agent_state": "drained", "from_checkpoint": None, "unsaved_seconds": 30.0}
    second = {**first, "unsaved_seconds": 5.0}
    job = {"spec": {"engine": "auto"}, "attempts": [first, second]}
    assert repeated_seconds(job) == 30.0
    assert repeated_seconds({**job, "attempts": [first, {**second, "from_checkpoint": "000001-000001"}]}) == 0.0
    assert repeated_seconds({**job, "attempts": [{**first, "agent_state": "finished"}, second]}) == 0.0, "a retry"


@pytest.fixture
def three(controller: FakeService, call: Call) -> list[str]:
    """Of ann, of bob, of nobody; the last one had its machine ten days later."""
    made = [
        call("submit", "-q", "--name", name, *more, "--", "prog").out.strip()
        for name, more in (
            ("asm", ["--user", "ann", "--tag", "lab=a;b"]),
            ("asm", ["--user", "bob", "--tag", "lab=c"]),
            ("x", []),
        )
    ]
    controller.launched[made[2]] = START + timedelta(days=10)
    return made


def test_lines_say_when_whose_and_for_what(three: list[str], call: Call) -> None:
    lines = json.loads(call("report", "--json").out)["attempts"]
    assert [line["user"] for line in lines] == ["ann", "bob", None]
    assert lines[0]["tags"] == {"lab": "a;b"}
    assert (lines[0]["began_at"], lines[0]["ended_at"], lines[0]["name"]) == ("2026-03-01T12:00:00Z", None, "asm")


@pytest.mark.parametrize(
    ("by", "groups"),
    [("user", {"ann": 1, "bob": 1, "-": 1}), ("name", {"asm": 2, "x": 1}), ("tag:lab", {"a;b": 1, "c": 1, "-": 1})],
)
def test_groups(three: list[str], call: Call, by: str, groups: dict[str, int]) -> None:
    told = json.loads(call("report", "--by", by, "--json").out)["groups"]
    assert {g["group"]: g["machines"] for g in told} == groups
    assert sum(g["usd_micros"] for g in told) == 90_000
    rows = [line.split()[:2] for line in call("report", "--by", by).out.splitlines()]
    assert all([name, str(count)] in rows for name, count in groups.items())


@pytest.mark.parametrize("by", ["", "tag:", "tags", "job"])
def test_a_group_that_there_is_not(three: list[str], call: Call, by: str) -> None:
    wrong = call("report", "--by", by)
    assert (wrong.code, "user, name or tag:NAME" in wrong.err) == (2, True)


def test_since_a_date(three: list[str], call: Call) -> None:
    bill = json.loads(call("report", "--since", "2026-03-02", "--json").out)
    assert [line["job"] for line in bill["attempts"]] == [three[2]]
    assert (bill["usd_micros"], bill["moves"]) == (30_000, 0)
    assert call("report", "--since", "1s").out == "Nothing was spent.\n"


def test_a_file_for_spreadsheets(three: list[str], call: Call, folder: Path) -> None:
    assert call("report", "--csv", "bill.csv").code == 0
    with (folder / "bill.csv").open(newline="") as opened:
        rows = list(csv.DictReader(opened))
    assert [(r["job"], r["user"], r["tags"], r["usd"], r["usd_saved"]) for r in rows] == [
        (three[0], "ann", "lab=a;b", "0.030000", "0.066000"),
        (three[1], "bob", "lab=c", "0.030000", "0.066000"),
        (three[2], "", "", "0.030000", "0.066000"),
    ]
    assert call("report", "--csv", "no/such/folder.csv").code == 2
