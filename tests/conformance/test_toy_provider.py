"""Another provider needs one folder and one entry point: a stranger's package, of which no file of ours knows."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from support import levels, toy_provider
from support.azurite.server import azurite
from support.patience import FACTOR, patient
from support.provider_contract import CHECKS, Bench

from spotsurfer.common import plugins
from spotsurfer.config.settings import load_settings
from spotsurfer.model.errors import ConfigError, NoController
from spotsurfer.ports.clock import SystemClock
from spotsurfer.ports.provider import ProviderHost
from spotsurfer.web.client import connect

CONFIG = """\
[controller]
data_dir = "{data}"
tick_seconds = 0.3
offers_seconds = 1
log_format = "json"
[store]
url = "{url}"
options = {options}
[provider]
name = "toy"
[provider.toy]
usd_micros_per_hour = 4200
"""


@pytest.fixture
def site(tmp_path: Path) -> Path:
    toy_provider.install(tmp_path / "site")
    return tmp_path / "site"


@pytest.fixture
def bench(site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    monkeypatch.syspath_prepend(site)
    importlib.invalidate_caches()
    make = plugins.plugin(plugins.PROVIDERS, "toy")
    return Bench(make({}, ProviderHost("family", tmp_path, "memory:///", SystemClock())), tags={"spotsurfer:job": "j"})


@pytest.mark.parametrize("check", CHECKS, ids=lambda c: c.__name__)
def test_contract(bench: Bench, check: Callable[[Bench], None]) -> None:
    check(bench)


@dataclass(frozen=True)
class Program:
    """`spotsurfer` in processes of its own, which find what is installed in `site`."""

    config: Path
    site: Path | None

    @property
    def _environment(self) -> dict[str, str]:
        return os.environ | ({"PYTHONPATH": str(self.site)} if self.site else {})

    def _command(self, *words: str) -> list[str]:
        return [sys.executable, "-m", "spotsurfer", "--config", str(self.config), *words]

    def call(self, command: str, *words: str) -> Any:
        done = subprocess.run(
            self._command(command, "--json", *words), env=self._environment, capture_output=True, text=True, check=False
        )
        assert done.stdout, done.stderr
        return json.loads(done.stdout)

    @contextmanager
    def serve(self, log: Path) -> Iterator[None]:
        levels.only_for_real_tests("a controller")
        with log.open("wb") as out:
            serving = subprocess.Popen(self._command("serve"), env=self._environment, stdout=out, stderr=subprocess.STDOUT)
        try:
            self.wait(lambda: serving.poll() is not None or self._answers(), log.read_text)
            assert serving.poll() is None, log.read_text()
            yield
        finally:
            serving.terminate()
            assert serving.wait(30 * FACTOR) == 0, log.read_text()

    def _answers(self) -> bool:
        with suppress(NoController):
            return bool(self.info())
        return False

    def info(self) -> Any:
        return connect(self.config).get("/v1/info")

    def wait(self, good: Callable[[], Any], told: Callable[[], str], seconds: float = 60.0) -> Any:
        until = time.monotonic() + seconds * FACTOR
        while not (found := good()):
            assert time.monotonic() < until, told()
            time.sleep(0.1)
        return found


@pytest.fixture
def program(site: Path) -> Iterator[Program]:
    with TemporaryDirectory(prefix="ss-") as short:  # a socket's path has 107 bytes
        yield written(Path(short), site)


def written(folder: Path, site: Path | None, url: str = "", options: str = "{}") -> Program:
    config = folder / "spotsurfer.toml"
    config.write_text(patient(CONFIG).format(data=folder / "data", url=url or f"file://{folder}/store", options=options))
    return Program(config, site)


def test_settings_know_it_where_it_is_installed_and_nowhere_else(
    program: Program, site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigError, match="names 'toy', and no such provider is installed"):
        load_settings(program.config)
    monkeypatch.syspath_prepend(site)
    importlib.invalidate_caches()
    assert load_settings(program.config).provider.table_of("toy") == {"usd_micros_per_hour": 4200}


def test_the_doctor_asks_nothing_of_this_host_for_it(program: Program) -> None:
    found = {f["check"]: f["text"] for f in program.call("doctor")["findings"]}
    assert found["provider"] == "toy: asks nothing special of this host"
    assert found["namespaces"] == "not needed: machines are those of toy"


@pytest.mark.real
def test_a_controller_offers_its_machines_and_orders_one(program: Program, tmp_path: Path) -> None:
    with program.serve(tmp_path / "log"):
        plan = program.call("submit", "--dry-run", "--cpu", "2", "--mem", "4G", "--", "true")
        offers = [(c["market"], c["instance_type"], c["usd_micros_per_hour"]) for c in plan["choices"]]
        assert offers == [("spot", "brick.large", 4200), ("on-demand", "brick.large", 4200)]
        job = program.call("submit", "--cpu", "2", "--mem", "4G", "--", "true")["id"]

        def ordered() -> Any:
            return [a["instance"] for a in program.call("show", job)["attempts"] if a["instance"]]

        assert program.wait(ordered, (tmp_path / "log").read_text) == ["toy-0001"]
        program.call("cancel", job)


@pytest.mark.real
def test_its_controller_may_keep_its_store_in_azure(site: Path, tmp_path: Path) -> None:
    with azurite(tmp_path) as server, TemporaryDirectory(prefix="ss-") as short:
        options = ", ".join(f'{name} = "{value}"' for name, value in server.options().items())
        program = written(Path(short), site, f"az://{server.new_container()}/fleet", f"{{ {options} }}")
        with program.serve(tmp_path / "log"):
            assert program.call("submit", "--dry-run", "--cpu", "2", "--mem", "4G", "--", "true")["choices"]
        assert server.key not in (tmp_path / "log").read_text()
        with program.serve(tmp_path / "again"):
            assert (program.info()["provider"], program.info()["generation"]) == ("toy", 2)
