"""The page of `make test-vm`: a run replaces its own lines and no others."""

from __future__ import annotations

from dataclasses import replace

from support.patience import patient
from vm import page
from vm.page import Row, Run
from vm.trial import Group, Trial

ONE, TWO, THREE = (Trial(f"{x} | does", "true") for x in ("one", "two", "three"))
FIRST, SECOND = Group("first", "bookworm", (ONE, TWO)), Group("second", "trixie", (THREE,))


def lines(file) -> list[str]:
    return [x for x in file.read_text().splitlines() if x.startswith(("| ", "## ", "Guest")) and not x.startswith("| what")]


def test_lines_of_other_trials_and_groups_stay(tmp_path):
    file = tmp_path / "page.md"
    known = [FIRST, SECOND]
    page.write(file, Run(SECOND, "Guest B.", [Row(THREE, True, 3.2)]), known)
    page.write(file, Run(FIRST, "Guest A.", [Row(ONE, False, 1), Row(TWO, True, 2)]), known)
    page.write(file, Run(FIRST, "Guest C.", [Row(ONE, True, 4)]), known)
    second = ["## second", "Guest B.", "| three \\| does | as it should be | 3 |"]
    one, two = "| one \\| does | as it should be | 4 |", "| two \\| does | as it should be | 2 |"
    assert lines(file) == ["## first", "Guest C.", one, two, *second]
    less = replace(FIRST, trials=(TWO,))
    page.write(file, Run(less, "Guest C.", [Row(TWO, False, 5)]), [less, SECOND])
    assert lines(file) == ["## first", "Guest C.", "| two \\| does | **failed** | 5 |", *second]


def test_a_slow_host_gets_more_time_and_fewer_looks_and_the_same_of_all_else():
    config = "tick_seconds = 0.3\ncooldown_seconds = 2\nlease_seconds = 30\nnotice_seconds = 0.3\n# lease_seconds = 1\n"
    assert patient(config, 1) == config
    told = "tick_seconds = 3\ncooldown_seconds = 2\nlease_seconds = 300\nnotice_seconds = 3\n# lease_seconds = 1\n"
    assert patient(config, 10) == told
