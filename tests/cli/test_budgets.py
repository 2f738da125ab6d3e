"""`spotsurfer budget` and `spotsurfer reload` against the real API over a Unix socket."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from cli.conftest import Call
from support.fake_service import FakeService

from spotsurfer.model.budgets import Per
from spotsurfer.model.errors import ConfigError, NotFound
from spotsurfer.model.job import JobId
from spotsurfer.ports.service import Reloaded


def test_a_jobs_own_budget_needs_no_other_word(job: str, controller: FakeService, call: Call) -> None:
    for words in ((job, "25"), ("job", "asm", "25"), ("asm", "25.00")):
        assert call("budget", *words).out == f"{job} may cost 25.0000 USD in all from now on.\n"
    assert controller.statuses[job].job.spec.budget_usd_micros == 25_000_000
    assert json.loads(call("budget", job, "none", "--json").out) == {"job": job, "budget_usd_micros": None}
    wrong = call("budget", job, "-5")
    assert (wrong.code, "The budget is '-5'" in wrong.err) == (2, True)


def test_one_is_set_listed_and_removed(controller: FakeService, call: Call) -> None:
    assert "`spotsurfer budget set SCOPE USD` makes one" in call("budget", "list").out
    made = call("budget", "set", "tag:run=7 b", "200", "--per", "month", "--warn-at", "50, 80%")
    assert (made.code, made.out) == (0, "All of tag:run=7 b may cost 200.0000 USD per month from now on.\n")
    call("budget", "set", "all", "1000", "--warn-at", "none")
    assert controller.group_budgets["all", Per.TOTAL].warn_at == []
    assert controller.group_budgets["all", Per.TOTAL].set_by, "whoever did it is told"
    kept = controller.group_budgets["tag:run=7 b", Per.MONTH]
    assert (list(kept.warn_at), kept.usd_micros) == ([50, 80], 200_000_000)
    ends, held = datetime(2026, 4, 1, tzinfo=UTC), [JobId("a"), JobId("b")]
    controller.group_budgets["tag:run=7 b", Per.MONTH] = replace(kept, used_up=True, ends=ends, held=held)
    head, row, other = call("budget", "list").out.splitlines()
    assert head.split() == ["SCOPE", "PER", "BUDGET", "SPENT", "SHARE", "WARNS", "AT", "UNTIL", "HOLDS"]
    assert re.split("  +", row) == [
        *("tag:run=7 b", "month", "200.0000", "100.0000", "50 %", "50, 80", "2026-04-01 00:00:00 UTC", "2 jobs")
    ]
    assert other.split()[0] == "all"
    found = json.loads(call("budget", "list", "--json").out)["budgets"]
    assert [(b["scope"], b["per"], b["held"]) for b in found] == [("tag:run=7 b", "month", ["a", "b"]), ("all", "total", [])]
    assert call("budget", "remove", "tag:run=7 b", "--per", "month").code == 0
    assert call("budget", "remove", "tag:run=7 b").code == NotFound.exit_code
    assert list(controller.group_budgets) == [("all", Per.TOTAL)]


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["set", "all", "much"], "The budget is 'much'"),
        (["set", "all", "1", "--warn-at", "half"], "--warn-at is 'half', expected percent like 50,80"),
        (["set", "all", "1", "--per", "year"], "year"),
        (["set", "all"], "USD"),
        (["asm"], "USD"),
    ],
)
def test_mistakes(call: Call, words: list[str], why: str) -> None:
    result = call("budget", *words)
    assert result.code == 2
    assert why in result.err


def test_a_reload_says_what_changed_and_what_needs_a_restart(controller: FakeService, call: Call) -> None:
    assert call("reload").out == "Changed: limits.budget_usd.\nChanges with the next start of the controller: store.url.\n"
    assert json.loads(call("reload", "--json").out) == {"changed": ["limits.budget_usd"], "restart": ["store.url"]}
    controller.reloaded = Reloaded([], [])
    assert call("reload").out == "Nothing changed.\n"


def test_a_wrong_file_is_told_with_its_line(controller: FakeService, call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails() -> Reloaded:
        raise ConfigError("/etc/c.toml line 3: [limits] budget_usd is 'much'.")

    monkeypatch.setattr(controller, "reload", fails)
    result = call("reload")
    assert (result.code, result.err) == (
        ConfigError.exit_code,
        "/etc/c.toml line 3: [limits] budget_usd is 'much'. See docs/reference/configuration.md.\n",
    )
