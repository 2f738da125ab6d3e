"""A machine of namespaces on this host: its own disk in memory, processes, network; the store is a folder of all."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TREE = Path(__file__).resolve().parents[2]
# The tree may lie below /tmp, which is empty in the machine. On cgroup2 the machine gets a group beside ours: an agent moves
# all processes of its own group into a leaf, and can't see those outside.
SET_UP = """
set -e
mount --make-rprivate /
mount -t proc proc /proc
at=/sys/fs/cgroup$(sed -n 's/^0:://p' /proc/self/cgroup)
beside=${{at%/*}}/bench-gpu-{name}
if [ -f "${{at%/*}}/cgroup.procs" ] && mkdir "$beside"; then echo 0 > "$beside/cgroup.procs"; fi
{runtime}/bin/ip link set lo up
mount -t tmpfs base /var/lib/spotsurfer
mount -t tmpfs run /run
mkdir /run/store /run/share /run/tree
mount --bind {tree} /run/tree
mount --bind {store} /run/store
mount --bind {share} /run/share
mount -t tmpfs tmp /tmp
[ -e {tree}/bench ] || {{ mkdir -p {tree}; mount --bind /run/tree {tree}; }}
cd /run/share
exec {runtime}/bin/spotsurfer-python -c "{start}" "$@"
"""
START = (
    "import runpy, sys; sys.path[:0] = ['{tree}/wire', '{tree}/agent', '{tree}/tests', '{tree}']; "
    "runpy.run_module('{module}', run_name='__main__', alter_sys=True)"
)


def command(runtime: Path, store: Path, share: Path, module: str, *words: str) -> list[str]:
    """Starts one that runs a module of this tree with these words, and is gone when that ends."""
    start = START.format(tree=TREE, module=module)
    text = SET_UP.format(name=uuid.uuid4().hex[:8], runtime=runtime, store=store, share=share, tree=TREE, start=start)
    apart = ["unshare", "--pid", "--fork", "--mount", "--net", "--ipc", "--uts", "--kill-child"]
    return [*apart, "bash", "-c", text, "-", *words]


@dataclass(frozen=True, slots=True)
class Place:
    """Where machines are made: the runtime, the folder of store and share, seconds for one, whether to tell how it goes."""

    runtime: Path
    work: Path
    limit: float = 300.0
    verbose: bool = False


def played(place: Place, name: str, module: str, *words: str) -> dict[str, Any]:
    """The figures of one machine, which is gone when this returns. Raises RuntimeError, subprocess.TimeoutExpired."""
    share = place.work / "share"
    shutil.rmtree(share, ignore_errors=True)
    share.mkdir(parents=True)
    environment = {**os.environ, "SPOTSURFER_PREFIX": str(place.runtime / "prefix")}
    argv = command(place.runtime, place.work / "store", share, module, *words)
    done = subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=place.limit, check=False)
    progress = share / "progress"
    if progress.exists() and place.verbose:
        print("".join(f"  {name}: {x}\n" for x in progress.read_text().splitlines()), end="", flush=True)
    if done.returncode:
        raise RuntimeError(f"{name} ended with {done.returncode}: {done.stdout[-500:]} {done.stderr[-1500:]}")
    return dict(json.loads((share / "figures.json").read_text()))
