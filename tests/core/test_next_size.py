"""Memory of the next run by hand: kinds of jobs, a few runs, a line through the sizes of inputs, outliers, killed runs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from support.builders import a_job

from spotsurfer.core.scheduling.next_size import (
    BEYOND,
    KILLED,
    LATEST,
    MARGIN,
    ROOM_BYTES,
    JobKind,
    Ran,
    input_bytes_of,
    kind_of,
    likely_bytes,
    next_bytes,
)

GIB = float(1 << 30)


@pytest.mark.parametrize(
    ("spec", "text"),
    [
        ({"name": "align-12"}, "align"),
        ({"name": "align.3"}, "align"),
        ({"name": "megahit-k21"}, "megahit-k21"),
        ({"name": "2024"}, "2024"),
        ({"name": "sample-7", "tags": {"rule": "align"}}, "rule align"),
        ({"name": "align-1", "tags": {"rule": ""}}, "align"),
    ],
)
def test_a_kind_is_the_rule_or_the_name_without_its_number(spec: dict[str, Any], text: str) -> None:
    job = a_job()
    assert kind_of(replace(job, spec=replace(job.spec, project="p", **spec))) == JobKind("", "p", text)


@pytest.mark.parametrize(("told", "size"), [("1200", 1200.0), ("", 0.0), ("many", 0.0), ("-3", 0.0), ("٣", 0.0)])
def test_inputs_are_as_large_as_the_tag_says(told: str, size: float) -> None:
    assert input_bytes_of(a_job({"tags": {"input_bytes": told}})) == size


def test_the_highest_of_the_latest_counts_and_a_margin() -> None:
    assert next_bytes([]) is None
    runs = [Ran(99 * GIB), *(Ran(x * GIB) for x in (1, 3, 2)), *[Ran(GIB)] * (LATEST - 3)]
    assert next_bytes(runs) == MARGIN * 3 * GIB + ROOM_BYTES


def test_a_run_that_was_killed_needed_more_than_it_had() -> None:
    assert likely_bytes([Ran(4 * GIB, killed=True), Ran(5 * GIB)]) == KILLED * 4 * GIB


def line(*sizes: float, per: float = 3.0) -> list[Ran]:
    return [Ran(per * x * GIB, x * GIB) for x in sizes]


@pytest.mark.parametrize("size", [0.5, 3.0, 8.0])
def test_memory_grows_with_the_inputs(size: float) -> None:
    assert likely_bytes(line(1, 2, 4, 4, 5), size * GIB) == pytest.approx(3 * size * GIB)


def test_an_outlier_hardly_turns_the_line() -> None:
    runs = [*line(1, 1.5, 2, 2.5, 3, 3.5, 4, 4.5, 5, 5.5), Ran(200 * GIB, 1.2 * GIB), Ran(0.01 * GIB, 5 * GIB)]
    one, two = likely_bytes(runs, 2 * GIB), likely_bytes(runs, 4 * GIB)
    assert two / one == pytest.approx(2.0, rel=0.1)


@pytest.mark.parametrize(
    "runs",
    [line(1, 2, 4), line(2, 2.1, 2.2, 2.3, 2.4), [Ran(12 * GIB)] * 5, [Ran(12 * GIB, 2 * GIB)] * 5],
    ids=["few", "too little apart", "unknown", "all alike"],
)
def test_without_a_line_the_highest_counts(runs: list[Ran]) -> None:
    assert likely_bytes(runs, 100 * GIB) == max(r.peak_bytes for r in runs)


def test_the_line_is_not_followed_far_beyond_what_is_known_and_never_falls() -> None:
    assert likely_bytes(line(1, 2, 4, 8), 1000 * GIB) == pytest.approx(3 * 8 * BEYOND * GIB)
    falling = [Ran(8 / x * GIB, x * GIB) for x in (1.0, 2.0, 4.0, 8.0)]
    assert likely_bytes(falling, 64 * GIB) > GIB


def test_an_unknown_size_gets_the_highest() -> None:
    assert likely_bytes(line(1, 2, 4, 8)) == 24 * GIB
