"""Plain words: the meaning of the controller's terms for people at a terminal or a browser. Programs get the terms."""

from __future__ import annotations

from typing import Any

# Phases of a job (`core.facts.attempt_view.PHASES`).
PHASES = {
    "queued": "it waits for a machine; `why` says what for",
    "ordering": "a machine is being ordered",
    "booting": "its machine starts up",
    "waiting": "its machine is ready and is about to get it",
    "starting": "its command is being started",
    "restoring": "it is brought back to life from a checkpoint",
    "running": "its command runs",
    "saving": "it is saved a last time on this machine, and leaves it then",
    "moving": "it runs, and its next machine gets ready",
    "suspending": "it is being saved; its machine is given back then",
    "suspended": "it sleeps without a machine, and wakes when somebody connects to it, or by `resume`",
    "held": "it is stopped and has no machine, until you `resume` or `cancel` it",
    "succeeded": "its command ended well",
    "failed": "its command failed, or its results could not be had",
    "cancelled": "it was ended without results",
}
# Kinds of timeline moments (`model.timeline_events`) that people read under another name.
KINDS = {
    "granted": "handed over",
    "asked": "told",
    "paced": "save interval",
    "fit": "final save",
    "frozen": "stopped",
    "thawed": "goes on",
    "wish": "order",
    "swept": "removed",
}
# Steps of a machine's life (`model.state_machine`). None: another moment says the same.
STEPS = {
    "launch accepted": None,
    "launch refused": None,
    "epoch granted": None,
    "drain asked": None,
    "instance seen": "in the cloud",
    "instance gone": "machine gone",
    "agent ready": "ready",
    "workload started": "runs",
    "restore failed": "not restored",
    "store failed": "not restored",
    "restore refused": "not restored",
    "save failed": "save failed",
    "drain withdrawn": "stays",
    "final saved": "left",
    "given back": "goes on here",
    "workload exited": "command ended",
    "silent": "no news",
    "terminate called": "machine ended",
}


WANTS = {"drain": "save and leave", "run": "go on", "hurry": "get ready"}  # orders to an agent


def of_moment(moment: dict[str, Any]) -> tuple[str, str] | None:
    """Kind and text of a moment for people; None if the one before or after it says the same."""
    kind, text, data = moment["kind"], moment["text"], moment["data"]
    if kind == "attempt":
        event = str(data.get("event", ""))
        said = STEPS.get(event, event)
        return None if said is None else (said, text.removeprefix(event).removeprefix(": "))
    if kind == "ended" and data.get("state") in ("held", "active", "queued"):  # it goes on later
        state = str(data["state"])
        return ("held" if state == "held" else "goes on"), text.removeprefix(state).removeprefix(": ")
    if kind == "asked" and (want := str(data.get("want"))) in WANTS:
        text = f"{WANTS[want]}: {text.removeprefix(want).removeprefix(': ')}"
    return KINDS.get(kind, kind), text
