"""The configuration read again by a controller that runs: what changes at once, what is named, what changes nothing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import pytest

from spotsurfer.config.settings import LimitsSection, Settings, load_settings
from spotsurfer.controller import wiring
from spotsurfer.controller.reload import Reloader
from spotsurfer.model.budgets import Per
from spotsurfer.model.errors import ConfigError
from spotsurfer.model.job import JobSpec
from spotsurfer.state import timeline

BEGIN = """
[limits]
instances_max = 4
budget_usd = 10
"""


class Running:
    def __init__(self, folder: Path) -> None:
        self.file, self.folder = folder / "c.toml", folder
        self.write(BEGIN)
        self.controller = wiring.build(self.load())
        self.service = self.controller.service
        self.controller.reloader.load = self.load

    def write(self, text: str) -> None:
        top, _, rest = text.partition("\n[")
        self.file.write_text(f'{top}\n[controller]\ndata_dir = "{self.folder}/data"\n\n[{rest}')

    def load(self) -> Settings:
        return load_settings(self.file)

    def reload(self, text: str) -> tuple[list[str], list[str]]:
        self.write(text)
        found = self.service.reload()
        return list(found.changed), list(found.restart)


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    found = Running(tmp_path)
    yield found
    found.controller.stop()


def test_nothing_changed(running: Running) -> None:
    assert running.reload(BEGIN) == ([], [])


def test_limits_count_from_the_next_look_on(running: Running) -> None:
    changed = BEGIN.replace("10", "25").replace("4", "7") + 'price_max_usd = "1.5"\nboot_limit_seconds = 900\n'
    wanted = [f"limits.{name}" for name in ("boot_limit_seconds", "budget_usd", "instances_max", "price_max_usd")]
    assert running.reload(changed) == (wanted, [])
    info = running.service.info()
    assert (info.budget_usd_micros, info.instances_max, info.price_max_usd_micros) == (25_000_000, 7, 1_500_000)
    running.controller.loop.tick()
    seen = running.controller.loop.last_seen
    assert seen is not None
    assert (seen.limits.boot_limit_seconds, seen.limits.budget_usd_micros) == (900, 25_000_000)
    assert seen.limits.gpus_shared == frozenset({"local"}), "what clouds say stays"
    assert running.service.submission.limits.price_max_usd_micros == 1_500_000
    assert running.reload(changed) == ([], []), "it is known by now"


def test_each_limit_is_taken_up_or_needs_a_restart(running: Running) -> None:
    """A new one can't be forgotten: what is no limit of decisions is named here."""
    known = {f.name.removesuffix("_micros") for f in fields(running.service.limits)}
    assert set(LimitsSection.model_fields) - known == {"cooldown_seconds"}


def test_a_lease_needs_a_restart_and_is_named_each_time(running: Running) -> None:
    changed = BEGIN + 'lease_seconds = 90\n\n[store]\nregion = "eu"\n\n[provider]\nname = "aws"\n'
    needs = ["limits.lease_seconds", "provider.name", "store.region"]
    for text, also in ((changed, []), (changed.replace("10", "11"), ["limits.budget_usd"]), (changed.replace("10", "11"), [])):
        assert running.reload(text) == (also, needs)
    assert running.service.observer.limits.lease_seconds == 60
    assert running.reload(BEGIN.replace("10", "11")) == ([], [])


def test_licences(running: Running) -> None:
    assert running.reload(BEGIN + "\n[licences]\nvcs = 4\n") == (["licences"], [])
    assert [(p.kind, p.total) for p in running.service.licences()] == [("vcs", 4)]
    running.service.submission.check_licences(JobSpec("a", ("x",), licences={"vcs": 4}))
    running.controller.loop.tick()
    seen = running.controller.loop.last_seen
    assert seen is not None
    assert seen.licences["vcs"].total == 4
    assert running.reload(BEGIN) == (["licences"], [])
    assert running.service.figures().licences == {}


def test_budgets_and_prices(running: Running) -> None:
    text = BEGIN + '\n[costs]\ncontroller_usd_per_hour = "3600"\n\n[[budgets]]\nscope = "owner:ada"\nusd = 5\nper = "week"\n'
    assert running.reload(text) == (["budgets", "costs.controller_usd_per_hour"], [])
    (one,) = running.service.budgets()
    assert (one.scope, one.usd_micros, one.per, one.configured) == ("owner:ada", 5_000_000, Per.WEEK, True)
    running.controller.loop.tick()
    spent = running.service.info().spent_usd_micros
    running.controller.loop.tick()
    assert running.service.info().spent_usd_micros > spent, "this host costs from now on"
    with running.service.engine.connect() as c:
        moments = [m for _, m in timeline.read(c, None, 0)]
    assert [m.text for m in moments if m.kind == "controller"] == [
        "the configuration was read again; changed: budgets, costs.controller_usd_per_hour"
    ]
    assert running.reload(BEGIN) == (["budgets", "costs.controller_usd_per_hour"], [])
    assert running.service.budgets() == []


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ("instances_max = 4", "c.toml line 6: .limits. instances_max is 'many'"),
        ("instances_max", "c.toml line 6: .limits. instances_maxx is an unknown key"),
        ("\n[limits]", "not valid TOML"),
    ],
)
def test_a_bad_file_changes_nothing(running: Running, wrong: str, why: str) -> None:
    mistakes = {"instances_max = 4": 'instances_max = "many"', "instances_max": "instances_maxx", "\n[limits]": "\n[limits"}
    with pytest.raises(ConfigError, match=why):
        running.reload(BEGIN.replace("10", "25").replace(wrong, mistakes[wrong]))
    assert running.service.info().budget_usd_micros == 10_000_000
    assert running.reload(BEGIN.replace("10", "25")) == (["limits.budget_usd"], [])


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('scope = "ada"\nusd = 1', "scope is 'ada', expected all, owner:NAME"),
        ('scope = "all"\nusd = 0', "usd is 0"),
        ('scope = "all"\nusd = 1\nper = "year"', "per is 'year'"),
        ('scope = "all"\nusd = 1\nwarn_at = [101]', "101"),
        ('scope = "all"\nusd = 1\nscoop = 1', "unknown key. Did you mean 'scope'"),
        ('scope = "all"\nusd = 1\n[[budgets]]\nscope = "all"\nusd = 2', "name all per total twice"),
    ],
)
def test_a_budget_that_makes_no_sense_is_named_with_its_line(tmp_path: Path, text: str, why: str) -> None:
    file = tmp_path / "c.toml"
    file.write_text(f"[[budgets]]\n{text}\n")
    with pytest.raises(ConfigError, match=rf"c\.toml line \d.*{why}"):
        load_settings(file)


def test_the_line_is_that_of_the_budget_that_is_wrong(tmp_path: Path) -> None:
    file = tmp_path / "c.toml"
    good = '[[budgets]]\nscope = "all"\nusd = 1\nper = "day"\n'
    file.write_text(f'{good}\n[limits]\n\n{good.replace("day", "week")}\n[[budgets]]\nscope = "all"\nusd = "much"\n')
    with pytest.raises(ConfigError, match=r"c\.toml line 15: \[budgets\] usd is 'much'"):
        load_settings(file)


def test_nothing_is_used_before_all_of_it_could_be_made() -> None:
    """If one part can't take the new settings up, the others keep the old ones, too."""
    used, new = list[str](), Settings(limits={"instances_max": 3}, hooks={"on_end": ["x"]})  # type: ignore[arg-type]

    def fails(_: Settings) -> None:
        raise ConfigError("no")

    reloader = Reloader(Settings())
    reloader.load = lambda: new
    reloader.on({"limits.instances_max"}, lambda _: lambda: used.append("limits"))
    reloader.on({"hooks.on_end"}, fails)  # type: ignore[arg-type]
    with pytest.raises(ConfigError):
        reloader.reload()
    assert used == []
