"""The table [provider.gcp]: defaults, and one sentence for each mistake."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest
from spotsurfer_providers.catalog import egress_prices
from spotsurfer_providers.gcp.provider import GcpProvider
from spotsurfer_providers.gcp.settings import read_settings
from support import gcp
from support.tree import ROOT

from spotsurfer.model.errors import ConfigError
from spotsurfer.model.prices import EgressPrices
from spotsurfer.ports.clock import SystemClock
from spotsurfer.ports.provider import BootBucket, ProviderHost

GOOD = {k: v for k, v in gcp.table("http://127.0.0.1:1").items() if k not in ("endpoint_url", "preemptions")}


def test_defaults_are_sound() -> None:
    read = read_settings(GOOD)
    assert (read.notice_seconds, read.external_address, read.preemptions, read.machines_store) == (120, False, None, {})


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"projct": "x"}, "projct is an unknown key. Did you mean 'project'"),
        ({"project": "X"}, "project is 'X', expected something like my-project-123456"),
        ({"subnets": {}}, "subnets is {}"),
        ({"subnets": {"us-central1-a": "regions/europe-west4/subnetworks/x"}}, "which is not of region us-central1"),
        ({"job_account": "me@example.org"}, "job_account is 'me@example.org', expected something like"),
        ({"preemptions": "spotsurfer"}, "preemptions is 'spotsurfer', expected something like projects/"),
        ({"notice_seconds": 121}, "notice_seconds is 121"),
        ({"labels": {"spotsurfer-family": "x"}}, "labels has 'spotsurfer-family', which is taken"),
        ({"labels": {"goog-x": "x"}}, "labels has 'goog-x', which is taken"),
    ],
)
def test_wrong(change: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError) as told:
        read_settings({**GOOD, **change})
    assert str(told.value).startswith("[provider.gcp] ") and words in str(told.value)


@pytest.mark.parametrize("key", ["project", "subnets", "machine_account", "job_account"])
def test_missing(key: str) -> None:
    with pytest.raises(ConfigError, match=f"{key} is missing: `terraform output"):
        read_settings({k: v for k, v in GOOD.items() if k != key})


def test_another_kind_of_store_is_said_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="gs://bucket/prefix"):
        GcpProvider(read_settings(GOOD), ProviderHost("f0", tmp_path, "s3://bucket", SystemClock()))


def test_a_store_of_another_cloud_takes_a_bucket_for_the_boot(tmp_path: Path) -> None:
    def boot(url: str | None, store: str) -> BootBucket | None:
        table = {**GOOD, "boot_url": url, "endpoint_url": "http://here", "store_options": {"base_url": "http://there"}}
        return GcpProvider(read_settings(table), ProviderHost("f0", tmp_path, store, SystemClock())).boot

    with pytest.raises(
        ConfigError, match=r"store.url is 's3://bucket', which machines .* set boot_url to .* gs://bucket/prefix"
    ):
        boot(None, "s3://bucket")
    plain = {"allow_http": "true"}
    expected = BootBucket("gs://boot/x", {"base_url": "http://here", **plain}, {"base_url": "http://there", **plain})
    assert boot("gs://boot/x", "s3://bucket") == expected
    assert boot("gs://boot/x", "gs://bucket") is None, "they begin in the store"


def test_prices_of_transfer_are_listed_or_the_operators(tmp_path: Path) -> None:
    def egress(**own: Any) -> EgressPrices:
        table = {**GOOD, "transfer_usd_per_gib": own}
        return GcpProvider(read_settings(table), ProviderHost("f0", tmp_path, "gs://b", SystemClock())).capabilities.egress

    listed = egress_prices("gcp")
    assert listed.internet_usd_micros > listed.region_usd_micros > 0
    assert egress() == listed
    assert egress(internet=0.05) == EgressPrices(listed.region_usd_micros, 50_000)
    with pytest.raises(ConfigError, match=r"transfer_usd_per_gib.region"):
        egress(region=-1)


def test_the_example_is_right_and_names_every_key() -> None:
    lines = Path(ROOT, "config.example.toml").read_text().splitlines()
    begin = lines.index(next(x for x in lines if x.startswith("##  [provider.gcp]")))
    table = [x.removeprefix("##  ") for x in lines[begin:] if x.startswith("##  ")]
    read = tomllib.loads("\n".join(table))["provider"]["gcp"]
    assert set(read) == set(type(read_settings(GOOD)).model_fields)
    read_settings(read)
