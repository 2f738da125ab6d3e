"""Holds the credentials that were handed out, and gets newer ones in time.

The controller writes them to one object of the store, which this machine reads with its instance role; before half of their
life is over it writes newer ones. So the object is read again each eighth of that life, and at once after a refusal. Only
durations count: a machine's clock may be wrong, and whether credentials are still good is for the store to say.

Nothing here waits and nothing here ends the job. Without credentials every request is refused by ourselves: then the agent
reports to nobody, its lease lapses and its job stands frozen, until newer ones are there. A controller that is away for longer
than half of a life costs exactly that.
"""

from __future__ import annotations

import datetime
import logging
import threading
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

from spotsurfer_agent import clock, objectkeys
from spotsurfer_agent.access.handout import BadHandout, Handout, unseal

log = logging.getLogger(__name__)
SHARE = 8  # reads of the object in one life of its credentials
AGAIN_SECONDS = 2.0  # between reads while there are none, and after a refusal
LONGEST_SECONDS = 600.0
_LONG_AGO = datetime.datetime(2000, 1, 1, tzinfo=datetime.UTC)


class NoCredentials(Exception):
    """None were handed out yet."""


class Reading(Protocol):
    """The one thing that is asked of a store here."""

    def get(self, key: str) -> bytes | None:
        """The whole object, or None. Raises StoreError."""
        ...


@dataclass(frozen=True, slots=True)
class Claim:
    """Whose credentials they are, and what opens them."""

    job: str
    attempt: int
    secret: str = field(repr=False)  # 64 hexadecimal digits

    def open(self, data: bytes) -> Handout:
        """Raises BadHandout."""
        return unseal(data, bytes.fromhex(self.secret), self.job, self.attempt)


class Purse:
    """The credentials of one process; called by obstore before each request. Safe to use from several threads."""

    def __init__(
        self,
        claim: Claim,
        store: Callable[[], Reading],
        first: Handout | None = None,
        now: Callable[[], float] = clock.monotonic,
    ) -> None:
        """`store` opens the store with the machine's own rights; it is called once, when it is needed."""
        self.claim, self._open, self._now = claim, store, now
        self._store: Reading | None = None
        self._held = first
        self._next = now() + (_interval(first) if first is not None else 0.0)
        self._looked_at = float("-inf")
        self._lock = threading.Lock()
        self._looking = False
        self._said = ""

    @property
    def held(self) -> Handout | None:
        """What is there now."""
        return self._held

    def __call__(self) -> Any:
        """An `S3Credential`. Never waits: where newer ones are due, they are fetched beside. Raises NoCredentials."""
        self._look_beside()
        held = self._held
        if held is None:
            raise NoCredentials(f"no credentials were handed out yet to {self.claim.job}, attempt {self.claim.attempt}")
        names = ("access_key_id", "secret_access_key", "token")
        # "Over already": so each request asks here, and newer ones count from the moment that they are here.
        return {**{name: held.values.get(name) for name in names}, "expires_at": _LONG_AGO}

    def refused(self) -> None:
        """The store refused them: maybe newer ones are there."""
        self._next = min(self._next, self._looked_at + AGAIN_SECONDS)

    def look(self) -> bool:
        """Read the object now; True where credentials are held afterwards. Never raises: trouble is logged once."""
        self._looked_at = now = self._now()
        self._next = now + AGAIN_SECONDS
        try:
            if self._store is None:
                self._store = self._open()
            data = self._store.get(objectkeys.handout_key(self.claim.job, self.claim.attempt))
            if data is None:
                self._say("no credentials are in the store (yet)")
                return self._held is not None
            self._take(self.claim.open(data))
        except BadHandout as e:
            self._say(str(e))
        except Exception as e:  # whatever it is, the next look may fare better and nobody waits for this one
            self._say(f"the credentials can't be read: {e}".partition("\n")[0])
        return self._held is not None

    def _take(self, handout: Handout) -> None:
        if handout != self._held:
            log.info("credentials of %s, good for %.0f s", handout.issued_at, handout.life_seconds)
        self._held, self._said = handout, ""
        self._next = self._looked_at + _interval(handout)

    def _say(self, text: str) -> None:
        if text != self._said:
            log.warning("%s", text)
        self._said = text

    def _look_beside(self) -> None:
        with self._lock:
            if self._looking or self._now() < self._next:
                return
            self._looking = True
        threading.Thread(target=self._looked, name="credentials", daemon=True).start()

    def _looked(self) -> None:
        try:
            self.look()
        finally:
            self._looking = False

    def carry(self) -> dict[str, Any]:
        """What another process of this machine makes its own purse of. Secret."""
        return {"claim": asdict(self.claim), "first": asdict(self._held) if self._held is not None else None}


def _interval(handout: Handout) -> float:
    return min(max(handout.life_seconds / SHARE, AGAIN_SECONDS), LONGEST_SECONDS)
