"""What the agent writes to and reads from the store: the head log, desired, the specification.

Each number of the head log has one winner: entry n+1 belongs to the writer that creates it first, and a nonce lets a writer
recognise its own entry after a lost answer. Entries are never removed, so the agent reads the log by asking for the next
number: one small read finds "no news".
"""

from __future__ import annotations

import dataclasses
import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from spotsurfer_wire import clock, head_log, json_codec, object_keys
from spotsurfer_wire.head_log import HEAD_BYTES_MAX, Appended, HeadLog
from spotsurfer_wire.json_codec import ProtocolError
from spotsurfer_wire.messages import Desired, Head, HeadKind, Spec
from spotsurfer_wire.store.port import ObjectStore, StoreDenied, StoreError, StoreFull

OWNS = (HeadKind.GRANT, HeadKind.COMMIT)
DOUBT_SECONDS = 1.0  # between tries to learn what became of an entry


class Fenced(Exception):
    """The newest head entry is not ours to follow: another attempt owns the job, or it is over."""


class InDoubt(StoreError):
    """We gave up asking whether our entry is in the log: it may be, or may still arrive."""


@dataclass(frozen=True, slots=True)
class HeadView:
    """What is known of the log at one instant."""

    newest: Head | None = None
    newest_own: Head | None = None  # the newest grant or commit of this attempt
    own_done: bool = False  # our entry with the end of the command is in the log
    proved_at: float = float("-inf")  # when the newest entry that we won was begun

    @property
    def own_final(self) -> bool:
        """Our final entry is in the log, and the job was not given back to us since."""
        own = self.newest_own
        return own is not None and own.final and own.kind is HeadKind.COMMIT


class Heads:
    """The head log as one attempt follows and extends it: the newest entry only. Safe to use from several threads."""

    def __init__(
        self,
        store: ObjectStore,
        job: str,
        attempt: int,
        now: Callable[[], float] = clock.monotonic,
        stop: Callable[[], None] = lambda: None,
        wait: Callable[[float], None] = time.sleep,
    ) -> None:
        """`stop` is called between tries and raises StoreError to give up, `wait` sleeps."""
        self._store, self._job, self._attempt, self._now, self._stop, self._wait = store, job, attempt, now, stop, wait
        self._log = HeadLog(store, job)
        self._lock = threading.Lock()
        self._listed = False
        self._own: dict[str, Head] = {}  # entries of this attempt by nonce: a lost answer may be found by any thread
        self.view = HeadView()

    @property
    def newest(self) -> Head | None:
        """The newest entry known."""
        return self.view.newest

    def refresh(self) -> Head | None:
        """Read what is new and return the newest entry. Raises StoreError, ProtocolError."""
        if not self._listed:
            keys = [x.key for x in self._store.list(object_keys.head_prefix(self._job)) if x.key.endswith(".json")]
            if keys:
                self._note(self._read(int(keys[-1].rpartition("/")[2].removesuffix(".json"))))
            self._listed = True
        while True:
            entry = self._read(self.newest.number + 1 if self.newest is not None else 1)
            if entry is None:
                return self.newest
            self._note(entry)

    def append(self, change: Callable[[Head], Head], *, patient: bool) -> Head:
        """Create the entry that follows the newest one; `change` makes it from its predecessor (number and nonce are set here).

        With `patient` an unknown outcome is asked after until it is known, however long that takes: a job must not be resumed
        after its final entry. Raises Fenced if the log is not ours any more, InDoubt after giving up, StoreError if nothing was
        written (impatient: or may have been).
        """
        nonce, doubt = secrets.token_hex(8), False
        while True:
            began = self._now()
            try:
                entry = self._try(change, nonce)
            except (StoreError, ProtocolError) as e:
                doubt = doubt or not isinstance(e, StoreDenied | StoreFull)
                if not (patient and doubt):
                    raise
                try:
                    self._stop()
                except StoreError as why:
                    raise InDoubt(f"it is not known whether the head entry was written: {why}") from e
                self._wait(DOUBT_SECONDS)
                continue
            if entry is not None:
                with self._lock:
                    self.view = dataclasses.replace(self.view, proved_at=max(self.view.proved_at, began))
                return entry

    def _try(self, change: Callable[[Head], Head], nonce: str) -> Head | None:
        if nonce in self._own:
            return self._own[nonce]
        base = self._base()
        wanted = dataclasses.replace(change(base), number=base.number + 1, nonce=nonce, at=clock.utc_text())
        if (size := len(json_codec.encode(wanted))) > HEAD_BYTES_MAX:
            raise StoreFull(
                f"the job has too many outputs: their list has {size} bytes, and nobody reads more than {HEAD_BYTES_MAX}"
            )
        try:
            ours = self._log.append(wanted) is Appended.OURS
        except (StoreDenied, StoreFull):
            found = self._read(wanted.number)  # a refusal may hide an earlier success
            if found is None or found.nonce != nonce:
                raise
            ours = True
        if ours:
            self._note(wanted)
            return wanted
        self._note(self._read(wanted.number))
        return None

    def _base(self) -> Head:
        base = self.newest or self.refresh()
        if base is None or base.epoch != self._attempt or base.done is not None or base.final:
            said = (
                "nobody" if base is None else f"attempt {base.epoch}" + (", and it is over" if base.done or base.final else "")
            )
            raise Fenced(f"the head log names {said}")
        return base

    def _read(self, number: int) -> Head | None:
        data = json_codec.read_bounded(self._store, object_keys.head_key(self._job, number), HEAD_BYTES_MAX)
        return json_codec.decode(Head, data) if data is not None else None

    def _note(self, entry: Head | None) -> None:
        if entry is None:
            return
        with self._lock:
            view, own = self.view, entry.epoch == self._attempt
            if own:
                self._own[entry.nonce] = entry
            self.view = HeadView(
                _later(view.newest, entry),
                _later(view.newest_own, entry) if own and entry.kind in OWNS else view.newest_own,
                view.own_done or (own and entry.done is not None and entry.done.reason == "exited"),
                view.proved_at,
            )


def _later(known: Head | None, entry: Head) -> Head:
    return entry if known is None or entry.number > known.number else known


@dataclass(frozen=True, slots=True)
class Mail:
    """The objects that were read last. Times are monotonic."""

    spec: Spec | None = None
    desired: Desired | None = None
    head_at: float = float("-inf")  # beginning of the last successful read of the head log
    refusal: str = ""  # an object that this version can't read; empty after the next good read


class Mailbox:
    """Reads all that the controller writes, in one go; meant for a thread of its own, because a store may hang."""

    def __init__(
        self, store: ObjectStore, heads: Heads, job: str, attempt: int, now: Callable[[], float] = clock.monotonic
    ) -> None:
        self._store, self.heads, self._job, self._attempt, self._now = store, heads, job, attempt, now
        self.mail = Mail()
        self._renew = False
        self._desired_at = float("-inf")

    def renew(self) -> None:
        """Win a head entry with the next poll: it changes nothing, but earlier decisions can't land any more."""
        self._renew = True

    def poll(self, desired_seconds: float = 0.0) -> None:
        """One look; at desired only if the last one is older than `desired_seconds`: quick looks are for the head alone.

        What a failing store did not give stays as it was, what can't be decoded is named in `mail`; only bugs are raised.
        """
        try:
            if self.mail.spec is None:
                data = self._store.get(object_keys.spec_key(self._job))
                if data is None:
                    raise ProtocolError(f"job {self._job} has no specification in the store")
                self._set(spec=json_codec.decode(Spec, data))
            began = self._now()
            self.heads.refresh()
            self._set(head_at=began, refusal="")
            if self._renew:
                self._renew = False
                self.heads.append(head_log.renewed, patient=False)
            if began - self._desired_at < desired_seconds:
                return
            data = self._store.get(object_keys.desired_key(self._job, self._attempt))
            self._desired_at = began
            if data is not None:
                self._set(desired=json_codec.decode(Desired, data))
        except StoreError:
            return  # it is asked again; the lease tells for how long
        except ProtocolError as e:
            self._set(refusal=str(e))
        except Fenced:
            self._renew = False  # the newest head says it all

    def _set(self, **changes: Any) -> None:
        self.mail = dataclasses.replace(self.mail, **changes)  # one writer: this thread
