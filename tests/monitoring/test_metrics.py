"""Debian's real Prometheus and promtool read the metrics, the alert rules and the dashboard that we ship."""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.api import api
from support.fake_service import FakeService
from support.in_process import client_of

from spotsurfer.model.figures import Figures
from spotsurfer.ports.clock import SystemClock
from spotsurfer.ports.service import Info
from spotsurfer.web.app import make_app
from spotsurfer.web.guard import Door
from spotsurfer.web.metrics import METRICS

ROOT = Path(__file__).parents[2]
MONITORING = ROOT / "monitoring"
CLOCK = SystemClock()
TOKEN = "a-token-of-some-length"
POOL = ("aws", "spot")


class Told(FakeService):
    """A controller that counts what a test says; a real one looks at its jobs every second."""

    def __init__(self) -> None:
        super().__init__()
        self.stopped_at: datetime | None = None
        self.told = Figures(
            datetime(2026, 3, 1, 12, 0, tzinfo=UTC),
            {"queued": 2, "active": 1},
            {(*POOL, "running"): 1},
            {POOL: 5},
            {POOL: 0},
            {POOL: 2},
            restores_failed=0,
            moments={"notice": 3, "saved": 7, "alert": 0},
            stored_bytes=1 << 30,
            licences={"vcs": (4, 3, 1)},
            oldest_queued_at=datetime(2026, 3, 1, 11, 0, tzinfo=UTC),
        )

    def figures(self) -> Figures:
        return self.told

    def info(self) -> Info:
        return replace(super().info(), last_tick_at=self.stopped_at or CLOCK.now(), spent_usd_micros=1_234_567)


def tool(name: str) -> str:
    return shutil.which(name) or str(ROOT / "build/tools/usr/bin" / name)


def promtool(*words: str, given: str = "", cwd: Path = MONITORING) -> str:
    done = subprocess.run([tool("promtool"), *words], input=given, capture_output=True, text=True, check=False, cwd=cwd)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def page() -> str:
    with client_of(make_app(Told(), Door(TOKEN))) as client:
        return client.get("/metrics", headers={"Authorization": f"Bearer {TOKEN}"}).text


# ---- What is said


def test_each_metric_has_its_line_and_promtool_finds_nothing_to_say() -> None:
    text = page()
    for row in METRICS:
        name = f"spotsurfer_{row.name}{'_total' if row.counts else ''}"
        missing = {"budget_usd", "hourly_limit_usd", "gpus_limit"}  # limits that this controller does not have
        assert (f"\n{name}{{" in text or f"\n{name} " in text) or row.name in missing | {"moves"}, name
    assert promtool("check", "metrics", given=text) == ""


def test_the_values_are_those_of_the_controller() -> None:
    text = page()
    for line in (
        'spotsurfer_jobs{state="queued"} 2.0',
        'spotsurfer_machines{market="spot",provider="aws",state="running"} 1.0',
        'spotsurfer_launches_refused_total{market="spot",provider="aws"} 2.0',
        "spotsurfer_notices_total 3.0",
        "spotsurfer_checkpoints_total 7.0",
        "spotsurfer_queue_oldest_seconds 3600.0",
        "spotsurfer_cost_usd_total 1.234567",
    ):
        assert f"\n{line}\n" in text, line


def test_nobody_reads_them_without_a_token() -> None:
    with client_of(make_app(Told(), Door(TOKEN))) as client:
        assert client.get("/metrics").status_code == 401


# ---- What is shipped


def test_the_alert_rules_are_right_by_promtool(tmp_path: Path) -> None:
    promtool("check", "rules", "alerts.yml")
    shutil.copy(MONITORING / "alerts.yml", tmp_path)
    shutil.copy(Path(__file__).with_name("alerts_test.yml"), tmp_path)
    promtool("test", "rules", "alerts_test.yml", cwd=tmp_path)


def names_in(text: str) -> set[str]:
    return set(re.findall(r"\bspotsurfer_[a-z_]+", text))


@pytest.mark.parametrize("file", ["alerts.yml", "dashboard.json"])
def test_rules_and_dashboard_ask_for_metrics_that_there_are(file: str) -> None:
    there = {f"spotsurfer_{row.name}{'_total' if row.counts else ''}" for row in METRICS}
    asked = names_in((MONITORING / file).read_text())
    assert asked and asked <= there, asked - there


# ---- Real Prometheus


@contextmanager
def prometheus(folder: Path, target: str) -> Iterator[httpx.Client]:
    """Debian's Prometheus on a free port, with our files; a second stands for each minute of the rules."""
    rules = re.sub(r"\b(\d+)m\b", r"\1s", (MONITORING / "alerts.yml").read_text()).replace("> 300", "> 5")
    (folder / "alerts.yml").write_text(rules)
    (folder / "token").write_text(TOKEN)
    config = (MONITORING / "prometheus.yml").read_text()
    for ours, theirs in (("127.0.0.1:8470", target), ("/etc/prometheus/spotsurfer.token", str(folder / "token"))):
        assert ours in config
        config = config.replace(ours, theirs)
    times = "global: { scrape_interval: 1s, scrape_timeout: 1s, evaluation_interval: 1s }\n"
    (folder / "prometheus.yml").write_text(times + config)
    promtool("check", "config", "prometheus.yml", cwd=folder)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [
        *(tool("prometheus"), "--config.file=prometheus.yml", f"--web.listen-address=127.0.0.1:{port}"),
        f"--storage.tsdb.path={folder / 'data'}",
    ]
    with (folder / "log").open("w") as log, subprocess.Popen(command, stdout=log, stderr=log, cwd=folder) as process:
        try:
            with httpx.Client(base_url=f"http://127.0.0.1:{port}/api/v1", timeout=5) as client:
                wait(lambda: ready(client), "Prometheus is up", folder / "log")
                yield client
        finally:
            process.terminate()


def ready(client: httpx.Client) -> bool:
    try:
        return client.get("/status/buildinfo").status_code == 200
    except httpx.HTTPError:
        return False


def wait(done: Any, what: str, log: Path) -> None:
    end = time.monotonic() + 60
    while time.monotonic() < end:
        if done():
            return
        time.sleep(0.2)
    raise AssertionError(f"not within a minute: {what}\n{log.read_text()[-3000:]}")


def value(client: httpx.Client, query: str) -> float | None:
    """The value of a query; None if there is none."""
    answer = client.get("/query", params={"query": query}).json()
    assert answer["status"] == "success", answer
    found = answer["data"]["result"]
    return float(found[0]["value"][1]) if found else None


def firing(client: httpx.Client) -> set[str]:
    return {a["labels"]["alertname"] for a in client.get("/alerts").json()["data"]["alerts"] if a["state"] == "firing"}


def test_real_prometheus_reads_it_and_its_alerts_fire_in_an_incident(tmp_path: Path) -> None:
    service = Told()
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen()
    target = f"127.0.0.1:{listener.getsockname()[1]}"
    log = tmp_path / "log"
    with api(service, tmp_path / "s", (listener, TOKEN)), prometheus(tmp_path, target) as client:
        wait(lambda: value(client, "spotsurfer_checkpoints_total") == 7, "it was read", log)
        assert value(client, 'up{job="spotsurfer"}') == 1
        for panel in json.loads((MONITORING / "dashboard.json").read_text())["panels"]:
            for target_ in panel["targets"]:
                value(client, target_["expr"])  # Prometheus takes it
        time.sleep(2)
        assert firing(client) <= {"SpotsurferQueueWaits"}, "all is well, so nothing fires"
        service.told = replace(service.told, reclaimed={POOL: 40}, restores_failed=9)
        service.stopped_at = CLOCK.now() - timedelta(seconds=4)
        expected = {"SpotsurferReclaimStorm", "SpotsurferRestoresFail", "SpotsurferStopped"}
        seen: set[str] = set()

        def all_fired() -> bool:
            seen.update(firing(client))
            return expected <= seen

        wait(all_fired, f"{expected} fire", log)
    # The listener is closed: the controller is gone.


def test_it_says_when_the_controller_is_gone(tmp_path: Path) -> None:
    with prometheus(tmp_path, "127.0.0.1:1") as client:
        wait(lambda: "SpotsurferDown" in firing(client), "SpotsurferDown fires", tmp_path / "log")
