"""Nothing is torn on a terminal of 80 columns, and nothing is wrapped into a pipe."""

from __future__ import annotations

from dataclasses import replace

import pytest
from cli.conftest import Call
from support.fake_service import FakeService, an_attempt

from spotsurfer.cli import printing
from spotsurfer.cli.commands import show

ID = "assembly-of-a-rather-long-genome-3f9a1c"
PROSE = "kept because no newer one is proven, and its user protected it"
BILL = (["job", "#", "machine", "market", "time", "usd", "list", "saved", "ended"], [ID, "1", "m6i.2xlarge", "on-demand"])


@pytest.fixture
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(printing, "width", lambda: 80)


@pytest.mark.parametrize(
    ("columns", "row"),
    [
        (["checkpoint", "when", "kept"], ["000001-000002", "2026-03-01 12:00", PROSE]),
        (["checkpoint", "when", "kind", "size", "new", "base", "proven", "kept"], ["000001-000002", *["123456"] * 6, PROSE]),
        (BILL[0], [*BILL[1], "1h00m", "0.0300", "0.0960", "0.0660", PROSE]),
        (BILL[0][:-1], [*BILL[1], "1h00m", "0.0300", "0.0960", "0.0660"]),
    ],
    ids=["wrapped", "below", "stacked", "without prose"],
)
def test_a_table_on_80_columns(narrow: None, capfd: pytest.CaptureFixture[str], columns: list[str], row: list[str]) -> None:
    printing.table(columns, [row, row])
    shown = capfd.readouterr().out
    assert max(map(len, shown.splitlines())) <= 80
    for name in columns:
        assert {name.upper(), f"{name}:"} & set(shown.split()), f"{name} is torn"
    for word in {word for cell in row for word in cell.split()}:
        assert word in shown.split(), f"{word} is torn"


def test_into_a_pipe_each_row_is_one_line(capfd: pytest.CaptureFixture[str]) -> None:
    printing.table(["job", "note"], [["a", "many words " * 100], ["b", "two\nlines"]])
    assert len(capfd.readouterr().out.splitlines()) == 3


@pytest.mark.usefixtures("narrow")
def test_commands_on_80_columns(controller: FakeService, call: Call) -> None:
    script = "set -e\nfor x in *.fq; do\n    bwa mem ref.fa $x\ndone\n" + "echo more\n" * 20
    assert call("submit", "--name", ID[:39].rstrip("-"), "--", "sh", "-c", script).code == 0
    (job,) = controller.statuses
    attempts = [controller.status(replace(an_attempt(controller.statuses[job].job.id), reason=PROSE))]
    controller.statuses[job] = replace(controller.statuses[job], attempts=attempts)
    controller.say(job, "saved", PROSE * 2)
    for words in (["list"], ["show", job], ["checkpoints", job], ["report"], ["why", job]):
        shown = call(*words).out
        assert max(map(len, shown.splitlines())) <= 80, shown
    shown = call("show", job).out
    assert "\n            for x in *.fq; do\n                bwa mem ref.fa $x\n" in shown, "a script stays in its column"
    assert "more lines: --json has all of it" in shown


def test_a_step_that_said_nothing_printed_nothing() -> None:
    """Beside what a job prints, its log holds when it did."""
    step = {
        "name": "setup",
        "exit_code": 0,
        "began": "2026-11-29T22:22:00Z",
        "ended": "2026-11-29T22:22:01Z",
        "cpu_seconds": 0.01,
    }
    log = {"log": {"times": 48, "out": 5}, "log_end": {"times": 72, "out": 5, "err": 0}}
    assert show._step({**step, **log})[-1] == "0 B"
    assert show._step({**step, **log, "log_end": {"times": 96, "out": 12, "err": 3}})[-1] == "10 B"
