"""The agent's runtime that the settings name: found, or built there."""

from __future__ import annotations

import os
from collections.abc import Callable

from spotsurfer import privacy
from spotsurfer.model.errors import DISK_FULL, DiskFull, HostUnfit
from spotsurfer.runtime import Runtime, build, find
from spotsurfer.settings import Settings


def ready(settings: Settings, say: Callable[[str], None]) -> Runtime:
    """The runtime of the installed agent. Where it is absent or of another version it is built, which `say` is told about.

    Building takes a minute or two and a network. Raises RuntimeBuildError, HostUnfit, DiskFull.
    """
    out = settings.runtime_dir
    try:
        found = find(out)
        if found is not None:
            return found
        if settings.controller.data_dir in out.parents:  # whoever makes it first, it is its owner's alone
            privacy.make(settings.controller.data_dir)
        say(f"build the agent's runtime in {out}, once for each version: a minute or two, 100 MiB to fetch")
        return build(out, mirror=settings.runtime.mirror, say=say)
    except OSError as e:
        if e.errno in DISK_FULL:
            raise DiskFull(f"{out}: no space left for the agent's runtime; free some, or set [runtime] path elsewhere") from e
        raise HostUnfit(
            f"the agent's runtime can't be kept in {out}: {e.strerror or e}; set [runtime] path to a folder that "
            f"user {os.geteuid()} may write"
        ) from e
