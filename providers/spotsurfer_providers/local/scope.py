"""What one attempt may touch in the store, as data: what a bucket policy would say on a real cloud."""

from __future__ import annotations

from dataclasses import dataclass

KEY_BYTES_MAX = 1024
PART_BYTES_MAX = 200  # leaves room for the suffix of a file that is being written


@dataclass(frozen=True, slots=True)
class Scope:
    """Job and attempt of a box. Everything that is not allowed here is refused."""

    job: str
    attempt: int

    def __str__(self) -> str:
        return f"attempt {self.attempt} of {self.job}"

    @property
    def _home(self) -> str:
        return f"jobs/{self.job}/"

    @property
    def report(self) -> str:
        """Key of the attempt's own report."""
        return f"live/{self.job}.{self.attempt:06d}"

    def may_read(self, key: str) -> bool:
        """Its job, the runtime, and its own report: an agent that was restarted goes on from it."""
        return key.startswith(("runtime/", self._home)) or key == self.report

    def may_list(self, prefix: str) -> bool:
        """Only within one of the folders that it may read."""
        return prefix.startswith(("runtime/", self._home))

    def may_create(self, key: str) -> bool:
        """Write where nothing is yet."""
        fixed = tuple(self._home + x for x in ("SPEC.json", "SECRETS", "in/", "desired/"))
        return key == self.report or (key.startswith(self._home) and not key.startswith(fixed))

    def may_replace(self, key: str) -> bool:
        """Overwrite or delete: the head log, and what names meant at the first start, are never rewritten, by nobody."""
        kept = tuple(self._home + x for x in ("head/", "IMAGE.json", "INPUTS.json"))
        return self.may_create(key) and not key.startswith(kept)


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
