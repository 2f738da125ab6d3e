"""What keeps a controller from starting: each one sentence with its exit code, nothing half-made."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from support.builders import JOB, a_job, an_attempt

from spotsurfer.config.settings import Settings
from spotsurfer.controller import wiring
from spotsurfer.model import errors as e
from spotsurfer.model.charges import ChargeKind
from spotsurfer.model.job import AttemptState as A
from spotsurfer.model.market import Pool
from spotsurfer.state import exposed_ports
from spotsurfer.state import jobs as rows
from spotsurfer.state.db import open_database


@pytest.fixture
def built() -> Iterator[list[wiring.Controller]]:
    made: list[wiring.Controller] = []
    yield made
    for controller in made:
        controller.stop()


def settings(tmp_path: Path, **sections: Any) -> Settings:
    controller = {"data_dir": str(tmp_path / "data"), **sections.pop("controller", {})}
    return Settings(controller=controller, **sections)  # type: ignore[arg-type]


def test_it_starts_ticks_and_stops(tmp_path: Path, built: list[wiring.Controller]) -> None:
    controller = wiring.build(settings(tmp_path))
    built.append(controller)
    assert controller.loop.tick().actions == ()
    info = controller.service.info()
    assert (info.generation, info.provider, info.instances) == (1, "local", 0)


def test_it_tells_its_operators_limits_and_how_much_of_them_is_in_use(tmp_path: Path, built: list[wiring.Controller]) -> None:
    limits = {"gpus_max": 16, "hourly_max_usd": "10", "price_max_usd": "2.50", "instance_types": ["m6i.*"]}
    times = {"ageing_seconds": 60, "stay_seconds": 30}
    controller = wiring.build(settings(tmp_path, limits={**limits, **times}, front={"ports": "20500-20509"}))
    built.append(controller)
    with open_database(tmp_path / "data" / "state.db").begin() as c:
        rows.add_job(c, a_job())
        for attempt in (an_attempt(1, A.RELEASED), an_attempt(2, A.RELEASING), an_attempt(3, gpus=4)):
            rows.add_attempt(c, attempt)
        exposed_ports.give(c, JOB, "web", 20500)
    info = controller.service.info()
    assert (info.instances, info.instances_max) == (2, 20)
    assert (info.gpus, info.gpus_max) == (4, 16)
    assert (info.hourly_usd_micros, info.hourly_max_usd_micros) == (60_000, 10_000_000)
    assert (info.price_max_usd_micros, list(info.instance_types), info.budget_usd_micros) == (2_500_000, ["m6i.*"], None)
    assert (info.ageing_seconds, info.stay_seconds) == (60, 30)
    assert (info.front_address, info.front_ports, info.front_ports_max) == ("127.0.0.1", 1, 10)


def test_the_bill_stands_on_the_settings(tmp_path: Path, built: list[wiring.Controller]) -> None:
    """The controller's host costs since the first start that knew its price; own prices hold for boxes, too."""
    price = {"provider": "local", "type": "*.large", "from": "2026-01-01", "usd": "0.09"}
    image = {"name": "snap", "provider": "local", "gib": 73, "from": "2026-01-01", "until": "2026-01-02"}
    of_image = {"kind": "image", "provider": "local", "usd": "0.05"}
    costs = {"controller_usd_per_hour": "3600", "overrides": [price, of_image], "images": [image]}
    first = wiring.build(settings(tmp_path, costs=costs))
    at = datetime(2026, 1, 1, 12, tzinfo=UTC)
    box = an_attempt(
        1, A.RELEASED, pool=Pool("local", "r", "a", "m6i.large"), launched_at=at, released_at=at + timedelta(hours=1)
    )
    with open_database(tmp_path / "data" / "state.db").begin() as c:
        rows.add_job(c, a_job())
        rows.add_attempt(c, box)
    began = {x.kind: x for x in first.service.charges(None)}
    assert (began[ChargeKind.MACHINE].usd_micros, began[ChargeKind.IMAGE].usd_micros) == (90_000, 73 * 24 * 50_000 // 730)
    first.stop()
    second = wiring.build(settings(tmp_path, costs=costs))
    built.append(second)
    everything = second.service.charges(None)
    assert next(x for x in everything if x.kind is ChargeKind.CONTROLLER).begins == began[ChargeKind.CONTROLLER].begins
    second.service.costs(None)
    assert second.service.info().spent_usd_micros >= sum(x.usd_micros for x in everything)
    assert [x.kind for x in second.service.charges(JOB)] == [ChargeKind.MACHINE]
    assert [x.usd_micros for x in second.service.costs(JOB)] == [90_000]
    assert second.service.charges(JOB, until=at.replace(hour=0)) == []


def test_each_start_is_a_generation_and_ends_the_right_of_the_one_before(
    tmp_path: Path, built: list[wiring.Controller]
) -> None:
    first = wiring.build(settings(tmp_path))
    first.stop()
    second = wiring.build(settings(tmp_path))
    built.append(second)
    assert second.service.info().generation == 2
    with pytest.raises(e.Superseded):
        first.loop.tick()


def test_two_on_one_folder(tmp_path: Path, built: list[wiring.Controller]) -> None:
    built.append(wiring.build(settings(tmp_path)))
    with pytest.raises(e.ControllerRunning, match=r"controller\.data_dir"):
        wiring.build(settings(tmp_path))


def test_a_store_of_another_family(tmp_path: Path) -> None:
    store = tmp_path / "store"
    store.mkdir()
    (store / "spotsurfer.json").write_text(json.dumps({"protocol": 1, "family": "somebody", "format": 1}))
    with pytest.raises(e.StoreOwned, match="somebody"):
        wiring.build(settings(tmp_path, store={"url": store.as_uri()}))


def test_a_store_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(e.StoreUnwritable, match=r"store\.url"):
        wiring.build(settings(tmp_path, store={"url": (tmp_path / "file" / "store").as_uri()}))


def test_a_store_option_that_no_store_has(tmp_path: Path) -> None:
    with pytest.raises(e.ConfigError, match="store"):
        wiring.build(settings(tmp_path, store={"url": "s3://bucket/x", "options": {"colour": "blue"}}))


def test_a_runtime_that_can_not_be_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("SPOTSURFER_RUNTIME__PATH", str(tmp_path / "file" / "runtime"))
    with pytest.raises(e.HostUnfit, match=r"set \[runtime\] path"):
        wiring.build(settings(tmp_path))


def test_a_wrong_policy_setting(tmp_path: Path) -> None:
    with pytest.raises(e.ConfigError, match="margin"):
        wiring.build(settings(tmp_path, policy={"name": "cheapest", "cheapest": {"margin": "much"}}))


def test_after_a_failed_start_another_may_start(
    tmp_path: Path, built: list[wiring.Controller], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    with monkeypatch.context() as elsewhere, pytest.raises(e.HostUnfit):
        elsewhere.setenv("SPOTSURFER_RUNTIME__PATH", str(tmp_path / "file" / "runtime"))
        wiring.build(settings(tmp_path))
    built.append(wiring.build(settings(tmp_path)))
