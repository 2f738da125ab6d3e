"""Processes that have to outlive the agent, on machines where systemd runs everything.

What a unit started is killed with it; a job must not be. So its shim is started through `systemd-run --scope`, which makes a
scope beside the agent's unit and becomes the shim. The job's control groups lie below the shim's own, and so does whatever
joins them. Elsewhere (a box, a container, another init) a child of the agent outlives it anyway.
"""

from __future__ import annotations

import secrets
import shutil
from pathlib import Path

SLICE = "spotsurfer.slice"


def prefix(what: str, process_1: Path = Path("/proc/1/comm")) -> list[str]:
    """Words to put before a command so that it outlives the agent's unit; none where nothing is needed.

    Process 1 is asked, not a folder of systemd's: a box or a container may see that of its host.
    """
    program = shutil.which("systemd-run")
    if program is None or process_1.read_text().strip() != "systemd":
        return []
    name = f"spotsurfer-{what}-{secrets.token_hex(4)}.scope"
    own = ["--property=Delegate=yes", "--property=TasksMax=infinity", f"--slice={SLICE}", f"--unit={name}"]
    return [program, "--scope", "--quiet", "--collect", *own, "--"]
