"""What can go wrong with an input, and the one sentence for each."""

from __future__ import annotations

import errno
import re
from enum import StrEnum

from obstore.exceptions import (
    BaseError,
    GenericError,
    NotFoundError,
    NotModifiedError,
    PermissionDeniedError,
    PreconditionError,
    UnauthenticatedError,
)

from spotsurfer_agent.files import FULL, FilesError
from spotsurfer_agent.storeport import StoreUnreachable


class Kind(StrEnum):
    """What is wrong."""

    ABSENT = "absent"
    DENIED = "denied"
    CHANGED = "changed"
    REWRITTEN = "rewritten"
    CHECKSUM = "checksum"
    VERSION = "version"
    SHORT = "short"
    EMPTY = "empty"
    TWICE = "twice"
    MANY = "many"
    FULL = "full"
    REFUSED = "refused"
    REGION = "region"
    DISK = "disk"
    OWN_STORE = "own store"


# THE sentences; {source} and what else is named is filled in.
SENTENCES: dict[Kind, str] = {
    Kind.ABSENT: "input {source} is not there: check the address, or put it there",
    Kind.DENIED: "input {source} is refused to this machine ({why}): let its role read it, or say how in [inputs] of the "
    "controller's configuration",
    Kind.CHANGED: "input {source} is not what the job started with: {what} was {old} then and is {new} now: "
    "put the old one back, or submit the job again",
    Kind.REWRITTEN: "input {source} was rewritten while it was fetched: write inputs first, then submit",
    Kind.CHECKSUM: "input {source} has sha256 {new}, the job file says {old}: correct one of the two",
    Kind.VERSION: "input {source} is at version {new}, the job file says {old}: correct one of the two",
    Kind.SHORT: "input {source} ended after {new} bytes, {old} were announced: its server cuts it off",
    Kind.EMPTY: "nothing matches the input {source}: check bucket, folder and wildcard",
    Kind.TWICE: "{source} and {other} would both arrive as {path}: give one of them another `to`",
    Kind.MANY: "input {source} means more than {limit} files: pack them into archives",
    Kind.FULL: "the machine's disk is full: the inputs take {wanted} bytes more, {free} are free: ask for a larger disk",
    Kind.REGION: 'input {source} lies in another region: say which in the job file, like region = "eu-west-1"',
    Kind.REFUSED: "input {source} can't be had: {why}",
    Kind.OWN_STORE: "input {source} lies in the store of spotsurfer, where each job reads what is its own alone: "
    "copy it to another folder or bucket (`spotsurfer outputs` fetches results)",
    Kind.DISK: "the inputs can't be kept on this machine's disk: {why}",
}
MACHINE = frozenset({Kind.FULL, Kind.DISK})  # another machine may do; all else would be the same there
ERRORS = (BaseError, FileNotFoundError, PermissionError)  # obstore's; some of them are Python's own
SHOWN = 300  # characters of somebody else's error
_STATUS = re.compile(r"status(?: code:)? (\d{3})\b")  # addresses and times that the text tells have numbers, too


class InputTrouble(FilesError):
    """An input can't be delivered, and asking again would not help. One sentence for the user."""

    def __init__(self, what: Kind, /, **parts: object) -> None:
        super().__init__("refused" if what in MACHINE else "input", SENTENCES[what].format(**parts))
        self.what = what


class Unreachable(StoreUnreachable):
    """Whoever keeps the input gave no whole answer: asking again may help."""


def of_store(e: Exception, source: str) -> InputTrouble | Unreachable:
    """What obstore's error means."""
    text = str(e).partition("\n\nDebug source")[0]
    if isinstance(e, NotFoundError | FileNotFoundError) or _status(text) == "404":
        return InputTrouble(Kind.ABSENT, source=source)
    if isinstance(e, PermissionDeniedError | UnauthenticatedError | PermissionError) or "403 Forbidden" in text:
        return InputTrouble(Kind.DENIED, source=source, why=_status(text) or "no right to read it")
    if isinstance(e, PreconditionError | NotModifiedError):
        return InputTrouble(Kind.REWRITTEN, source=source)
    if "configured region" in text or "PermanentRedirect" in text or "AuthorizationHeaderMalformed" in text:
        return InputTrouble(Kind.REGION, source=source)
    if isinstance(e, GenericError) and not _lasting(text):
        return Unreachable(f"input {source} can't be reached: {_short(text)}")
    return InputTrouble(Kind.REFUSED, source=source, why=_short(text))


def _status(text: str) -> str:
    found = _STATUS.search(text)
    return found.group(1) if found else ""


def _lasting(text: str) -> bool:
    """A status that means no, whoever asks again."""
    return _status(text)[:1] == "4" and _status(text) not in ("408", "429")


def _short(text: str) -> str:
    """Without the page that a server sends along."""
    return " ".join(text.partition("<")[0].split())[:SHOWN].rstrip(" :")


def of_disk(e: OSError, wanted: int, free: int) -> InputTrouble:
    """What the disk's refusal means."""
    if e.errno in FULL or e.errno == errno.EFBIG:
        return InputTrouble(Kind.FULL, wanted=wanted, free=free)
    return InputTrouble(Kind.DISK, why=e.strerror or str(e))
