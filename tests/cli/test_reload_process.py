"""A controller in a process of its own: SIGHUP and `reload` make it read its configuration again, and end nothing."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cli.conftest import Call

SECONDS = 60.0


class Process:
    def __init__(self, folder: Path) -> None:
        self.config, self.log = folder / "c.toml", folder / "log"
        self.folder = folder
        self.write("")
        words = [sys.executable, "-m", "spotsurfer", "--config", str(self.config), "serve"]
        with self.log.open("wb") as log:
            self.running = subprocess.Popen(words, stdout=log, stderr=log, stdin=subprocess.DEVNULL, cwd=folder)

    def write(self, text: str) -> None:
        own = f'[controller]\ndata_dir = "{self.folder}/d"\nlog_format = "json"\ntick_seconds = 0.5\n\n'
        self.config.write_text(f"{own}{text}")

    def events(self, name: str) -> list[dict[str, Any]]:
        lines = (json.loads(line) for line in self.log.read_text().splitlines() if line.startswith("{"))
        return [line for line in lines if line["event"] == name]

    def wait(self, name: str, count: int = 1) -> dict[str, Any]:
        until = time.monotonic() + SECONDS
        while time.monotonic() < until:
            if len(found := self.events(name)) >= count:
                return found[count - 1]
            assert self.running.poll() is None, self.log.read_text()
            time.sleep(0.05)
        raise AssertionError(f"no {name}: {self.log.read_text()}")

    def hang_up(self) -> None:
        os.kill(self.running.pid, signal.SIGHUP)


@pytest.fixture
def process(folder: Path) -> Iterator[Process]:
    found = Process(folder)
    yield found
    if found.running.poll() is None:
        found.running.kill()
    found.running.wait()


BUDGET = '[limits]\nbudget_usd = 7\n\n[[budgets]]\nscope = "owner:ada"\nusd = 5\n'


def test_sighup_reads_the_configuration_again(process: Process, call: Call) -> None:
    process.wait("serve.listening")
    process.write(BUDGET)
    process.hang_up()
    done = process.wait("config.reloaded")
    assert (done["changed"], done["restart"]) == (["budgets", "limits.budget_usd"], [])
    call_on = ("--config", str(process.config))
    (one,) = json.loads(call(*call_on, "budget", "list", "--json").out)["budgets"]
    assert (one["scope"], one["usd_micros"]) == ("owner:ada", 5_000_000)

    process.write(BUDGET.replace("5", '"much"'))
    process.hang_up()
    assert "c.toml line 11: [budgets] usd is 'much'" in process.wait("config.refused")["error"]
    refused = call(*call_on, "reload")
    assert (refused.code, "line 11" in refused.err) == (5, True)

    process.write(BUDGET.replace("5", "6") + '\n[access]\noperators = ["grace"]\n\n[agent]\npoll_seconds = 6\n')
    reloaded = json.loads(call(*call_on, "reload", "--json").out)
    assert reloaded == {"changed": ["access.operators", "budgets"], "restart": ["agent.poll_seconds"]}
    assert call(*call_on, "budget", "set", "owner:ada", "9").code == 0
    (one,) = json.loads(call(*call_on, "budget", "list", "--json").out)["budgets"]
    assert (one["usd_micros"], one["configured"]) == (9_000_000, True)

    process.running.send_signal(signal.SIGTERM)
    assert process.running.wait(SECONDS) == 0
    assert process.events("serve.stopped")


def test_sighup_while_it_begins_ends_nothing(process: Process) -> None:
    until = time.monotonic() + SECONDS
    while not (process.folder / "d").exists() and time.monotonic() < until:
        time.sleep(0.01)
    process.hang_up()
    process.wait("serve.listening")
    process.hang_up()
    process.wait("config.reloaded")
    assert process.running.poll() is None
