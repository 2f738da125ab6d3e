"""The agent leaves the machine's memory to the job."""

from __future__ import annotations

import gc
import subprocess
import sys
import weakref

import pytest
from spotsurfer_agent.chunks.writer import Writer
from spotsurfer_agent.control.loop import REST_SECONDS as REST
from spotsurfer_agent.save.image_intake import Intake
from spotsurfer_agent.save.memory_reserve import Reserve
from spotsurfer_agent.save.pages import Pages
from spotsurfer_wire.chunks.budget import USUAL
from spotsurfer_wire.crypto import Keys
from support.dict_store import DictStore

from bench.memory import agent

MB = 10**6
AT_REST, IN_WORK, HELPER = 80 * MB, 120 * MB, 25 * MB
SIZE, REST_SECONDS = 512 << 20, REST + 2.0
HEAVY = {"numpy", "obstore", "cryptography", "ssl", "http.client"}


@pytest.mark.real
def test_it_takes_at_most_80_mb_at_rest_and_120_besides_the_image_in_saves_and_restores():
    phases = agent.measured(SIZE, REST_SECONDS)["phases"]
    assert set(phases) >= {"idle", "after more saves", "waiting", "after the restore", "final save"}
    for phase, told in phases.items():
        processes = told["processes"]
        assert processes["agent"].get("own", 0) <= IN_WORK, phase
        if "own" not in processes["agent"]:
            assert processes["agent"]["rss"] <= AT_REST, phase
            assert max(processes[kind]["rss"] for kind in ("shim", "respawner")) <= HELPER, phase


def test_who_only_starts_the_agent_again_loads_none_of_its_libraries():
    code = f"import sys, spotsurfer_agent.__main__; print(*sorted({HEAVY} & set(sys.modules)))"
    loaded = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert loaded.split() == []


def test_a_shim_loads_little():
    """There is one for each job, for as long as the job: it has 25 MB."""
    heavy = HEAVY | {"logging", "concurrent.futures", "hashlib"}
    code = f"import sys, spotsurfer_agent.shim.__main__; print(*sorted({heavy} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.split() == []


@pytest.fixture
def uncollected():
    """Nothing goes but what nobody refers to."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def test_tables_of_a_save_go_with_it(tmp_path, uncollected):
    with Writer(DictStore(), "j1", Keys.derive(b"", "j1"), USUAL, {}) as writer:
        for _ in range(3):
            writer.add(bytes(1 << 20))  # the same: the first one calls the others when it is written
        intake = Intake(tmp_path, Pages(Reserve(0, 1 << 20, 1 << 16), writer, None))
        intake.close()
    kept = [weakref.ref(x) for x in (writer, intake.pages)]
    del writer, intake
    assert [x() for x in kept] == [None, None]
