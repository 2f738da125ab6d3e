"""Seeds of the virtual world. Few here; `python -m simulation.many 2000` in tests/ runs as many as one likes."""

from __future__ import annotations

from collections import Counter

import pytest
from simulation.world import World

from spotsurfer.model.transitions import ATTEMPT

SEEDS = 12


@pytest.fixture(scope="module")
def runs() -> list[tuple[World, str]]:
    worlds = [World(seed) for seed in range(SEEDS)]
    return [(w, w.run()) for w in worlds]


def test_every_job_ends_and_every_machine_is_released(runs: list[tuple[World, str]]) -> None:
    assert [r for _, r in runs] == ["ok"] * SEEDS


def test_the_store_tells_one_story(runs: list[tuple[World, str]]) -> None:
    for world, _ in runs:
        world.check_end()


def test_controllers_really_crashed(runs: list[tuple[World, str]]) -> None:
    assert sum(w.crashes for w, _ in runs) > SEEDS


def test_every_edge_of_the_attempt_table_is_taken(runs: list[tuple[World, str]]) -> None:
    taken = Counter[str]()
    for world, _ in runs:
        world.check_end()
        taken += world.edges
    edges = {f"{state} -> {event}" for state, row in ATTEMPT.items() for event in row}
    assert edges - set(taken) == set()
