"""Usage: what kernels say, from samples to windows, and a real program whose profile is known."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from spotsurfer_agent.host.cgroup import JobCgroup
from spotsurfer_agent.host.usage import Gathering, GpuSample, Meters, Sample, Sampler, Totals
from spotsurfer_wire import json_codec
from spotsurfer_wire.usage import KEPT, NAMES, NEEDED, Usage, Window, merged
from support import usage_trees

MIB = 1 << 20


@pytest.mark.parametrize("version", ["v1", "v2"])
def test_what_a_kernel_says_of_a_job(tmp_path, version):
    meters = Meters(usage_trees.write(tmp_path, version), tmp_path / "proc")
    s = meters.sample()
    assert s is not None
    assert s.cpu_seconds == pytest.approx(14.203991, abs=1e-5)
    assert (s.memory_bytes, s.cache_bytes) == (640167936, 81788928 + 22020096)
    assert s.resident_bytes == (532676608 if version == "v2" else 532676608 + 2097152)
    assert s.working_bytes == 640167936 - 81788928
    assert s.swap_bytes == (8192 if version == "v2" else 4096)
    t = meters.totals()
    assert t.network == (110000, 70000)
    assert t.processes == (2 if version == "v2" else 3)
    assert t.stalled_seconds[2] == pytest.approx(0.5 if version == "v2" else 524.965798)
    assert t.disk == ((102400001, 51202) if version == "v2" else (200000 * 512, 300000 * 512))


@pytest.mark.parametrize("version", ["v1", "v2"])
@pytest.mark.parametrize("text", ["", "x", "-1", "some avg10=", "\n\n", "a b c"])
def test_what_a_kernel_does_not_say_is_absent_and_never_an_error(tmp_path, version, text):
    every = usage_trees.V1 if version == "v1" else usage_trees.V2
    meters = Meters(
        usage_trees.write(tmp_path, version, **{Path(n).name.replace(".", "_"): text for n in every}), tmp_path / "proc"
    )
    s = meters.sample()
    assert s is None or s.memory_bytes == 0
    assert meters.totals().stalled_seconds == (None, None, None)
    assert Meters({"cpuacct": str(tmp_path / "gone")}, tmp_path / "no").sample() is None


def sample(cpu: float, resident: int, cache: int = 0) -> Sample:
    return Sample(cpu, resident + cache, resident, resident, cache)


@pytest.mark.parametrize("version", ["v1", "v2"])
def test_its_own_disk_is_told_apart_from_the_machines(tmp_path, version):
    folders, proc = usage_trees.write(tmp_path, version), tmp_path / "proc"
    meters = Meters(folders, proc)
    (pid, *_) = meters.totals().own_disk
    (proc / str(pid)).mkdir(parents=True)
    (proc / str(pid) / "io").write_text("rchar: 9\nwchar: 9\nread_bytes: 4096\nwrite_bytes: 8192\n")
    g, before = Gathering(), meters.totals()
    assert before.own_disk[pid] == 12288
    g.add(0.0, sample(0, 0), before)
    (proc / str(pid) / "io").write_text("read_bytes: 8192\nwrite_bytes: 8192\n")
    g.add(5.0, sample(0, 0))
    g.add(10.0, sample(0, 0), meters.totals())
    assert Window.from_row(g.rows(10.0)[0]).own_disk_bytes == 4096


def test_what_it_prints_is_told(tmp_path):
    """Of a job that prints without using a processor to speak of: that is progress."""
    said, now = [100], [1000.0]
    folders = usage_trees.write(tmp_path, "v2")
    (tmp_path / "groups").write_text(json.dumps(folders))
    sampler = Sampler(tmp_path / "groups", lambda: now[0], tmp_path / "proc", printed=lambda: said[0])
    for _ in range(41):
        sampler.look()
        now[0] += 1.0
        said[0] = 100 if now[0] < 1015 else 107
    told = sampler.told()
    assert told is not None
    assert [Window.from_row(row).printed_bytes for row in told.rows][:4] == [0, 7, 0, 0]


def test_windows_are_slices_of_the_clock_with_peaks_means_and_growth():
    g = Gathering()
    for i in range(25):
        cpu, grown = min(i, 10) * 2.0, (200 if i == 13 else 100) * MIB
        totals = Totals((i * 0.5, 0.0, None), (i * 1000, 0), None, 3) if g.due(100.0 + i) else None
        g.add(100.0 + i, sample(cpu, grown), totals)
    first, second, growing = (Window.from_row(r) for r in g.rows(125.0))
    assert (first.number, first.seconds, first.cpu_cores, first.cpu_cores_max) == (10, 10.0, 2.0, 2.0)
    assert (second.cpu_cores, second.resident_bytes, second.resident_last_bytes) == (0.0, 200 * MIB, 100 * MIB)
    assert second.growth_bytes_per_second == 100 * MIB
    assert (second.stalled_cpu, second.stalled_io, second.read_bytes, second.processes) == (0.5, None, 10_000, 3)
    assert (growing.number, growing.seconds, growing.stalled_cpu) == (12, 4.0, None)


def test_a_step_that_begins_within_a_window_counts_with_the_one_before():
    """Its control group is a new one, whose time begins at 0."""
    g = Gathering()
    for i, cpu in enumerate((50.0, 52.0, 54.0, 0.0, 2.0, 4.0)):
        g.add(100.0 + i, sample(cpu, MIB), Totals() if i == 0 else None)
    [window] = [Window.from_row(r) for r in g.rows(105.0)]
    assert (window.seconds, window.cpu_cores, window.cpu_cores_max) == (5.0, 8 / 5, 2.0)


def test_memory_that_is_brought_back_is_no_growth_and_is_said():
    g = Gathering()
    for at, resident, missing in ((100, 10, 90), (101, 60, 40), (102, 100, None), (103, 107, None)):
        g.add(at, sample(0.0, resident), Totals() if at == 100 else None, arriving_bytes=missing)
    [window] = [Window.from_row(r) for r in g.rows(103.0)]
    assert (window.growth_bytes_per_second, window.arriving_bytes) == (7.0, 90.0)
    g.add(110, sample(0.0, 107), Totals())
    g.add(111, sample(0.0, 109))
    assert Window.from_row(g.rows(111.0)[-1]).arriving_bytes is None


def test_a_gap_belongs_to_no_window_and_old_ones_go():
    g = Gathering()
    for at in (*range(100, 105), *range(300, 300 + 10 * KEPT + 15)):
        g.add(float(at), sample(float(at), MIB), Totals() if g.due(float(at)) else None)
    windows = [Window.from_row(r) for r in g.rows(1000.0)]
    assert len(windows) == KEPT + 1
    g = Gathering()
    for at in (*range(100, 105), 300, 301):
        g.add(float(at), sample(float(at), MIB), Totals() if g.due(float(at)) else None)
    assert [(w.number, w.seconds) for w in map(Window.from_row, g.rows(302.0))] == [(10, 4.0), (30, 1.0)]


def test_graphics_processors_are_absent_where_there_are_none():
    g = Gathering()
    for at in range(100, 112):
        gpus = [GpuSample(at % 2, at * MIB, 300.0)]
        g.add(float(at), sample(0.0, MIB), Totals() if g.due(float(at)) else None, gpus)
    window = Window.from_row(g.rows(112.0)[0])
    assert (window.gpu_share, window.gpu_watts) == (0.5, 300.0)
    assert window.gpu_memory_bytes == 109 * MIB
    g.add(112.0, sample(0.0, MIB), None, [GpuSample(None, MIB, 300.0)])
    assert Window.from_row(g.rows(113.0)[-1]).gpu_share is None, "what is not known is not 0"


numbers = st.one_of(st.none(), st.floats(allow_nan=True), st.integers(-(2**70), 2**70))


@given(st.lists(numbers, max_size=len(NAMES) + 3))
def test_a_row_of_strangers_is_a_window_or_a_value_error(row):
    try:
        window = Window.from_row(row)
    except ValueError:
        return
    assert all((v := getattr(window, n)) is None or v >= 0 for n in NAMES)


@given(st.lists(st.lists(st.integers(0, 10**12), min_size=len(NEEDED), max_size=len(NAMES)), min_size=1, max_size=8))
def test_merging_keeps_peaks_and_sums(rows):
    windows = [Window.from_row(r) for r in rows]
    one = merged(windows)
    assert one.number == windows[0].number
    assert one.resident_bytes == max(w.resident_bytes for w in windows)
    assert one.seconds == sum(w.seconds for w in windows)
    assert min(w.cpu_cores for w in windows) - 1 <= one.cpu_cores <= max(w.cpu_cores for w in windows) * (1 + 1e-9) + 1


def test_a_report_carries_it_and_one_without_is_read():
    usage = Usage(123.0, [[1, 10.0, 2, 0.5, *([1.0] * (len(NEEDED) - 4)), None]])
    back = json_codec.decode(Usage, json_codec.encode(usage))
    assert back == usage


# ---------------------------------------------------------------- a real program


PROFILE = """
import os, sys, time
for path in sys.argv[1:]: open(path, "w").write(str(os.getpid()))
end = time.monotonic() + 5
while time.monotonic() < end: pass
held = b"x" * (300 << 20)
time.sleep(5)
"""


@pytest.mark.alone
@pytest.mark.real
def test_a_known_profile_is_seen(tmp_path):
    group = JobCgroup.below_own(f"usage-test-{os.getpid()}")
    group.create()
    (tmp_path / "cgroup.json").write_text(json.dumps(group.folders))
    sampler, began = Sampler(tmp_path / "cgroup.json"), time.process_time()
    with subprocess.Popen([sys.executable, "-c", PROFILE, *group.entries()]) as program:
        looked = 0
        while program.poll() is None:
            sampler.look()
            looked += 1
            time.sleep(0.25)
    cost = time.process_time() - began
    told = sampler.told()
    sampler.rest()
    group.remove()
    assert told is not None
    windows = [Window.from_row(r) for r in told.rows]
    used = merged(windows)
    assert 8.0 <= used.seconds <= 13.0
    # Others use the machine, too: the program may get less than a processor, and never more.
    assert 1.0 <= used.cpu_cores * used.seconds <= 6.5
    assert used.cpu_cores_max <= 1.3
    assert 300 * MIB <= used.resident_bytes <= 330 * MIB
    assert used.growth_bytes_per_second >= 100 * MIB
    assert cost < 0.005 * used.seconds, f"{1e3 * cost:.1f} ms for {looked} looks"
