"""`python -m support.killed_fetch BASE CACHE N SOURCE…`: fetch, and die by SIGKILL before the N-th change of the disk."""

from __future__ import annotations

import functools
import itertools
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from spotsurfer_agent.prepare.inputs import download
from spotsurfer_agent.prepare.inputs.cache import Cache
from spotsurfer_agent.prepare.inputs.delivery import Delivery
from spotsurfer_agent.prepare.inputs.sources import Sources
from spotsurfer_wire.messages import Fetch, Spec
from spotsurfer_wire.store.obstore import open_store

OF_OS = ("pwrite", "ftruncate", "fchmod", "utime", "link", "posix_fallocate")
OF_PATH = ("replace", "write_text", "touch", "unlink", "symlink_to", "mkdir")


def deadly(doomed: int) -> None:
    """From now on each change of the disk is counted."""
    count = itertools.count(1)

    def counting(change: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(change)
        def counted(*args: Any, **named: Any) -> Any:
            if next(count) == doomed:
                os.kill(os.getpid(), signal.SIGKILL)
            return change(*args, **named)

        return counted

    for where, names in ((os, OF_OS), (Path, OF_PATH)):
        for name in names:
            setattr(where, name, counting(getattr(where, name)))


def main(base: str, cache: str, doomed: str, *sources: str) -> None:
    """Exit status 0: it ended before it came to that."""
    download.PART_BYTES = 1 << 20
    store = open_store("file://" + base + "/store")
    inputs = Delivery(Path(base), Cache(Path(cache)), Sources())
    deadly(int(doomed))
    inputs.ready(Spec("j", ["x"], fetches=[Fetch(s) for s in sources]), store)


if __name__ == "__main__":
    main(*sys.argv[1:])
