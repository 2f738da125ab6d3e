"""Errors say whose they are, what to do next, and which exit code the command line ends with.

One class a kind of failure. Its docstring begins with its meaning, which docs/reference/exit-codes.md shows. A test demands
that codes are unique.
"""

from __future__ import annotations

import errno
from typing import ClassVar

DISK_FULL = (errno.ENOSPC, errno.EDQUOT)  # what the system says where DiskFull is meant


class SpotsurferError(Exception):
    """An error of spotsurfer itself; the log has the details.

    Something a user or operator can act on: one sentence, with the remedy.
    """

    exit_code: ClassVar[int] = 1
    page: ClassVar[str] = "docs/guides/troubleshooting.md"  # has more about it; "" = the sentence says all there is


class UsageError(SpotsurferError):
    """The command line is wrong; --help shows how."""

    exit_code = 2
    page = ""


class JobFileError(SpotsurferError):
    """The job file is wrong; the message names the line or key."""

    exit_code = 3  # unknown key, wrong unit, missing command
    page = "docs/reference/job-file.md"


class InputMissing(SpotsurferError):
    """An input or a backup is absent or unreadable."""

    exit_code = 4
    page = "docs/guides/inputs-and-results.md"


class ConfigError(SpotsurferError):
    """The configuration is wrong; the message names the key."""

    exit_code = 5
    page = "docs/reference/configuration.md"


class NotRoot(SpotsurferError):
    """Boxes need root on this host."""

    exit_code = 6
    page = "docs/guides/troubleshooting.md#the-host-is-not-fit"


class HostUnfit(SpotsurferError):
    """This host can't do it; spotsurfer doctor shows what is missing."""

    exit_code = 7  # CRIU support in the kernel, namespaces, a tool
    page = "docs/guides/troubleshooting.md#the-host-is-not-fit"


class DiskFull(SpotsurferError):
    """A disk is full."""

    exit_code = 8


class StoreUnwritable(SpotsurferError):
    """The store can't be written or reached."""

    exit_code = 9


class StoreOwned(SpotsurferError):
    """The store belongs to another controller."""

    exit_code = 10
    page = "docs/recovery.md"


class NoController(SpotsurferError):
    """No controller answers; start one with spotsurfer serve."""

    exit_code = 11
    page = "docs/guides/troubleshooting.md#no-controller-answers"


class Denied(SpotsurferError):
    """Not allowed: token or passphrase missing or wrong."""

    exit_code = 12
    page = "docs/access.md"


class NotFound(SpotsurferError):
    """No such job, or no such checkpoint."""

    exit_code = 13  # nor such an attempt or object
    page = ""


class Conflict(SpotsurferError):
    """The job's state does not allow it."""

    exit_code = 14
    page = ""


class ControllerRunning(SpotsurferError):
    """Another controller already runs on this state."""

    exit_code = 15


class JobEndedBadly(SpotsurferError):
    """The job that was waited for failed or was cancelled; its own exit code is in the message."""

    exit_code = 16
    page = "docs/guides/troubleshooting.md#a-job-failed"


class MoveFailed(SpotsurferError):
    """What was waited for (checkpoint, move, suspend, resume) did not happen; the message says how the job is."""

    exit_code = 17
    page = "docs/guides/troubleshooting.md#a-job-cant-be-saved-or-a-move-fails"


class RuntimeBuildError(SpotsurferError):
    """The agent's runtime could not be built: no mirror, or a package is gone; the message has the remedy."""

    exit_code = 18  # a mirror, an index or a lock file says no
    page = "docs/guides/operate.md#install"


class Superseded(SpotsurferError):
    """A newer controller has taken over; this one stopped."""

    exit_code = 19  # it must stop at once
    page = "docs/upgrading.md"


class StoreDamaged(SpotsurferError):
    """The store is damaged: a checkpoint lacks something; the message or the list names it."""

    exit_code = 34
    page = "docs/recovery.md"


class RehearsalFailed(SpotsurferError):
    """The rehearsal failed: the checkpoint was not seen alive elsewhere, or no machine came for it; the message says which; the
    job itself runs on.
    """

    exit_code = 35


class RestoreFailed(SpotsurferError):
    """A checkpoint could not be restored; the one before it is tried once, then the job is held."""

    exit_code = 36  # it counts against the checkpoint
    page = "docs/guides/troubleshooting.md#a-job-is-held"


class RestoreRefused(SpotsurferError):
    """A machine could not go on with the checkpoint; another machine type may, the checkpoint is not to blame."""

    exit_code = 37
    page = "docs/guides/what-survives.md"


class Unprotected(SpotsurferError):
    """The job can't be saved as it is; the message names what stands against it."""

    exit_code = 38
    page = "docs/guides/what-survives.md"


class MachineUnreachable(SpotsurferError):
    """A machine can't be reached over SSH; jobs don't need that."""

    exit_code = 39  # it does not answer, does not let us in, or the connection broke
    page = "docs/guides/operate.md"


class HostKeyMismatch(SpotsurferError):
    """Another host key than the machine's own: nothing was sent to it."""

    exit_code = 40  # what answers is not the machine that the controller started
    page = "docs/threat-model.md"


class JobHeld(SpotsurferError):
    """The job that was waited for is held; the message says why, and `resume` lets it go on."""

    exit_code = 41
    page = "docs/guides/troubleshooting.md#a-job-is-held"


class WaitOver(SpotsurferError):
    """The job that was waited for has not ended within --timeout; it goes on."""

    exit_code = 42
    page = ""


class BillDiffers(SpotsurferError):
    """The cloud's bill and the ledger differ by more than taxes, credits and days not billed yet; the list says in what."""

    exit_code = 43
    page = "docs/reports.md"


class IllegalTransition(SpotsurferError):
    """A bug: an impossible change of state was refused; nothing was changed."""

    exit_code = 70


# ---- providers: what to do next is the class


class ProviderError(SpotsurferError):
    """The cloud's API failed; it is tried again."""

    exit_code = 20  # it failed in a way that says nothing
    page = "docs/guides/troubleshooting.md#the-cloud-says-no"


class NoCapacity(ProviderError):
    """The pool has no capacity; another is tried."""

    exit_code = 21  # leave this one alone for a while
    page = "docs/guides/troubleshooting.md#a-job-waits"


class QuotaExceeded(ProviderError):
    """The account's quota is used up."""

    exit_code = 22  # another market or region may do


class Throttled(ProviderError):
    """The cloud throttles; the call is repeated later."""

    exit_code = 23


class ProviderDenied(ProviderError):
    """The cloud refuses our credentials or rights."""

    exit_code = 24  # a person must act


class CredentialsExpired(ProviderDenied):
    """The credentials for the cloud are missing or have expired, or this host's clock is wrong."""

    exit_code = 26  # no other pool would fare better


class UnknownToProvider(ProviderError):
    """The cloud does not know what was named, or not yet."""

    exit_code = 27


class Invalid(ProviderError):
    """The cloud calls the request invalid."""

    exit_code = 25  # our bug or a wrong setting


def every_kind() -> list[type[SpotsurferError]]:
    """All kinds of failure of this file, by exit code."""
    found, todo = [], [SpotsurferError]
    while todo:
        kind = todo.pop()
        found.append(kind)
        todo += [k for k in kind.__subclasses__() if k.__module__ == __name__]
    return sorted(found, key=lambda k: k.exit_code)
