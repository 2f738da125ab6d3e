"""What a process may after it was told that it may no more; without root, so its bounding set stays."""

from __future__ import annotations

import os

import pytest
from spotsurfer_agent.host.launch import ROOT, Privileges
from spotsurfer_wire.linux import procfs

FORBIDDEN = {
    "DAC_READ_SEARCH": 2, "NET_ADMIN": 12, "NET_RAW": 13, "SYS_MODULE": 16, "SYS_RAWIO": 17, "SYS_PTRACE": 19, "SYS_ADMIN": 21,
    "SYS_BOOT": 22, "SYS_RESOURCE": 24, "MKNOD": 27, "BPF": 39, "CHECKPOINT_RESTORE": 40,
}  # fmt: skip


@pytest.mark.parametrize("gain", [False, True])
def test_a_process_that_took_them_has_them(gain: bool) -> None:
    held = Privileges.of_process(os.getpid())
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            Privileges(held.capabilities, gain).take()
            found = Privileges.of_process(os.getpid())
            inherits = int(procfs.status(os.getpid())["CapInh"], 16)
            os.write(write, f"{found.capabilities == held.capabilities} {found.gain} {inherits}".encode())
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read) as told:
        assert told.read() == f"True {gain and held.gain} 0"
    os.waitpid(child, 0)


def test_only_root_has_capabilities_and_none_of_the_machines() -> None:
    assert [Privileges.of_user(uid).capabilities for uid in (1, 1000, 65534)] == [0, 0, 0]
    mask = Privileges.of_user(0).capabilities
    assert {name for name, number in (ROOT | FORBIDDEN).items() if mask >> number & 1} == set(ROOT)
    assert not Privileges.of_user(0).gain
