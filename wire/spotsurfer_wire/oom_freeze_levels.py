"""The memory levels at which a job is frozen, before the kernel's out-of-memory killer strikes."""

from __future__ import annotations

from dataclasses import dataclass

PRESS_SHARE = 0.95  # of the machine's memory


RESERVE_BYTES, RESERVE_SHARE = 320 << 20, 0.3125  # for agent and CRIU while the job is saved; on a small machine this share


WALL_SHARE = 0.02  # of the machine's memory above the press


TRUE_SHARE = 0.99  # of the press: the kernel's figures are some pages late


@dataclass(frozen=True, slots=True)
class Levels:
    """Bytes."""

    machine: int
    press: int
    wall: int

    @staticmethod
    def of(machine: int) -> Levels:
        """For a machine, or control group, with so much memory."""
        reserve = min(RESERVE_BYTES, int(machine * RESERVE_SHARE))
        press = min(int(machine * PRESS_SHARE), machine - reserve)
        return Levels(machine, press, press + int(machine * WALL_SHARE))


def pressed_at(machine: int) -> int:
    """At how many used bytes the guard freezes the job, on a machine with so many bytes of memory."""
    return Levels.of(machine).press
