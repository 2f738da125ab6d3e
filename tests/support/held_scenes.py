"""Scenes on a minibox in which programs hold things: what we say of them, and what CRIU does. See `held_things`."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

from spotsurfer_agent.criu.command import GHOST_MEGABYTES
from spotsurfer_agent.host.tools import Tools
from spotsurfer_agent.save import blockers
from spotsurfer_agent.save.blockers import Job
from support.held_things import THINGS, Lacking, start

BASE = "/var/lib/spotsurfer"


def all_things() -> None:
    """One JSON object: name -> (sentences, whether CRIU dumped it)."""
    criu = Tools.find(Path(os.environ["SPOTSURFER_PREFIX"])).criu
    found = {}
    for thing in THINGS:
        try:
            p = start(thing.code)
        except Lacking:
            continue
        try:
            told = blockers.findings(Job(tree(p.pid), BASE, root=p.pid))
            found[thing.name] = (told, dumps(criu, p.pid))
        finally:
            for pid in tree(p.pid):  # some are in groups of their own
                os.kill(pid, signal.SIGKILL)
            p.communicate()
    print(json.dumps(found))


def tree(root: int) -> list[int]:
    children = Path(f"/proc/{root}/task/{root}/children").read_text().split()
    return [root, *(x for c in children for x in tree(int(c)))]


def dumps(criu: tuple[str, ...], pid: int) -> bool:
    """Whether CRIU dumps it; with the flags of the engine, as far as they concern what a program holds."""
    where = Path("/tmp/images")
    shutil.rmtree(where, ignore_errors=True)
    (where / "plugins").mkdir(parents=True)
    done = subprocess.run(
        [*criu, "dump", "--tree", str(pid), "--images-dir", str(where), "--log-file", "dump.log", "--leave-running",
         "--libdir", str(where / "plugins"), "--manage-cgroups=ignore", "--tcp-established", "--skip-in-flight",
         "--network-lock", "skip", "--file-locks", "--ext-unix-sk", "--link-remap",
         "--ghost-limit", f"{GHOST_MEGABYTES}M", "--force-irmap", "--cpu-cap=none", "--timeout", "5", "-v4"],
        capture_output=True, check=False, timeout=60,
    )  # fmt: skip
    if done.returncode and os.environ.get("TELL"):
        log = (where / "dump.log").read_text(errors="replace")
        print("\n".join([x for x in log.splitlines() if "Error" in x][:3]), file=sys.stderr)
    return done.returncode == 0


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
