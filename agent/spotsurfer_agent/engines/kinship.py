"""How processes of one tree belong together, and what of that CRIU can't make again: sessions, and what two have in common."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from spotsurfer_agent import linux, procfs

ASKED_AGAIN, PAUSE_SECONDS = 10, 0.02  # what was started by vfork calls exec within that time, as a rule


@dataclass(frozen=True, slots=True)
class Member:
    """One process, by its numbers inside the job; `pid` is the one that we see."""

    pid: int
    inside: int
    parent: int
    session: int


def members(pids: Iterable[int]) -> list[Member]:
    """All of these that are there, those that ended and were not waited for included."""
    found: list[tuple[int, int, int, int]] = []
    for pid in pids:
        with contextlib.suppress(OSError, KeyError, ValueError):
            status = procfs.status(pid)
            inside, session = (int(status[name].split()[-1]) for name in ("NSpid", "NSsid"))
            found.append((pid, inside, int(status["PPid"]), session))
    inside_of = {pid: inside for pid, inside, _, _ in found}
    return [Member(pid, inside, inside_of.get(parent, 0), session) for pid, inside, parent, session in found]


def lost_sessions(found: Iterable[Member]) -> list[Member]:
    """Those whose session CRIU can't make again; pure.

    A process gets its session from its parent when it is born. So there must be somebody above who leads it, or led it, and it
    was born before its parent had another one. For children of the first process CRIU makes helpers. That is the rule of
    `prepare_pstree_ids` in criu/pstree.c.
    """
    tree = {m.inside: m for m in found}
    root = next((m for m in tree.values() if m.parent not in tree), None)
    born: dict[int, int] = {}
    lost = []
    for m in tree.values():
        if m is root or root is None or m.session == m.inside or m.parent == root.inside:
            continue
        if tree[m.parent].session == m.session:
            continue
        above = list(_above(tree, m, root.inside))
        until = above.index(m.session) if m.session in above else len(above)
        if until == len(above) or any(born.setdefault(x, m.session) != m.session for x in above[:until]):
            lost.append(m)
    return lost


def _above(tree: dict[int, Member], m: Member, root: int) -> Iterator[int]:
    """The processes above one, as CRIU makes them: whose leader has ended is made by a helper with the leader's number."""
    at = m.parent
    while at in tree and at != root:
        yield at
        here = tree[at]
        helped = here.parent == root and here.session not in (here.inside, tree[root].session)
        if helped and here.session not in tree:
            yield here.session
        at = here.session if helped else here.parent
    yield root


# What two processes must not have in common, by the number that kcmp(2) has for it; the first that they have counts.
COMMON = {
    1: "its memory (clone with CLONE_VM)",
    3: "its working folder (clone with CLONE_FS)",
    4: "its signal handlers (clone with CLONE_SIGHAND)",
}


def common(pid: int, other: int) -> str:
    """What two processes have in common that can't be carried; "" = nothing."""
    for kind, what in COMMON.items():
        with contextlib.suppress(OSError):
            if linux.have_in_common(pid, other, kind):
                return what
    return ""


def waits_for_exec(parent: int, child: int) -> bool:
    """Whether a process stands still in vfork(2) until its child calls exec, and for more than a moment. Raises OSError."""
    for _ in range(ASKED_AGAIN):
        if not common(child, parent).startswith(COMMON[1]):
            return False
        if procfs.status(parent).get("State", "")[:1] != "D":
            return False
        time.sleep(PAUSE_SECONDS)
    return True
