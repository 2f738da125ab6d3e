"""The scenario plays whether or not a controller lives; what it refuses is refused."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from spotsurfer_providers.local import cleanup, host_checks
from spotsurfer_providers.local.box import cgroups, disk
from spotsurfer_providers.local.box.records import BoxFolder, Home
from support.boxes import Yard, yard

from spotsurfer.model.errors import HostUnfit, NoCapacity, NotRoot, QuotaExceeded
from spotsurfer.model.market import Market
from spotsurfer.ports.clock import ManualClock
from spotsurfer.ports.provider import InstanceState

pytestmark = pytest.mark.real


def scenario(path: Path, text: str) -> str:
    file = path / "scenario.toml"
    file.write_text(text)
    return str(file)


def test_the_nth_spot_launch_is_taken_and_an_outage_follows(tmp_path: Path) -> None:
    text = """
[[reclaim]]
launch = 2
after_seconds = 0.8
notice_seconds = 0.5
[[outage]]
at_reclaim = 1
seconds = 1.5
"""
    with yard(tmp_path, scenario=scenario(tmp_path, text)) as here:
        first, second = here.launch("sleep 1000"), here.launch("sleep 1000")
        on_demand = here.launch("sleep 1000", Market.ON_DEMAND)
        here.wait_for(lambda: bool(Home(here.path).reclaim_seconds()), "the notice")
        with pytest.raises(NoCapacity, match="outage"):
            here.provider.launch(here.plan("#!/bin/sh\n"))
        assert here.provider.launch(here.plan("#!/bin/sh\n", Market.ON_DEMAND))
        assert here.wait_gone(second.id, 3).reclaimed
        assert here.view(first.id).state is here.view(on_demand.id).state is InstanceState.RUNNING

        def launched() -> bool:
            try:
                return bool(here.provider.launch(here.plan("#!/bin/sh\n")))
            except NoCapacity:
                return False

        here.wait_for(launched, "the end of the outage", 4)


def test_capacity_and_number_of_boxes(tmp_path: Path) -> None:
    text = "[[capacity]]\ninstances = 1\n"
    with yard(tmp_path, scenario=scenario(tmp_path, text), instances_max=2) as here:
        first = here.launch("sleep 1000")
        with pytest.raises(NoCapacity, match="room for 1"):
            here.provider.launch(here.plan("#!/bin/sh\n"))
        here.launch("sleep 1000", Market.ON_DEMAND)
        with pytest.raises(QuotaExceeded, match="instances_max"):
            here.provider.launch(here.plan("#!/bin/sh\n", Market.ON_DEMAND))
        here.provider.terminate(first.id)
        here.wait_gone(first.id)
        assert here.launch("sleep 1000")


def test_ended_boxes_leave_the_listing_but_keep_their_token(tmp_path: Path) -> None:
    with yard(tmp_path) as here:
        plan = here.plan("#!/bin/sh\n")
        box = here.provider.launch(plan)
        here.provider.terminate(box.id)
        ended_at = here.wait_gone(box.id).ended_at
        assert ended_at is not None
        clock = ManualClock(ended_at)
        object.__setattr__(here.provider._host, "clock", clock)  # the host is frozen; time is what this is about
        clock.advance(cleanup.LISTED_SECONDS - 1)
        assert [v.id for v in here.provider.describe().instances] == [box.id]
        clock.advance(2)
        here.provider.describe()
        assert here.provider.describe().instances == []
        assert here.provider.launch(plan).state is InstanceState.GONE
        assert clock.now() - ended_at > timedelta(hours=1)


def test_a_box_that_can_not_start_says_why(tmp_path: Path) -> None:
    with yard(tmp_path) as here:
        in_the_way = scenario(tmp_path, "[[reclaim]\n")
        plan = here.plan("#!/bin/sh\n")
        object.__setattr__(here.provider._settings, "scenario", in_the_way)
        box = here.provider.launch(plan)
        assert not here.wait_gone(box.id).reclaimed
        assert "is not TOML" in here.reason(box.id)
        here.assert_clean()


@pytest.mark.parametrize("tool", ["ip", "mkfs"])
def test_a_missing_tool_is_one_sentence(tool: str, monkeypatch: pytest.MonkeyPatch) -> None:
    which = host_checks.shutil.which
    monkeypatch.setattr(host_checks.shutil, "which", lambda name: None if name.startswith(tool) else which(name))
    with pytest.raises(HostUnfit, match="apt-get install"):
        host_checks.check_host()


def test_without_root_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(NotRoot, match="sudo"):
        host_checks.check_host()


def test_this_host_can(tmp_path: Path) -> None:
    host_checks.check_host()
    assert cgroups.host_hierarchies()


@pytest.mark.parametrize("kind", disk.MAKERS)
def test_each_kind_of_disk(tmp_path: Path, kind: str) -> None:
    made = disk.make_disk(tmp_path, 1 << 29, kind)
    assert (made.kind, Path(made.device).exists()) == (kind, True)
    os.close(made.fd)
    backing = Path("/sys/block") / Path(made.device).name / "loop/backing_file"
    Yard.wait_for(lambda: not backing.exists() or str(tmp_path) not in backing.read_text(), "the loop device to go")
    assert list(tmp_path.iterdir()) == []


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    line = [str(Path(sys.executable).with_name("spotsurfer")), "local", *arguments]
    return subprocess.run(line, capture_output=True, text=True, check=False, timeout=60)


def test_orders_by_hand(tmp_path: Path) -> None:
    with yard(tmp_path) as here:
        box = here.launch("sleep 1000")
        where = ("--data-dir", str(tmp_path))
        rows: list[dict[str, Any]] = json.loads(command("list", *where, "--json").stdout)
        assert [(r["id"], r["state"]) for r in rows] == [(box.id, "running")]
        assert command("rate", *where, box.id, "1gbit").stdout == f"{box.id} has a link of 1gbit.\n"
        assert command("rate", *where, box.id, "fast").returncode == 2
        assert command("cut", *where, box.id).returncode == 0
        assert command("rebalance", *where, box.id).returncode == 0
        assert command("clean", *where, "--json").stdout == "[]\n"
        assert command("reclaim", *where, box.id, "--notice", "0").returncode == 0
        assert here.wait_gone(box.id).reclaimed
        gone = command("rebalance", *where, box.id)
        assert (gone.returncode, gone.stderr.count("\n")) == (14, 1)
        assert BoxFolder(here.folder(box.id)).status().reason == "reclaimed without notice"
