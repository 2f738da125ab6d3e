"""Plain words for states of jobs and machines, for the command line and the pages. Programs get the controller's own terms."""

from __future__ import annotations

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
    "stuck": "it is alive and makes no progress: look at `logs`, then `cancel` it or let it go on",
    "moving": "it runs, and its next machine gets ready",
    "suspending": "it is being saved; its machine is given back then",
    "suspended": "it sleeps without a machine, and wakes when somebody connects to it, or by `resume`",
    "held": "it is stopped and has no machine, until you `resume` or `cancel` it, or its budget allows it again",
    "succeeded": "its command ended well",
    "failed": "its command failed, or its results could not be had",
    "cancelled": "it was ended without results",
}
# Phases with a plainer word in `list`; its --state takes either.
STATES = {
    "ordering": "machine ordered",
    "booting": "machine starts",
    "waiting": "machine ready",
    "restoring": "coming back",
    "saving": "leaving machine",
    "moving": "running, moves soon",
    "suspending": "being paused",
    "suspended": "asleep",
    "held": "paused",
}
# States of a machine that was ordered for a job (`model.state_machine`).
MACHINES = {
    "planned": "chosen",
    "requested": "ordered",
    "booting": "starts up",
    "ready": "ready",
    "restoring": "starts the job",
    "running": "runs the job",
    "draining": "saves, then leaves",
    "drained": "saved, left",
    "finished": "done",
    "lost": "lost",
    "releasing": "being given back",
    "released": "given back",
    "refused": "not to be had",
}
