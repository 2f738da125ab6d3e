"""What one job's processes get of its secrets: variables of their environment, and files in a memory of their own.

The files lie in a tmpfs of the job's own mount namespace, made anew at each start and before each restore and gone with its
last process: never on a disk, never in an image (a mount that is not the job's own is not dumped), the same everywhere.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from spotsurfer_agent import linux, sealed
from spotsurfer_agent.chunks.keys import Keys
from spotsurfer_agent.protocol import Spec
from spotsurfer_agent.store import ObjectStore

FOLDER = "/run/secrets"
SIZE_BYTES = 4 * sealed.BYTES_MAX  # a page at least a file
_OPTIONS = f"mode=0700,size={SIZE_BYTES}"
_FLAGS = linux.MS_NOSUID | linux.MS_NODEV | linux.MS_NOEXEC


@dataclass(frozen=True, slots=True)
class Bag:
    """The secrets of one job, opened. Never printed."""

    environment: dict[str, str] = field(default_factory=dict, repr=False)
    files: dict[str, bytes] = field(default_factory=dict, repr=False)


def fetch(store: ObjectStore, keys: Keys, spec: Spec) -> Bag:
    """Those that the specification names. Raises sealed.SecretsLost where one is missing, StoreError."""
    if not spec.secrets:
        return Bag()
    found = sealed.fetch(store, keys, spec.job)
    for name in spec.secrets:
        if name not in found:
            raise sealed.SecretsLost(f"the secret {name} of {spec.job} is not in the store: submit the job again")
    bag = Bag()
    for name, form in spec.secrets.items():
        if form == sealed.FILE:
            bag.files[name] = found[name]
        else:
            bag.environment[name] = os.fsdecode(found[name])
    return bag


def mount(target: str, files: Mapping[str, bytes], uid: int, gid: int) -> None:
    """Put them there, readable by their owner alone and writable by nobody. Raises OSError."""
    try:
        linux.mount("tmpfs", target, "tmpfs", _FLAGS, _OPTIONS + ",noswap")
    except OSError:  # before Linux 6.4 there is no such promise
        linux.mount("tmpfs", target, "tmpfs", _FLAGS, _OPTIONS)
    for name, value in files.items():
        path = Path(target, name)
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o400)
        with os.fdopen(fd, "wb") as file:
            file.write(value)
            os.fchown(file.fileno(), uid, gid)
    os.chown(target, uid, gid)
    linux.mount("", target, flags=linux.MS_REMOUNT | linux.MS_RDONLY | _FLAGS)
