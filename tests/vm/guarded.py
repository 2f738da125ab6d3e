"""A job under systemd on control groups v2: what it uses, its near miss, a kill for memory. In the guest, as its root.

No minibox: the shim is to be in a scope of systemd, beside which the job's group is guarded.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from spotsurfer_agent.engines import job_host
from spotsurfer_agent.host.usage import Meters
from spotsurfer_agent.shim import client
from spotsurfer_wire.linux import cgroups
from spotsurfer_wire.linux.cgroups import UNIFIED
from spotsurfer_wire.oom_freeze_levels import Levels
from support.engine_kit import BASE, CriuEngine, W, engine, until
from support.memory_scenes import SIZE, SMALL, begin, grower
from support.patience import FACTOR
from support.runtime import unpacked_runtime

KILLED_AT = 400 << 20


def begun(e: CriuEngine, machine: int) -> Path:
    """A job that takes memory runs, guarded as on a machine with so many bytes; its group."""
    client.memory.whole_bytes = lambda: machine
    begin(e, grower(SIZE))
    group = e.shim.cgroup()
    folder = Path(group.folders[UNIFIED])
    shim = e.shim._shim
    assert shim is not None
    place = Path(f"/proc/{shim.pid}/cgroup").read_text().strip()
    assert place == f"0::/{(folder.parent / cgroups.LEAF).relative_to('/sys/fs/cgroup')}"
    assert folder.parent.name.endswith(".scope")
    assert int((folder / "memory.high").read_text()) // 4096 == Levels.of(machine).press // 4096
    assert Meters(group.folders).sample() is not None
    return folder


def ended(e: CriuEngine, folder: Path) -> None:
    """Nothing is left of it, its scope included."""
    e.kill()
    until(lambda: not folder.parent.exists())


def main() -> None:
    os.environ["SPOTSURFER_PREFIX"] = str(unpacked_runtime() / "prefix")
    client.SHIM_START_SECONDS *= FACTOR
    for folder in (Path("/run/store"), BASE):
        folder.mkdir(parents=True, exist_ok=True)
    e = engine()
    assert e.preflight() == []

    folder = begun(e, SMALL)
    until(lambda: (m := e.status().near_miss) is not None and m.stop_seconds > 0, 60.0)
    miss = e.status().near_miss
    assert miss is not None
    assert 0.98 * miss.limit_bytes <= miss.used_bytes < SMALL
    assert "frozen 1" in (folder / "cgroup.events").read_text()
    print(f"near miss: {miss.used_bytes - miss.limit_bytes} bytes above the level, still after {miss.stop_seconds:.2f} s")
    ended(e, folder)

    folder = begun(e, 64 << 30)
    (folder / "memory.max").write_text(str(KILLED_AT))
    until(lambda: e.status().state is not W.RUNNING, 60.0)
    status = e.status()
    assert (status.state, status.lost_because) == (W.LOST, job_host.KILLED), status
    assert status.near_miss is not None
    assert (status.near_miss.killed, status.near_miss.used_bytes) == (True, KILLED_AT)
    print("a kill for memory is no end of the command")
    ended(e, folder)


if __name__ == "__main__":
    sys.exit(main())
