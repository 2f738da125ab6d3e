"""Errors say whose they are, what to do next, and which exit code the command line ends with.

One class a kind of failure; the table in the README is generated from here and a test demands that codes are unique.
"""

from __future__ import annotations

import errno
from typing import ClassVar

DISK_FULL = (errno.ENOSPC, errno.EDQUOT)  # what the system says where DiskFull is meant


class SpotsurferError(Exception):
    """Something a user or operator can act on: one sentence, with the remedy."""

    exit_code: ClassVar[int] = 1
    meaning: ClassVar[str] = "an error of spotsurfer itself; the log has the details"


class UsageError(SpotsurferError):
    """The command line is wrong."""

    exit_code = 2
    meaning = "the command line is wrong; --help shows how"


class JobFileError(SpotsurferError):
    """The job file is wrong: unknown key, wrong unit, missing command."""

    exit_code = 3
    meaning = "the job file is wrong; the message names the line or key"


class InputMissing(SpotsurferError):
    """A declared input is not there or can't be read."""

    exit_code = 4
    meaning = "an input or a backup is absent or unreadable"


class ConfigError(SpotsurferError):
    """The configuration is wrong."""

    exit_code = 5
    meaning = "the configuration is wrong; the message names the key"


class NotRoot(SpotsurferError):
    """Needs root on this host."""

    exit_code = 6
    meaning = "boxes need root on this host"


class HostUnfit(SpotsurferError):
    """This host lacks something: CRIU support in the kernel, namespaces, a tool."""

    exit_code = 7
    meaning = "this host can't do it; spotsurfer doctor shows what is missing"


class DiskFull(SpotsurferError):
    """No space left where something had to be written."""

    exit_code = 8
    meaning = "a disk is full"


class StoreUnwritable(SpotsurferError):
    """The store can't be written or reached."""

    exit_code = 9
    meaning = "the store can't be written or reached"


class StoreOwned(SpotsurferError):
    """The store belongs to another controller."""

    exit_code = 10
    meaning = "the store belongs to another controller"


class NoController(SpotsurferError):
    """No controller answers."""

    exit_code = 11
    meaning = "no controller answers; start one with spotsurfer serve"


class Denied(SpotsurferError):
    """Token missing or wrong, or not allowed over this connection."""

    exit_code = 12
    meaning = "not allowed: token or passphrase missing or wrong"


class NotFound(SpotsurferError):
    """No such job, attempt or object."""

    exit_code = 13
    meaning = "no such job, or no such checkpoint"


class Conflict(SpotsurferError):
    """The thing is in a state that does not allow it."""

    exit_code = 14
    meaning = "the job's state does not allow it"


class ControllerRunning(SpotsurferError):
    """Another controller already uses this state."""

    exit_code = 15
    meaning = "another controller already runs on this state"


class JobEndedBadly(SpotsurferError):
    """Waited for a job that failed or was cancelled."""

    exit_code = 16
    meaning = "the job that was waited for failed or was cancelled; its own exit code is in the message"


class MoveFailed(SpotsurferError):
    """A checkpoint, move, suspension or return that was waited for did not happen; the message says how the job is."""

    exit_code = 17
    meaning = "what was waited for (checkpoint, move, suspend, resume) did not happen; the message says how the job is"


class RuntimeBuildError(SpotsurferError):
    """The agent's runtime can't be built: a mirror, an index or a lock file says no."""

    exit_code = 18
    meaning = "the agent's runtime could not be built: no mirror, or a package is gone; the message has the remedy"


class Superseded(SpotsurferError):
    """A newer controller of the family leads: this one must stop at once."""

    exit_code = 19
    meaning = "a newer controller has taken over; this one stopped"


class StoreDamaged(SpotsurferError):
    """Something in the store is missing or was changed."""

    exit_code = 34
    meaning = "the store is damaged: a checkpoint lacks something; the message or the list names it"


class RehearsalFailed(SpotsurferError):
    """The checkpoint was not seen alive on another machine, or none came for it; the job itself runs on."""

    exit_code = 35
    meaning = (
        "the rehearsal failed: the checkpoint was not seen alive elsewhere, or no machine came for it; "
        "the message says which; the job itself runs on"
    )


class RestoreFailed(SpotsurferError):
    """A checkpoint could not be brought back to life; it counts against the checkpoint."""

    exit_code = 36
    meaning = "a checkpoint could not be restored; the one before it is tried once, then the job is held"


class RestoreRefused(SpotsurferError):
    """A machine's facts forbade the restore; the checkpoint is not to blame."""

    exit_code = 37
    meaning = "a machine could not go on with the checkpoint; another machine type may, the checkpoint is not to blame"


class Unprotected(SpotsurferError):
    """The job holds something that can't be saved, or its user runs it without checkpoints."""

    exit_code = 38
    meaning = "the job can't be saved as it is; the message names what stands against it"


class MachineUnreachable(SpotsurferError):
    """A machine does not answer over SSH, does not let us in, or the connection broke."""

    exit_code = 39
    meaning = "a machine can't be reached over SSH; jobs don't need that"


class HostKeyMismatch(SpotsurferError):
    """What answers over SSH is not the machine that the controller started."""

    exit_code = 40
    meaning = "another host key than the machine's own: nothing was sent to it"


class JobHeld(SpotsurferError):
    """Waited for a job that is held: nothing happens until its user lets it go on."""

    exit_code = 41
    meaning = "the job that was waited for is held; the message says why, and `resume` lets it go on"


class WaitOver(SpotsurferError):
    """A job that was waited for has not ended within --timeout; it goes on."""

    exit_code = 42
    meaning = "the job that was waited for has not ended within --timeout; it goes on"


class IllegalTransition(SpotsurferError):
    """Our own table has no such edge: a bug, nothing was changed."""

    exit_code = 70
    meaning = "a bug: an impossible change of state was refused; nothing was changed"


# ---- providers: what to do next is the class


class ProviderError(SpotsurferError):
    """The cloud's API failed in a way that says nothing; try again later."""

    exit_code = 20
    meaning = "the cloud's API failed; it is tried again"


class NoCapacity(ProviderError):
    """This pool has none now: try another pool, leave this one alone for a while."""

    exit_code = 21
    meaning = "the pool has no capacity; another is tried"


class QuotaExceeded(ProviderError):
    """The account's limit: another market or region may do."""

    exit_code = 22
    meaning = "the account's quota is used up"


class Throttled(ProviderError):
    """Too many calls: the same call later."""

    exit_code = 23
    meaning = "the cloud throttles; the call is repeated later"


class ProviderDenied(ProviderError):
    """Credentials or rights are missing: a person must act."""

    exit_code = 24
    meaning = "the cloud refuses our credentials or rights"


class CredentialsExpired(ProviderDenied):
    """Our credentials are not (or no longer) good, or our clock is wrong: no other pool would fare better."""

    exit_code = 26
    meaning = "the credentials for the cloud are missing or have expired, or this host's clock is wrong"


class UnknownToProvider(ProviderError):
    """The cloud does not know what was named; of something new it may mean *not yet*."""

    exit_code = 27
    meaning = "the cloud does not know what was named, or not yet"


class Invalid(ProviderError):
    """The request itself is wrong: our bug or a wrong setting."""

    exit_code = 25
    meaning = "the cloud calls the request invalid"


def every_kind() -> list[type[SpotsurferError]]:
    """All kinds of failure of this file, by exit code."""
    found, todo = [], [SpotsurferError]
    while todo:
        kind = todo.pop()
        found.append(kind)
        todo += [k for k in kind.__subclasses__() if k.__module__ == __name__]
    return sorted(found, key=lambda k: k.exit_code)


def exit_code_table() -> str:
    """The table of the README, in Markdown."""
    rows = [f"| {k.exit_code} | {k.meaning} |" for k in every_kind()]
    return "\n".join(["| code | meaning |", "|---:|---|", "| 0 | done |", *rows])
