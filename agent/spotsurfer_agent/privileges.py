"""What the kernel lets a job do beyond its user's rights: nothing, and for root what a root of files and processes needs.

Whatever it starts, no program gains any by a setuid bit or by capabilities of its file (`no_new_privs`), and what is not in the
bounding set is gone for good. CRIU carries all of it in an image. Standard library only: shims use it.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from spotsurfer_agent import linux, procfs

# Of capabilities(7), by number: what changes owners, modes and users, listens on any port, and ends processes. Docker's usual
# set without MKNOD (disks), NET_RAW, AUDIT_WRITE and SETFCAP. None that mounts, loads, traces, or sets up a network.
ROOT = {
    "CHOWN": 0, "DAC_OVERRIDE": 1, "FOWNER": 3, "FSETID": 4, "KILL": 5, "SETGID": 6, "SETUID": 7, "SETPCAP": 8,
    "NET_BIND_SERVICE": 10, "SYS_CHROOT": 18,
}  # fmt: skip


# What the agent itself must have for CRIU; where one is missing, no job can be saved.
NEEDED = {
    "CHOWN": 0, "DAC_OVERRIDE": 1, "DAC_READ_SEARCH": 2, "FOWNER": 3, "KILL": 5, "SETGID": 6, "SETUID": 7, "SETPCAP": 8,
    "NET_ADMIN": 12, "SYS_CHROOT": 18, "SYS_PTRACE": 19, "SYS_ADMIN": 21, "MKNOD": 27,
}  # fmt: skip
# Without SYS_RESOURCE (as in many containers) a job of one user can be saved, and no other: see `launch.lend_identity`.
SECOND_USER = 24


def may(capability: int) -> bool:
    """Whether the calling process has this capability."""
    return bool(int(procfs.status(os.getpid())["CapEff"], 16) >> capability & 1)


def lacking() -> list[str]:
    """Names of what the calling process needs for CRIU and does not have."""
    return [f"CAP_{name}" for name, number in NEEDED.items() if not may(number)]


@dataclass(frozen=True, slots=True)
class Privileges:
    """`capabilities`: that programs may ever have, a bit for each. `gain`: setuid bits and capabilities of files count."""

    capabilities: int = 0
    gain: bool = False

    @staticmethod
    def of_user(uid: int) -> Privileges:
        """With which a job of this user is started."""
        return Privileges(sum(1 << number for number in ROOT.values()) if uid == 0 else 0)

    @staticmethod
    def of_process(pid: int) -> Privileges:
        """With which a process runs: a job that an earlier agent started has more. Raises OSError."""
        status = procfs.status(pid)
        return Privileges(int(status["CapBnd"], 16), status.get("NoNewPrivs") == "0")

    def take(self) -> None:
        """The calling process has them from its next exec on. It must be root, and may change its user before that.

        Raises OSError.
        """
        linux.bound_capabilities(self.capabilities)
        if not self.gain:
            linux.no_new_privileges()
