"""`usage`: what a job used, for people, programs, backtests and as a page."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

from spotsurfer_wire.usage import Window
from support.fake_service import START, FakeService

from spotsurfer.cli.commands.usage import COLUMNS, gpus, lately, sparkline, waited
from spotsurfer.ports.service import UsageSeen

Call = Callable[..., Any]  # as in conftest
MIB = 1 << 20
WINDOW = Window(0, 10.0, 1.5, 2.0, 900 * MIB, 800 * MIB, 700 * MIB, 850 * MIB, 100 * MIB, 50e6)


def used(count: int = 3, **changes: object) -> list[UsageSeen]:
    return [UsageSeen(1, START + timedelta(seconds=10 * i), replace(WINDOW, number=i, **changes)) for i in range(count)]  # type: ignore[arg-type]


def test_for_people(controller: FakeService, call: Call, job: str) -> None:
    controller.used = used(stalled_io=0.25, read_bytes=MIB, write_bytes=2.0 * MIB, processes=4.0)
    told = call("usage", job)
    assert told.code == 0, told.err
    assert "1.50 in use on average, 2.00 at most" in told.out
    assert "800.0 MiB at most, growing by up to 47.7 MiB/s" in told.out
    assert "25 % for io" in told.out
    assert "3.0 MiB read, 6.0 MiB written" in told.out
    assert "GPU" not in told.out


def test_for_programs(controller: FakeService, call: Call, job: str) -> None:
    controller.used = used()
    windows = json.loads(call("usage", job, "--json").out)["windows"]
    assert [w["resident_bytes"] for w in windows] == [800 * MIB] * 3
    assert windows[0]["gpu_share"] is None
    assert (windows[1]["attempt"], windows[1]["at"]) == (1, "2026-03-01T12:00:10Z")


def test_for_backtests_a_line_a_second(controller: FakeService, call: Call, job: str, tmp_path: Path) -> None:
    controller.used = used(read_bytes=20e6)
    assert call("usage", job, "--csv", str(tmp_path / "u.csv")).code == 0
    lines = (tmp_path / "u.csv").read_text().splitlines()
    assert lines[0] == ",".join(COLUMNS) == "t_s,rss_mib,cpu_cores,read_mb_s,write_mb_s,processes"
    assert len(lines) == 31
    assert lines[1] == "0.0,800,1.50,2.00,0.00,1"
    assert lines[30].startswith("29.0,")
    assert call("usage", job, "--csv", str(tmp_path / "u.csv.gz")).code == 0
    assert gzip.decompress((tmp_path / "u.csv.gz").read_bytes()).decode().splitlines() == lines


def test_a_page_draws_what_there_is(controller: FakeService, call: Call, job: str, tmp_path: Path) -> None:
    controller.used = used(gpu_share=0.5, gpu_memory_bytes=1e9, gpu_watts=300.0)
    assert call("usage", job, "--page", str(tmp_path / "u.html")).code == 0
    page = (tmp_path / "u.html").read_text()
    assert page.count("<polyline") == 5
    assert "http" not in page.replace("http://www.w3.org/2000/svg", "")


def test_nothing_yet_and_no_such_job(controller: FakeService, call: Call, job: str) -> None:
    assert "Nothing was measured yet" in call("usage", job).out
    assert call("usage", "nobody").code != 0


def test_words() -> None:
    assert sparkline([0.0, 1.0, 2.0], 10) == " ▄█"
    assert sparkline([0.0], 10) == " "
    assert len(sparkline([float(i) for i in range(1000)], 72)) == 72
    window = {**{n: 0.0 for n in ("stalled_cpu", "stalled_memory", "stalled_io")}, "seconds": 1.0, "gpu_share": None}
    assert waited([window]) is None
    assert gpus([window]) is None
    shown = {
        "cpu_cores": 1.0,
        "resident_last_bytes": MIB,
        "cache_bytes": 0,
        "gpu_share": 0.5,
        **dict.fromkeys(("stalled_cpu",), 0.2),
    }
    assert lately({**shown, "stalled_memory": None, "stalled_io": 0.0}) == (
        "1.00 processors, 1.0 MiB resident, 0 B page cache, 20 % of the time waiting for cpu, GPUs busy 50 %"
    )
    assert lately(None) is None
