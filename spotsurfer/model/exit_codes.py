"""The meaning of the exit codes of jobs."""

from __future__ import annotations

MEANINGS = {
    126: "a program that it calls can't be run there: look at its rights and its kind",
    127: "a program was not found on the machine: name one that the machine's image has, or bring it along",
    128 + 9: "it was killed, as the kernel does where memory ends: ask for more in [resources]",
}


def ended(code: int | None, undelivered: str = "") -> str:
    """How a command ended, as a clause; with what the code means where that is known, and what it did not leave behind."""
    meaning = undelivered or MEANINGS.get(code or 0)
    return f"the command ended with exit code {code}" + (f" ({meaning})" if meaning else "")
