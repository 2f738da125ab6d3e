"""The keeper of a machine: one slot after the other, each a world of its own, and nothing of it is left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from spotsurfer_agent.slots import keeper
from spotsurfer_wire import json_codec
from spotsurfer_wire.linux import memory
from spotsurfer_wire.messages import AgentConfig
from spotsurfer_wire.oom_freeze_levels import AGENT_BYTES

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="makes namespaces")
CONFIG = AgentConfig(
    "first",
    1,
    "memory:///",
    {"access_key_id": "of-the-first"},
    key="aa",
    machine="token",
    machine_options={"access_key_id": "own"},
)
KEEP = """
import sys
from pathlib import Path
from spotsurfer_agent.slots.keeper import Keeper, MachineWays
from spotsurfer_wire import json_codec
from spotsurfer_wire.messages import AgentConfig
base = Path(sys.argv[1])
config = json_codec.decode(AgentConfig, (base / "agent.json").read_bytes())
ways = MachineWays(lambda: (base / "off").touch(), lambda slot: None)
sys.exit(Keeper(base, config, ["/bin/sh", str(base / "runtime" / "work")], ways).run())
"""


@dataclass
class Machine:
    """A keeper that runs `script` as process 1 of each slot; `$1` is the slot's number."""

    base: Path
    process: subprocess.Popen[bytes]

    def wait(self, good: Callable[[], object]) -> None:
        end = time.monotonic() + 20
        while not good():
            assert time.monotonic() < end, (self.base / "log").read_text()
            time.sleep(0.02)

    def file(self, name: str) -> str:
        path = self.base / "runtime" / name
        self.wait(path.exists)
        return path.read_text()


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Callable[[str], Machine]]:
    made: list[Machine] = []

    def start(script: str) -> Machine:
        (tmp_path / "runtime").mkdir()
        (tmp_path / "runtime" / "work").write_text(script)
        (tmp_path / "agent.json").write_bytes(json_codec.encode(CONFIG))
        with (tmp_path / "log").open("wb") as log:
            words = [sys.executable, "-c", KEEP, str(tmp_path)]
            made.append(Machine(tmp_path, subprocess.Popen(words, stderr=log, start_new_session=True)))
        return made[0]

    yield start
    for one in made:
        os.killpg(one.process.pid, signal.SIGKILL)  # those outside of slots: process 1 of a slot dies with its parent
        one.process.wait(20)
        for number in range(5):
            keeper.remove_groups(keeper.groups_of(number))


def test_a_hostile_job_leaves_no_process_no_file_no_mount_and_no_group(machine: Callable[[str], Machine]) -> None:
    """It daemonizes, mounts, hides a group below its own and makes a folder that others can't enter."""
    hostile = """
        base=$(dirname $(dirname $0))
        if [ $1 = 0 ]; then
            setsid sh -c 'trap "" TERM HUP; while :; do echo alive >$0/runtime/alive; sleep 0.05; done' $base &
            mount -t tmpfs none $base/mnt 2>/dev/null || { mkdir $base/mnt; mount -t tmpfs none $base/mnt; }
            mkdir -m 0 $base/locked; echo secret >$base/locked/file
            for g in /sys/fs/cgroup /sys/fs/cgroup/freezer; do
                p=$g$(sed -n 's/^0:://p; s/^[0-9]*:freezer://p' /proc/self/cgroup | head -1); mkdir $p/hidden 2>/dev/null
            done
            sleep 0.5; exit 0
        fi
        sleep 2; rm -f $base/runtime/alive; sleep 0.5
        { ls $base; cat $base/machine.json; ps ax 2>/dev/null | wc -l; ls /proc | grep -c '^[0-9]'; } >$base/runtime/seen.new
        mv $base/runtime/seen.new $base/runtime/seen; exec sleep 1000
    """
    world = machine(hostile)
    seen = world.file("seen")
    assert "locked" not in seen and "mnt" not in seen and "of-the-first" not in seen and '"aa"' not in seen
    assert not (world.base / "runtime" / "alive").exists(), "a process of the first job outlived its slot"
    assert [p.name for p in (world.base / "slots").iterdir()] == ["1"]
    assert str(world.base) not in Path("/proc/self/mountinfo").read_text()
    assert "of-the-first" not in (world.base / "agent.json").read_text()
    assert not (world.base / "off").exists()
    groups = [g for top in ("/sys/fs/cgroup",) for g in Path(top).rglob("spotsurfer-slot-0")]
    assert groups == []


def test_those_that_are_there_divide_the_memory(machine: Callable[[str], Machine]) -> None:
    """By what they asked for; who is alone has all of it again."""
    asks = json_codec.encode(replace(CONFIG, memory_bytes=(1 << 30) - AGENT_BYTES)).decode()
    alone, whole = json_codec.encode(replace(CONFIG, memory_bytes=(3 << 30) - AGENT_BYTES)).decode(), memory.whole_bytes()
    parts = f"""
        base=$(dirname $(dirname $0)); part() {{ cat $base/memory 2>/dev/null; }}
        until_it_is() {{ while [ "$(part)" != $1 ]; do sleep 0.05; done; echo $1 >>$base/runtime/of-$2; }}
        if [ $1 = 0 ]; then echo '{alone}' >$base/agent.json; until_it_is {whole} 0; until_it_is {whole * 3 // 4} 0; exit 0; fi
        if [ $1 = 1 ]; then sleep 0.5; echo '{asks}' >$base/agent.json; until_it_is {whole // 4} 1; until_it_is {whole} 1; fi
        exec sleep 1000
    """
    world = machine(parts)
    world.wait(lambda: world.file("of-1").split() == [str(whole // 4), str(whole)])
    assert world.file("of-0").split() == [str(whole), str(whole * 3 // 4)]


def test_an_agent_that_can_not_be_kept_waiting_ends_the_machine(
    machine: Callable[[str], Machine], monkeypatch: pytest.MonkeyPatch
) -> None:
    world = machine("[ $1 = 0 ] && sleep 1000; exit 1")
    world.wait((world.base / "off").exists)
    assert world.process.wait(20) == 1


def test_a_slot_without_an_order_gives_way_to_the_next(machine: Callable[[str], Machine]) -> None:
    world = machine("echo $1 >>$(dirname $0)/began; [ $1 = 3 ] && exec sleep 1000; exit 0")
    world.wait(lambda: world.file("began").split()[-1] == "3")
    assert world.file("began").split() == ["0", "1", "2", "3"]


def test_what_is_left_of_a_configuration_is_nothing_of_a_job() -> None:
    left = keeper.of_machine(CONFIG)
    assert (left.job, left.key, left.store_options, left.machine) == ("", "", {"access_key_id": "own"}, "token")
