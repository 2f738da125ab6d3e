"""Memory of the agent's processes while a job runs, is saved and is restored: real agent, real CRIU.

`python -m bench.memory.agent` prints one JSON object, sizes in bytes. Needs root and the agent's runtime; takes four minutes.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

from support.minibox import minibox

from bench.machine import WORK, build_job, huge_pages_now

SIZE_MB = 1024
IDLE_SECONDS = 30.0
SCENE_SECONDS = 600.0
MODULE = "bench.memory.machine"


def measured(size: int, rest: float) -> dict[str, Any]:
    """Two machines one after the other: saves of a job with so much memory, then its restore. Bytes by phase."""
    phases: dict[str, Any] = {}
    program = build_job()
    with tempfile.TemporaryDirectory(prefix="memory-", dir=WORK) as at:
        for scene, words in (("saves", (size, rest)), ("restore", (rest,))):
            folder = Path(at, scene)
            with minibox(folder, Path(at, "store"), disk_bytes=size + (4 << 30), module=MODULE) as machine:
                shutil.copy(program, folder / "job")
                machine.run(scene, *words, timeout_seconds=SCENE_SECONDS)
                phases |= json.loads((folder / "figures.json").read_text())
    return {"size": size, "rest_seconds": rest, "huge_pages": huge_pages_now(), "phases": phases}


def main() -> None:
    """See `--help`."""
    parser = argparse.ArgumentParser(prog="python -m bench.memory.agent", description=__doc__)
    parser.add_argument("--size-mb", type=int, default=SIZE_MB, help="memory of the job (default %(default)s)")
    parser.add_argument("--rest-seconds", type=float, default=IDLE_SECONDS, help="before each look (default %(default)s)")
    options = parser.parse_args()
    print(json.dumps(measured(options.size_mb << 20, options.rest_seconds), indent=1))


if __name__ == "__main__":
    main()
