"""Settings, offers, and the catalogue behind them."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from spotsurfer_providers.catalog import instance_types
from spotsurfer_providers.local import make

from spotsurfer.model.errors import ConfigError
from spotsurfer.model.market import Market
from spotsurfer.ports.clock import ManualClock
from spotsurfer.ports.provider import ProviderHost

START = datetime(2026, 1, 1, tzinfo=UTC)


def host(path: Path, url: str = "") -> ProviderHost:
    return ProviderHost("test", path, url or f"file://{path}/store", ManualClock(START))


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"disk": 1}, "unknown key 'disk'"),
        ({"disk_bytes": "20 GiB"}, "disk_bytes is '20 GiB'; it must be a whole number"),
        ({"disk_bytes": 1}, "disk_bytes must be at least"),
        ({"disk_kind": "ntfs"}, "disk_kind must be one of btrfs, ext4, xfs"),
        ({"notice_seconds": -1}, "notice_seconds must be 0 or more"),
        ({"instances_max": 0}, "instances_max must be at least 1"),
        ({"pools": ["local-a"]}, "write zone/instance-type"),
        ({"pools": ["local-a/m6i.huge"]}, "no price is known of 'm6i.huge'"),
        ({"zones": []}, "zones must be a list of names"),
        ({"scenario": "/no/such.toml"}, "can't be read"),
        ({"link_bits_per_second": True}, "link_bits_per_second is True"),
        ({"clock_offset_seconds_max": -1}, "clock_offset_seconds_max must be 0 to"),
        ({"runtimes": "srv/runtimes"}, "runtimes is 'srv/runtimes'; it must be the absolute path of a folder"),
        ({"runtimes": "/no/such/folder"}, "runtimes is '/no/such/folder'; it must be the absolute path of a folder"),
        ({"root": "srv/bookworm"}, "root must be an absolute path, not 'srv/bookworm'"),
        ({"root": "/no/such/tree"}, "root /no/such/tree has no bin/sh, dev, proc"),
    ],
)
def test_wrong_settings_are_one_sentence(tmp_path: Path, settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as e:
        make(settings, host(tmp_path))
    assert said in str(e.value)


def test_offers_have_catalogue_prices(tmp_path: Path) -> None:
    offers = {(str(o.pool), o.market): o for o in make({}, host(tmp_path)).offers()}
    assert len(offers) == 2 * 9 * 2
    spot = offers["local/local-b/m6i.large", Market.SPOT]
    assert (spot.price_usd_micros_per_hour, spot.list_price_usd_micros_per_hour) == (35_520, 96_000)
    assert (spot.cpus, spot.memory_bytes) == (2, 8 << 30)
    assert offers["local/local-b/m6i.large", Market.ON_DEMAND].price_usd_micros_per_hour == 96_000


def test_offers_follow_the_scenario(tmp_path: Path) -> None:
    (tmp_path / "s.toml").write_text("[[price]]\nfactor = 1.5\nfrom_seconds = 60\n")
    where = host(tmp_path)
    provider = make({"scenario": str(tmp_path / "s.toml"), "pools": ["local-a/m6i.large"]}, where)
    before = [o.price_usd_micros_per_hour for o in provider.offers()]
    assert isinstance(where.clock, ManualClock)
    where.clock.advance(61)
    assert [o.price_usd_micros_per_hour for o in provider.offers()] == [53_280, 96_000]
    assert before == [35_520, 96_000]


def test_another_store_is_passed_on(tmp_path: Path) -> None:
    access = make({}, host(tmp_path, "s3://bucket/x")).store_access("j", 1)
    assert access.url == "s3://bucket/x"
    assert make({}, host(tmp_path)).store_access("j", 1).url == "s3://store"


def test_no_boxes_is_a_complete_listing(tmp_path: Path) -> None:
    listing = make({}, host(tmp_path)).describe()
    assert (list(listing.instances), listing.complete) == ([], True)


def test_the_catalogue() -> None:
    types = instance_types()
    assert len(types) == 1345
    assert types["p5.48xlarge"].gpus.count == 8
    assert all(t.spot_usd_micros_per_hour <= t.on_demand_usd_micros_per_hour for t in types.values())
