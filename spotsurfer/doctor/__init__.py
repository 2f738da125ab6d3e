"""What this machine can and can't do, with the remedy for each: a list of checks, each one function."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from spotsurfer.doctor import host, software
from spotsurfer.doctor.finding import Finding, closed, fail, ok
from spotsurfer.settings import Settings

Check = Callable[[Settings], Finding]
CHECKS: Sequence[tuple[str, Check]] = (
    ("system", host.system),
    ("root", host.root),
    ("rights", host.rights),
    ("namespaces", host.namespaces),
    ("control groups", host.control_groups),
    ("loop devices", host.loop_devices),
    ("btrfs", host.btrfs),
    ("tools", host.tools),
    ("memory", host.memory),
    ("disk", host.disk),
    ("clock", host.clock),
    ("runtime", software.runtime),
    ("mirror", software.mirror),
    ("CRIU", software.criu),
    ("provider", software.provider),
    ("store", software.store),
    ("store's owner", software.owner),
    ("controller", software.controller),
)

OF_RUNTIME = frozenset({"runtime", "CRIU"})  # what building the agent's runtime mends
# What a controller needs only where its machines are boxes on its own host.
OF_BOXES = frozenset({"root", "namespaces", "control groups", "loop devices", "btrfs", "tools", "CRIU"})


def examine(settings: Settings, checks: Sequence[tuple[str, Check]] = CHECKS) -> list[Finding]:
    """All findings, in the order of the list; a check that breaks is a finding too."""
    findings = []
    for name, check in checks:
        try:
            far = name in OF_BOXES and settings.provider.name != software.HERE
            found = ok(f"not needed: machines are those of {settings.provider.name}") if far else check(settings)
        except Exception as e:
            found = _broken(e)
        findings.append(replace(found, check=name))
    return findings


def _broken(error: Exception) -> Finding:
    if isinstance(error, PermissionError) and error.filename:
        return closed(error.filename)
    return fail(f"could not be checked: {type(error).__name__}: {error}", "report this")


__all__ = ["CHECKS", "OF_RUNTIME", "Finding", "examine"]
