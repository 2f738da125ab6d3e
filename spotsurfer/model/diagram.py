"""The state tables as a page of Mermaid diagrams: generated, so that it can't disagree with what runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from spotsurfer.model.job import HOLDS, WAITS, AttemptState, JobState
from spotsurfer.model.transitions import ATTEMPT, JOB, S, V

_HEAD = """# States

Made from `spotsurfer/model/transitions.py` by `make docs`; the reasons for each edge stand there. A move that is not drawn
is refused.
"""


def states_page() -> str:
    """The whole of docs/states.md."""
    waiters, holders = _names(WAITS), _names(HOLDS)
    attempts = f"At most one waiter ({waiters}) and one holder ({holders}) per job.\nOnly a holder may commit and publish."
    job, attempt = _diagram(JOB, JobState.QUEUED), _diagram(ATTEMPT, AttemptState.PLANNED)
    return f"{_HEAD}\n## Job\n\n{job}\n\n## Attempt: one machine's try at a job\n\n{attempts}\n\n{attempt}\n"


def _names(states: Iterable[AttemptState]) -> str:
    return ", ".join(sorted(states))


def _diagram(table: Mapping[S, Mapping[V, S]], first: S) -> str:
    lines: list[str] = [f"    [*] --> {first}"]
    for state, edges in table.items():
        lines += [f"    {state} --> {target}: {event}" for event, target in edges.items()]
        if not edges:
            lines.append(f"    {state} --> [*]")
    return "\n".join(["```mermaid", "stateDiagram-v2", *lines, "```"])
