"""The memory of secrets is never swapped where the kernel promises it; others are not asked, for they complain in their log."""

from __future__ import annotations

import pytest
from spotsurfer_agent.host import launch
from spotsurfer_wire.linux import syscalls


@pytest.mark.parametrize(("version", "asked"), [((6, 1, 0), False), ((6, 3, 9), False), ((6, 4, 0), True), ((6, 12), True)])
def test_a_kernel_is_asked_for_what_it_knows(monkeypatch, tmp_path, version, asked):
    mounted: list[str] = []
    monkeypatch.setattr(syscalls, "kernel_version", lambda: version)
    monkeypatch.setattr(syscalls, "mount", lambda *args, **_: mounted.extend(args[4:]))
    monkeypatch.setattr("os.chown", lambda *_: None)
    launch.mount_secrets(str(tmp_path), {}, 1, 1)
    assert ["noswap" in options for options in mounted] == [asked]
