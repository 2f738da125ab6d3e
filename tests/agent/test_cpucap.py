"""The cap on what programs choose of a processor: that it takes hold, and that facts are compared by it."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

import pytest
from spotsurfer_agent.restore import compatibility

LOADER = Path("/lib64/ld-linux-x86-64.so.2")
FLAGS = set(next(x for x in Path("/proc/cpuinfo").read_text().splitlines() if x.startswith("flags")).split(":")[1].split())
HERE = {"machine": "x86_64", "cpu registers": "fpu sse avx"}
NEW = "aes avx avx2 avx512f bmi1 gfni sha_ni sse2"


@pytest.mark.parametrize(("cpu", "highest"), [("any", 4), ("x86-64-v3", 3), ("portable", 3), ("x86-64-v2", 2)])
def test_the_c_library_obeys(cpu, highest):
    """The loader says which levels it would take libraries of: with the cap none above it, below it all that it had."""
    environment = {**os.environ, **compatibility.cpu_cap_environment(cpu)}
    told = subprocess.run([LOADER, "--help"], env=environment, capture_output=True, text=True, check=True).stdout
    taken = {int(x.split()[0][-1]) for x in told.splitlines() if "x86-64-v" in x and "supported" in x}
    has = {level for level, flag in ((2, "sse4_2"), (3, "avx2"), (4, "avx512vl")) if flag in FLAGS}
    assert taken == {level for level in has if level <= highest}


@pytest.mark.parametrize(
    ("cap", "theirs", "ours", "told"),
    [
        ("", NEW, NEW, None),
        ("", NEW, "aes avx avx2 bmi1 sse2", "avx512f gfni sha_ni"),
        ("x86-64-v3", NEW, "aes avx avx2 bmi1 sse2", None),
        ("x86-64-v3", NEW, "aes avx bmi1 sse2", "avx2"),
        ("x86-64-v2", NEW, "aes sse2", None),
        ("x86-64-v2", NEW, "sse2", "aes"),
        ("another", NEW, "sse2", "avx"),
    ],
)
def test_only_what_the_cap_leaves_is_compared(cap, theirs, ours, told):
    image = {**HERE, "cpu instructions": theirs, **({"cpu cap": cap} if cap else {})}
    why = compatibility.refusal(image, {**HERE, "cpu instructions": ours})
    assert (why is None) == (told is None), why
    if told is not None:
        assert why is not None
        assert told in why


def test_registers_count_whatever_the_cap():
    image = {**HERE, "cpu registers": "fpu sse avx avx512f", "cpu instructions": "sse2", "cpu cap": "x86-64-v3"}
    assert "cpu registers" in (compatibility.refusal(image, {**HERE, "cpu instructions": "sse2"}) or "")


def _until_there(*pids: int) -> None:
    """Popen returns a moment before the kernel shows a new program's environment."""
    end = time.monotonic() + 10
    while not all(Path(f"/proc/{pid}/environ").read_bytes() for pid in pids):
        assert time.monotonic() < end
        time.sleep(0.005)


def test_the_cap_is_recorded_where_every_process_has_it():
    capped = {**os.environ, **compatibility.cpu_cap_environment("portable")}
    with subprocess.Popen(["sleep", "100"], env=capped) as one, subprocess.Popen(["sleep", "100"]) as other:
        try:
            _until_there(one.pid, other.pid)
            assert compatibility.files([one.pid], "/x")["cpu cap"] == "x86-64-v3"
            assert "cpu cap" not in compatibility.files([one.pid, other.pid], "/x")
        finally:
            one.kill()
            other.kill()


def test_a_user_who_sets_a_switch_otherwise_has_no_cap():
    given = {**compatibility.cpu_cap_environment("portable"), "OPENBLAS_CORETYPE": "SkylakeX"}
    assert compatibility.in_force(given) == ""
    assert compatibility.in_force(compatibility.cpu_cap_environment("x86-64-v2")) == "x86-64-v2"
