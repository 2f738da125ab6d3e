"""What the controller's words mean, in plain ones, for whoever reads `list`, `show` and `watch`. Programs get its own words."""

from __future__ import annotations

from typing import Any

# What a job is doing (`controller.phases`).
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
# Columns of `list` of which the name alone does not say what they hold.
COLUMNS = {
    "cpu": "processor time that the job used, on all its machines",
    "saved by": "how its checkpoints are made; with none there are none, and `why` says the reason",
    "unsaved": "work since the newest checkpoint, which it would do again if its machine were lost now",
    "spent": "US dollars",
    "age": "time since it was submitted",
}
# Kinds of moments of the timeline (`controller.events`) that are said otherwise.
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
# Steps of a machine's life (`model.transitions`). None: another moment says the same.
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


WANTS = {"drain": "save and leave", "run": "go on", "hurry": "get ready"}  # what an agent is told


def of_moment(moment: dict[str, Any]) -> tuple[str, str] | None:
    """Kind and text of a moment for people; None where the one before or after it says the same."""
    kind, text, data = moment["kind"], moment["text"], moment["data"]
    if kind == "attempt":
        event = str(data.get("event", ""))
        said = STEPS.get(event, event)
        return None if said is None else (said, text.removeprefix(event).removeprefix(": "))
    if kind == "ended" and data.get("state") in ("held", "active", "queued"):  # it goes on some time
        state = str(data["state"])
        return ("held" if state == "held" else "goes on"), text.removeprefix(state).removeprefix(": ")
    if kind == "asked" and (want := str(data.get("want"))) in WANTS:
        text = f"{WANTS[want]}: {text.removeprefix(want).removeprefix(': ')}"
    return KINDS.get(kind, kind), text


def glossary() -> str:
    """The phases and columns with what they mean, for a help text."""
    titled = {"Phases": PHASES, "Columns": {name.upper(): meaning for name, meaning in COLUMNS.items()}}
    blocks = (
        ["\b", f"{title}:", *(f"  {name:<11} {meaning}" for name, meaning in words.items())] for title, words in titled.items()
    )
    return "\n\n".join("\n".join(block) for block in blocks)
