"""What people read instead of the controller's words."""

from __future__ import annotations

import pytest
from cli.conftest import Call
from support.fake_service import FakeService

from spotsurfer.cli import printing
from spotsurfer.common import plain_words
from spotsurfer.core.facts.attempt_view import PHASES
from spotsurfer.model.job import AttemptState


def test_no_word_is_left_out() -> None:
    assert set(plain_words.PHASES) == set(PHASES)
    assert set(plain_words.STATES) <= set(PHASES)
    assert set(plain_words.MACHINES) == set(AttemptState)


def test_columns_are_explained(job: str, call: Call) -> None:
    told, header = call("list", "--help").out, call("list").out.splitlines()[0]
    assert "UNSAVED     work since the newest checkpoint" in told
    for name in printing.COLUMNS:
        assert name.upper() in header


def test_phases_are_explained_where_they_are_read(job: str, controller: FakeService, call: Call) -> None:
    told = call("list", "--help").out
    assert all(f"  {name}" in told and meaning in told for name, meaning in printing.PHASES.items())
    assert "phase       running: its command runs\n" in call("show", job).out
    shown = call("list").out
    assert "UNSAVED" in shown and "AT RISK" not in shown


def test_what_is_asked_for_is_counted_as_people_do(controller: FakeService, call: Call) -> None:
    call("submit", "--name", "one", "--cpu", "1", "--", "prog")
    call("submit", "--name", "two", "--cpu", "2", "--", "prog")
    assert "asked for   1 processor, " in call("show", "one").out
    assert "asked for   2 processors, " in call("show", "two").out


@pytest.mark.parametrize("command", ["submit", "store check", "cancel", "backtest size", "policies train", "report"])
def test_help_speaks_no_python(call: Call, command: str) -> None:
    told = call(*command.split(), "--help").out
    assert not any(word in told for word in ("list[", "<str", "<int", "Raises", "[[")), told
    assert "-q, --quiet" in told
