"""What the credentials of one attempt's machine may do with the store's objects, as patterns of keys. Pure.

One place for all clouds: the session policy of AWS and the gateway of a box say the same. What was written before stays as it
is, but for the attempt's own report and output, and what is made anew each time: whoever steals the credentials can read
this one job and stop it, and can't rewrite what it did.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from spotsurfer_agent import objectkeys


@dataclass(frozen=True, slots=True)
class KeyRights:
    """In patterns `*` stands for any characters, slashes too. Keys are relative to the store.

    The specification, secrets and inputs that were sent along are there before any machine is: nobody can create them again.
    """

    own: tuple[str, ...]  # may be read, and be created where there is nothing yet …
    controllers: tuple[str, ...]  # … but for these of them
    overwritten: tuple[str, ...]  # of `own`: may be written whether there is something or not
    removed: tuple[str, ...]  # of `own`

    def may_read(self, key: str) -> bool:
        """Also what the controller writes: orders, specification, sealed secrets."""
        return _fits(self.own, key)

    def may_create(self, key: str) -> bool:
        """Where nothing is yet."""
        return self.may_read(key) and not _fits(self.controllers, key)

    def may_overwrite(self, key: str) -> bool:
        """Whether anything is there or not."""
        return self.may_create(key) and _fits(self.overwritten, key)

    def may_remove(self, key: str) -> bool:
        """Take it away."""
        return self.may_read(key) and _fits(self.removed, key)


def of_attempt(job: str, attempt: int) -> KeyRights:
    """Of the machine that runs, or will run, this attempt."""
    home, report = objectkeys.job_prefix(job), objectkeys.live_key(job, attempt)
    return KeyRights(
        own=(f"{home}*", report),
        controllers=(
            f"{objectkeys.desired_prefix(job)}*",
            objectkeys.condemned_key(job),
            objectkeys.proven_key(job, "*"),
            objectkeys.protected_key(job, "*"),
        ),
        overwritten=(
            report,
            f"{objectkeys.attempt_log_prefix(job, attempt)}*",
            f"{objectkeys.output_prefix(job, attempt)}*",
            f"{objectkeys.partials_prefix(job)}*",
            objectkeys.order_key(job),
        ),
        removed=(
            f"{objectkeys.attempt_intents_prefix(job, attempt)}*",
            f"{objectkeys.attempt_log_prefix(job, attempt)}*",  # pieces that were merged
            f"{objectkeys.partials_prefix(job)}*",
        ),
    )


def _fits(patterns: tuple[str, ...], key: str) -> bool:
    return any(_matches(p, key) for p in patterns)


def _matches(pattern: str, key: str) -> bool:
    return re.fullmatch(".*".join(map(re.escape, pattern.split("*"))), key, re.DOTALL) is not None
