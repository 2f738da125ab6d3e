"""What a controller saw of spot markets, as a back-test's market."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import numpy as np
import pytest
from spotsurfer_lab.markets import UNKNOWN, past_of, records_of_own

from spotsurfer.model.errors import InputMissing

NOW = datetime(2026, 3, 1, tzinfo=UTC)


def sign(pool: str, hours_ago: float, up: bool | None) -> dict[str, object]:
    return {"pool": pool, "at": (NOW - timedelta(hours=hours_ago)).isoformat(), "up": up}


def test_what_was_so_last_is_so_until_now() -> None:
    found = records_of_own([sign("a", 3, True), sign("a", 2, False)], 3600.0, NOW)
    assert found["a"].tolist() == [1, 0, 0, 0]


def test_what_was_so_before_the_period_holds_at_its_begin() -> None:
    rows = [sign("a", 72, False), sign("a", 12, True), sign("b", 100, True), sign("b", 30, None)]
    found = records_of_own(rows, 3600.0, NOW, days=1)
    assert len(found["a"]) == 25
    assert found["a"].tolist() == [0] * 12 + [1] * 13
    assert set(found["b"].tolist()) == {-1}


@pytest.mark.parametrize(
    ("unknown", "up"), [("last", [1, 1, 1, 1, 0, 0]), ("free", [1, 1, 1, 1, 0, 1]), ("none", [0, 0, 1, 0, 0, 0])]
)
def test_where_nobody_knew_a_choice_is_made(unknown: str, up: list[int]) -> None:
    past = past_of({"a": np.array([-1, -1, 1, -1, 0, -1], np.int8)}, 600.0, unknown)
    assert past.trace.up[:, 0].tolist() == [bool(x) for x in up]
    assert past.known.tolist() == [pytest.approx(2 / 6)]


def test_pools_that_hardly_anything_is_known_of_are_left_out() -> None:
    hardly = np.full(100, -1, np.int8)
    hardly[:4] = 1
    known = np.ones(100, np.int8)
    past = past_of({"hardly": hardly, "known": known}, 600.0)
    assert (past.trace.pools, past.left_out) == (("known",), ("hardly",))
    with pytest.raises(InputMissing, match="known for 5%"):
        past_of({"hardly": hardly}, 600.0)


def test_there_is_a_window_a_day() -> None:
    past = past_of({"a": np.ones(3 * 144, np.int8)}, 600.0)
    assert past.starts == [0, 144, 288]


def test_bounds_enclose_what_was_seen() -> None:
    seen = np.random.default_rng(0).integers(-1, 2, 500).astype(np.int8)
    low, middle, high = (past_of({"a": seen}, 600.0, u).trace.up for u in ("none", "last", "free"))
    assert (low <= middle).all()
    assert (middle <= high).all()
    assert set(UNKNOWN) == {"none", "last", "free"}
