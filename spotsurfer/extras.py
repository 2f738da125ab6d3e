"""Libraries that only some installations have, as extras of this package: what to say where one is absent."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import requires

from spotsurfer.model.errors import HostUnfit

# Top module of a library -> the extra that brings it.
EXTRA_OF = {"boto3": "aws", "botocore": "aws", "google": "gcp", "paramiko": "ssh"}


@contextmanager
def needed_for(what: str) -> Iterator[None]:
    """Around the import of such a library. Raises HostUnfit with the command that installs what is absent."""
    try:
        yield
    except ModuleNotFoundError as e:
        library = (e.name or "").partition(".")[0]
        if library not in EXTRA_OF:
            raise
        extra = EXTRA_OF[library]
        raise HostUnfit(f"{what} needs the extra '{extra}', which is not installed here: {install_command(extra)}") from None


def install_command(extra: str) -> str:
    """What to type on this host, in the environment that runs this program. It names libraries: no index has this package."""
    marked = re.compile(rf"""(.+?)\s*;\s*extra\s*==\s*['"]{re.escape(extra)}['"]""")
    wanted = [m[1] for m in map(marked.fullmatch, requires("spotsurfer") or []) if m is not None]
    return shlex.join([sys.executable, "-m", "pip", "install", *wanted])
