"""The memory in which a job finds those of its secrets that are files. Standard library only: shims use it."""

from __future__ import annotations

import os
from collections.abc import Mapping

from spotsurfer_agent import kernelversion, linux

SIZE_BYTES = 4 << 20  # more than a job may be given, as each file takes whole pages
_OPTIONS = f"mode=0700,size={SIZE_BYTES}"
_NO_SWAP = (6, 4)  # Linux before makes no such promise, and logs that it does not know the word
_FLAGS = linux.MS_NOSUID | linux.MS_NODEV | linux.MS_NOEXEC


def mount(target: str, files: Mapping[str, bytes], uid: int, gid: int) -> None:
    """Put them there, readable by their owner alone and writable by nobody. Raises OSError."""
    never = ",noswap" if kernelversion.version() >= _NO_SWAP else ""
    linux.mount("tmpfs", target, "tmpfs", _FLAGS, _OPTIONS + never)
    for name, value in files.items():
        fd = os.open(f"{target}/{name}", os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o400)
        with os.fdopen(fd, "wb") as file:
            file.write(value)
            os.fchown(file.fileno(), uid, gid)
    os.chown(target, uid, gid)
    linux.mount("", target, flags=linux.MS_REMOUNT | linux.MS_RDONLY | _FLAGS)
