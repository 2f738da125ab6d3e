"""The closed list of event kinds in a timeline; programs and dashboards rely on these words."""

from __future__ import annotations

from enum import StrEnum


class Kind(StrEnum):
    """Kinds of moments."""

    SUBMITTED = "submitted"
    PLANNED = "planned"
    LAUNCHED = "launched"
    REFUSED = "refused"
    ATTEMPT = "attempt"  # an edge of the attempt table
    GRANTED = "granted"
    NOTICE = "notice"
    STEP = "step"  # one of the job's commands began, or ended
    STAGE = "stage"  # what the job itself says that it does now
    SAVED = "saved"  # a checkpoint became durable
    ASKED = "asked"  # drain, save or go on
    PACED = "paced"  # how often the job is saved from now on, and why
    MOVED = "moved"  # the job runs on another machine: how long it stood still
    FIT = "fit"  # whether a final save would fit the notice has changed, or how often is saved because of it
    WISH = "wish"  # hold, resume, cancel, move, checkpoint: by a user or a limit
    PRICE = "price"  # a step in the price of the machine that a job is on
    RETRY = "retry"
    FROZEN = "frozen"  # an agent holds its job still: it can't be sure to own it
    THAWED = "thawed"
    NEAR_MISS = "near miss"  # a job was frozen because its machine's memory was about to end
    OUT_OF_MEMORY = "out of memory"  # the kernel killed a job for want of it
    BROUGHT_BACK = "brought back"  # files on shared file systems, to what they were at the checkpoint
    STUCK = "stuck"  # a job is alive and makes no progress, or does again
    PROVEN = "proven"  # a job went on from the checkpoint
    DROPPED = "dropped"  # checkpoints that the rules of retention let go
    FORKED = "forked"  # a copy of the job goes its own way
    REHEARSED = "rehearsed"
    ENDED = "ended"  # an edge of the job table
    HOOK = "hook"
    SWEPT = "swept"
    MACHINE = "machine"  # a kept machine that nobody uses is ended
    BUDGET = "budget"  # a budget of several jobs passed a share, or is used up
    ALERT = "alert"  # a person should look
    CONTROLLER = "controller"
