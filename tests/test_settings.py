"""Settings: file and environment, and every mistake named with its place."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

import pytest

from spotsurfer.config.paths import client_socket
from spotsurfer.config.settings import LimitsSection, Settings, listen_address, load_settings
from spotsurfer.model.errors import ConfigError
from spotsurfer.model.snapshot import Limits


@pytest.fixture(autouse=True)
def _clean(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    for name in [n for n in os.environ if n.startswith("SPOTSURFER_")]:
        monkeypatch.delenv(name)


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("[limits]\nlease_secs = 3\n", ["line 2", "[limits] lease_secs", "unknown key", "'lease_seconds'"]),
        ("[limts]\nlease_seconds = 3\n", ["line 1", "[limts]", "unknown section", "'limits'"]),
        ("[limits]\nlease_seconds = '3 parsecs'\n", ["line 2", "lease_seconds", "'parsecs'", "no unit of time"]),
        ("[limits]\ninstances_max = 'x'\n", ["line 2", "instances_max", "integer"]),
        ("[limits]\nbudget_usd = '25 EUR'\n", ["line 2", "budget_usd", "US dollars"]),
        ("[limits]\nlease_seconds = 3\n", ["lease_seconds is 3", "twice", "60"]),
        ("[controller]\ntick_seconds = 31\n", ["tick_seconds is 31", "half", "60"]),
        ("limits = 3\n", ["line 1", "expected a table"]),
        ("[agent]\npoll_seconds = 0\n", ["line 2", "poll_seconds is 0", "at least"]),
        ("[controller]\ndata_dir = 'data'\n", ["line 2", "data_dir", "absolute path"]),
        ("[controller]\nlisten = '8470'\n", ["line 2", "listen", "127.0.0.1:8470"]),
        ("[controller]\nlog_level = 'loud'\n", ["line 2", "log_level", "Known"]),
        ("[store]\nurl = 'srv/store'\n", ["line 2", "url", "s3://"]),
        ("[provider]\nname = 'lcoal'\n", ["line 2", "no such provider", "'local'"]),
        ("[provider]\nname = ['aws', 'gpc']\n", ["line 2", "'gpc'", "no such provider", "'gcp'"]),
        ("[provider]\nname = ['aws', 'aws']\n", ["line 2", "each of them once"]),
        ("[provider]\nname = []\n", ["line 2", "expected a provider, or a list"]),
        ("[provider.lcoal]\nx = 1\n", ["line 1", "no such provider", "'local'"]),
        ("[provider]\nfoo = 1\n", ["[provider]", "'foo'"]),
        ("[policy]\nname = 'dearest'\n", ["line 2", "no such policy", "cheapest"]),
        ("[[costs.overrides]]\npercent = 3\nkind = 'dsik'\n", ["costs.overrides", "kind", "'disk'"]),
        ("[[costs.overrides]]\nprocent = 3\n", ["costs.overrides", "'percent'"]),
        ("[[costs.overrides]]\npercent = 3\nusd = 4\n", ["costs.overrides", "either usd or percent"]),
        ("[[costs.overrides]]\nusd = 4\nfrom = 'May'\n", ["costs.overrides", "from", "2026-01-31"]),
        ("[[costs.overrides]]\nusd = 4\nfrom = 2026-02-01\nuntil = 2026-02-01\n", ["costs.overrides", "not after from"]),
        ("[store\n", ["not valid TOML", "line 1"]),
    ],
)
def test_a_wrong_file_is_one_sentence(tmp_path: Path, text: str, parts: list[str]) -> None:
    path = tmp_path / "c.toml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_settings(path)
    for part in parts:
        assert part in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "value", "parts"),
    [
        ("SPOTSURFER_LIMITS__BUDGET_USDS", "1", ["SPOTSURFER_LIMITS__BUDGET_USDS", "'budget_usd'"]),
        ("SPOTSURFER_LIMTS__BUDGET_USD", "1", ["SPOTSURFER_LIMTS__BUDGET_USD", "'limits'"]),
        ("SPOTSURFER_LIMITS__LEASE_SECONDS", "soon", ["SPOTSURFER_LIMITS__LEASE_SECONDS", "'soon'"]),
        ("SPOTSURFER_STORE", "file:///x", ["store", "SPOTSURFER_<SECTION>__<KEY>"]),
        ("SPOTSURFER_CONFIG", "/absent.toml", ["/absent.toml", "not there"]),
    ],
)
def test_a_wrong_variable_is_named(monkeypatch: pytest.MonkeyPatch, name: str, value: str, parts: list[str]) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError) as caught:
        load_settings()
    for part in parts:
        assert part in str(caught.value)


def test_the_environment_wins_over_the_file_and_the_file_over_defaults(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "spotsurfer.toml").write_text(
        "[limits]\nbudget_usd = '1.5'\ninstances_max = 3\n"
        "[agent]\ncheckpoint_interval = '5m'\n[provider.local]\nzones = ['a']\n"
    )
    monkeypatch.setenv("SPOTSURFER_LIMITS__INSTANCES_MAX", "4")
    settings = load_settings()
    assert settings.limits.as_limits() == Limits(instances_max=4, budget_usd_micros=1_500_000)
    assert settings.agent.checkpoint_interval == 300.0
    assert settings.provider.table_of(settings.provider.names[0]) == {"zones": ["a"]}
    assert settings.policy.table_of(settings.policy.name) == {}


@pytest.mark.parametrize(
    ("text", "names"),
    [("", ("local",)), ("[provider]\nname = 'aws'\n", ("aws",)), ("[provider]\nname = ['gcp', 'aws']\n", ("gcp", "aws"))],
)
def test_one_provider_or_several(tmp_path: Path, text: str, names: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "c.toml").write_text(text)
    assert load_settings(tmp_path / "c.toml").provider.names == names
    monkeypatch.setenv("SPOTSURFER_PROVIDER__NAME", "gcp")
    assert load_settings(tmp_path / "c.toml").provider.names == ("gcp",)
    monkeypatch.setenv("SPOTSURFER_PROVIDER__NAME", '["aws", "gcp"]')
    assert load_settings(tmp_path / "c.toml").provider.names == ("aws", "gcp")


def test_places_follow_the_data_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "c.toml"
    path.write_text("[controller]\ndata_dir = '/srv/a b'\n")
    settings = load_settings(path)
    assert settings.store_url == "file:///srv/a%20b/store"
    assert settings.token_path == Path("/srv/a b/token")
    assert settings.socket_path == client_socket(path) == Path("/srv/a b/api.sock")
    monkeypatch.setenv("SPOTSURFER_CONTROLLER__SOCKET", "/run/s.sock")
    assert load_settings(path).socket_path == client_socket(path) == Path("/run/s.sock")


def test_every_limit_of_decide_is_a_setting_with_the_same_default() -> None:
    fields = {f.name for f in dataclasses.fields(Limits)} - {
        *("budget_usd_micros", "price_max_usd_micros", "hourly_max_usd_micros"),  # in dollars there
        *("advice_moves", "gpus_shared", "keeps"),  # the provider's
        "checkpoint_seconds",  # [agent] checkpoint_interval
    }
    assert fields <= set(LimitsSection.model_fields)
    assert LimitsSection.model_validate({}).as_limits() == Limits()
    assert Settings().limits.as_limits() == Limits()


@pytest.mark.parametrize(
    ("text", "found"), [("127.0.0.1:1", ("127.0.0.1", 1)), ("[::1]:8470", ("::1", 8470)), ("host:65535", ("host", 65535))]
)
def test_addresses(text: str, found: tuple[str, int]) -> None:
    assert listen_address(text) == found


@pytest.mark.parametrize("text", ["", ":1", "host", "host:", "host:99999", "a b:1", "::1:1"])
def test_wrong_addresses(text: str) -> None:
    with pytest.raises(ValueError, match="address:port"):
        listen_address(text)
