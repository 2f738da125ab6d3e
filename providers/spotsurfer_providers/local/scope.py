"""What one attempt may touch in the store, as data: what a bucket policy would say on a real cloud."""

from __future__ import annotations

from dataclasses import dataclass

from spotsurfer_agent import keyrights, objectkeys
from spotsurfer_agent.keyrights import KeyRights

KEY_BYTES_MAX = 1024
PART_BYTES_MAX = 200  # leaves room for the suffix of a file that is being written


@dataclass(frozen=True, slots=True)
class Scope:
    """Job and attempt of a box. Everything that is not allowed here is refused."""

    job: str
    attempt: int

    def __str__(self) -> str:
        return f"attempt {self.attempt} of {self.job}"

    def may_read(self, key: str) -> bool:
        """Its job, the runtime, and its own report: an agent that was restarted goes on from it."""
        return key.startswith(objectkeys.runtime_prefix()) or self._rights.may_read(key)

    def may_list(self, prefix: str) -> bool:
        """Only within one of the folders that it may read."""
        return prefix.startswith((objectkeys.runtime_prefix(), objectkeys.job_prefix(self.job)))

    def may_create(self, key: str) -> bool:
        """Write where nothing is yet."""
        return self._rights.may_create(key)

    def may_replace(self, key: str) -> bool:
        """Write, whether something is there or not."""
        return self._rights.may_overwrite(key)

    def may_delete(self, key: str) -> bool:
        """Take away."""
        return self._rights.may_remove(key)

    @property
    def _rights(self) -> KeyRights:
        return keyrights.of_attempt(self.job, self.attempt)


@dataclass(frozen=True, slots=True)
class Reader:
    """Whoever reads a bucket that belongs to somebody else."""

    def __str__(self) -> str:
        return "who only reads this bucket"

    def may_read(self, key: str) -> bool:  # noqa: ARG002 -- as Scope
        """Everything."""
        return True

    def may_list(self, prefix: str) -> bool:  # noqa: ARG002
        """Everything."""
        return True

    def may_create(self, key: str) -> bool:  # noqa: ARG002
        """Nothing."""
        return False

    def may_replace(self, key: str) -> bool:  # noqa: ARG002
        """Nothing."""
        return False

    def may_delete(self, key: str) -> bool:  # noqa: ARG002
        """Nothing."""
        return False


def key_problem(key: str) -> str | None:
    """Why this can't be a key here, or None: keys become file names below one folder."""
    if not key.isprintable():
        return "a key has no control characters"
    if len(key.encode(errors="surrogateescape")) > KEY_BYTES_MAX:
        return f"a key has at most {KEY_BYTES_MAX} bytes"
    return next((p for part in key.split("/") if (p := _part_problem(part))), None)


def _part_problem(part: str) -> str | None:
    if part in ("", ".", ".."):
        return "a key has no empty part, no . and no .."
    if len(part.encode(errors="surrogateescape")) > PART_BYTES_MAX:
        return f"a part of a key has at most {PART_BYTES_MAX} bytes"
    if part.startswith(".staged"):
        return "names beginning with .staged are taken"
    _, mark, tail = part.rpartition("#")
    if mark and tail.isdigit():
        return "a part of a key does not end in # and digits: local stores hide such files"
    return None
