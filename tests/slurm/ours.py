"""Our programs, installed into a folder, that ask a played controller and share all files with its jobs."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from spotsurfer.slurm.programs import PROGRAMS

TEXT = """#!{python}
import os, sys
from spotsurfer.ports.clock import SystemClock
from spotsurfer.slurm.programs import folder, run
from spotsurfer.slurm.site import Site
from spotsurfer.web.client import connect
now = SystemClock().now().astimezone()
sys.exit(run({program!r}, sys.argv[1:], Site(connect, now, os.environ, folder(), {{"main": "spot-first"}})))
"""


def programs(folder: Path, socket: Path) -> dict[str, str]:
    """Write them; the environment that leads to them and to the controller on `socket`."""
    folder.mkdir()
    for program in PROGRAMS:
        path = folder / program
        path.write_text(TEXT.format(python=sys.executable, program=program))
        path.chmod(0o755)
    return {"PATH": f"{folder}:{os.environ['PATH']}", "SPOTSURFER_URL": str(socket)}
