"""A machine of namespaces on this host: its own disk in memory, processes, network; the store is a folder of all."""

from __future__ import annotations

from pathlib import Path

TREE = Path(__file__).resolve().parents[2]
# The tree may lie below /tmp, which is empty in the machine.
SET_UP = """
set -e
mount --make-rprivate /
mount -t proc proc /proc
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
    "import runpy, sys; sys.path[:0] = ['{tree}/agent', '{tree}/tests', '{tree}']; "
    "runpy.run_module('{module}', run_name='__main__', alter_sys=True)"
)


def command(runtime: Path, store: Path, share: Path, module: str, *words: str) -> list[str]:
    """Starts one that runs a module of this tree with these words, and is gone when that ends."""
    start = START.format(tree=TREE, module=module)
    text = SET_UP.format(runtime=runtime, store=store, share=share, tree=TREE, start=start)
    apart = ["unshare", "--pid", "--fork", "--mount", "--net", "--ipc", "--uts", "--kill-child"]
    return [*apart, "bash", "-c", text, "-", *words]
