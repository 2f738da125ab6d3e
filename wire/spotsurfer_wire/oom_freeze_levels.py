"""The memory levels at which a job is frozen, before the kernel's out-of-memory killer strikes, and shares of a machine."""

from __future__ import annotations

from collections.abc import Sequence
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


AGENT_BYTES = 128 << 20  # beside each job, if several share a machine


def shares(machine: int, asked: Sequence[int]) -> list[int]:
    """Bytes of a machine's memory for each of the jobs on it, their agents included, in proportion to what they asked for."""
    needs = [n + AGENT_BYTES for n in asked]
    return [machine * n // sum(needs) for n in needs]


def room_for_all(machine: int, jobs: Sequence[tuple[int, int]]) -> bool:
    """Whether these jobs can share a machine: each share holds what its job asked for, and what it uses now is not too much.

    `jobs`: bytes that each asked for and uses.
    """
    parts = shares(machine, [asked for asked, _ in jobs])
    return all(asked + AGENT_BYTES <= part and used < pressed_at(part) for (asked, used), part in zip(jobs, parts, strict=True))
