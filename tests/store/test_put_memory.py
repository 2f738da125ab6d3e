"""Memory of a process that sends large files to the store: a few parts at a time, and all of it is given back."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from spotsurfer.cli.commands import serve_and_doctor
from spotsurfer.model.errors import HostUnfit

MIB = 1 << 20
FILE_BYTES = 256 * MIB
PROGRAM = """
import json, sys
from pathlib import Path
from spotsurfer_wire.linux.memory import return_memory
from spotsurfer_wire.store.obstore import open_store

def status():
    lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines() if ":" in line)
    return [int(lines[key].split()[0]) << 10 for key in ("VmRSS", "VmHWM")]

return_memory()
store = open_store(Path(sys.argv[1]).as_uri())
store.put_file("warm/up", Path(sys.argv[3]))
before = status()
store.put_file("runtime/large", Path(sys.argv[2]))
print(json.dumps([before, status()]))
"""


def test_a_large_file_is_never_held_whole(tmp_path: Path) -> None:
    large, small = tmp_path / "large", tmp_path / "small"
    large.touch()
    os.truncate(large, FILE_BYTES)
    small.write_bytes(bytes(8 * MIB))
    words = [sys.executable, "-c", PROGRAM, str(tmp_path / "store"), str(large), str(small)]
    done = subprocess.run(words, capture_output=True, text=True, check=True, timeout=120)
    (resident, _), (resident_after, peak_after) = json.loads(done.stdout)
    assert peak_after - resident < 24 * MIB, f"{(peak_after - resident) / MIB:.0f} MiB more at most"
    assert resident_after - resident < 8 * MIB, f"{(resident_after - resident) / MIB:.0f} MiB are kept"


def test_a_controller_gives_memory_back_from_its_beginning(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []

    def build(_: object) -> None:
        done.append("built")
        raise HostUnfit("that is enough")

    monkeypatch.setattr("spotsurfer_wire.linux.memory.return_memory", lambda: done.append("memory"))
    monkeypatch.setattr("spotsurfer.common.log_setup.set_up", lambda *_: None)
    monkeypatch.setattr("spotsurfer.controller.wiring.build", build)
    with pytest.raises(HostUnfit):
        serve_and_doctor.serve()
    assert done == ["memory", "built"]
