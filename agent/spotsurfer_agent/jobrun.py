"""The /run of a job with the machine's root: nothing of the machine's but how names are looked up. What listens there is out of
its reach.

Memory that nobody can write to, made anew on each machine. Standard library only: shims use it.
"""

from __future__ import annotations

import os
from pathlib import Path

from spotsurfer_agent import linux

RUN = "/run"
RESOLVER = "/etc/resolv.conf"
_RESOLVED = "/run/systemd/resolve/resolv.conf"  # of a machine that asks one of its own: where that asks
_FLAGS = linux.MS_NOSUID | linux.MS_NODEV | linux.MS_NOEXEC


def mount(target: str, folders: tuple[str, ...]) -> None:
    """Make it at the folder `target`, with these empty folders in it. Raises OSError."""
    linux.mount("tmpfs", target, "tmpfs", _FLAGS, "mode=0755,size=1m")
    for name in folders:
        _folder(Path(target, name))
    real = os.path.realpath(RESOLVER)
    if real.startswith(f"{RUN}/"):
        path = Path(target + real.removeprefix(RUN))
        _folder(path.parent)
        path.write_text(resolver())
        path.chmod(0o644)
    linux.mount("", target, flags=linux.MS_REMOUNT | linux.MS_RDONLY | _FLAGS)


def resolver() -> str:
    """The machine's name servers; a job asks them from a network of its own, so those on the machine itself are no use."""
    for name in (RESOLVER, _RESOLVED):
        try:
            lines = Path(name).read_text(errors="replace").splitlines()
        except OSError:
            continue
        kept = [x for x in lines if x.split()[:1] != ["nameserver"] or not x.split()[-1].startswith(("127.", "::1"))]
        if any(x.split()[:1] == ["nameserver"] for x in kept):
            return "".join(f"{x}\n" for x in kept)
    return ""


def _folder(path: Path) -> None:
    if not path.is_dir():
        _folder(path.parent)
        path.mkdir()
        path.chmod(0o755)
