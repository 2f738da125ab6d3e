"""Agents' reports: one listing shows all changes; only changed ones are read."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from itertools import groupby
from operator import itemgetter

from spotsurfer_agent import protocol
from spotsurfer_agent.protocol import ProtocolError, Report
from spotsurfer_agent.store import Listed, ObjectStore, StoreError

from spotsurfer.model.ids import AttemptNumber
from spotsurfer.model.snapshot import Hearing

REPORT_BYTES_MAX = 1 << 20  # an honest one has some kilobytes
PROOF = timedelta(seconds=10)  # so often we write into the store ourselves
LOOKS = timedelta(seconds=30)  # are closer to each other than this, or time stood still for us
NEVER = datetime.min.replace(tzinfo=UTC)
FORGOTTEN = timedelta(days=1)  # nobody asks for silence that long ago
Key = tuple[str, int]  # job, attempt


@dataclass(frozen=True, slots=True)
class Heard:
    """A report and when, on our clock, its sequence last changed. `notice_at` is when its notice was first read."""

    report: Report
    version: str
    changed_at: datetime
    notice_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Word:
    """An object that an agent wrote, as it is listed: its agent lives and can write, whatever is in it.

    `version`: "" = it is gone from the store. `at`: when we first saw it so, on our clock. `unread`: why we don't know what is
    in it, "" = we do.
    """

    version: str
    at: datetime
    unread: str = "it was not read yet"
    garbled: bool = False  # it was read, and is no report of its attempt


class Reports:
    """What the agents last said of which the store still has a report: that of an attempt that is over is removed there.

    Silence is only evidence while we can hear, and while the store takes what is written: else its outage would look like the
    death of the whole fleet. So times in which it did not answer us, or did not take a small object from us, are `deaf`.
    """

    def __init__(self, store: ObjectStore, clock: Callable[[], datetime] | None = None) -> None:
        """`clock` says how late it is when the store has answered; None = it answers at once."""
        self._store, self._clock = store, clock
        self._heard: dict[Key, Heard] = {}
        self._words: dict[Key, Word] = {}
        self._attempts: dict[str, list[int]] = {}  # of each job, those with a report
        self._listed_at: datetime | None = None
        self._proved_at: datetime | None = None  # when the store last took something from us
        self._deaf: list[tuple[datetime, datetime]] = []
        self._deaf_since: datetime | None = NEVER
        self._unnoted: set[Key] = set()

    def listen(self, now: datetime) -> set[Key]:
        """Read what changed; the (job, attempt) of reports that changed since they were `noted`.

        Raises StoreError where nothing could be listed or written: silence then stands still. A report that can't be read
        hinders no other: see `word`.
        """
        well_at = self._listed_at
        if well_at is not None and now - well_at > LOOKS:
            self.deaf_since(well_at)  # nobody looked meanwhile: this process stood still
        try:
            listed = self._store.list(protocol.live_prefix())
        except StoreError:
            self.deaf_since(well_at)
            raise
        at = now if self._clock is None else self._clock()  # who spoke while the store took its time has just spoken
        self._note(listed, at)
        for key, word in self._words.items():
            if word.unread and not word.garbled:
                self._words[key] = self._read(key, word, at)
        try:
            self._prove(now)
        except StoreError:
            self.deaf_since(self._proved_at)
            raise
        self._listed_at = now
        if self._deaf_since is not None:
            self._deaf = [gap for gap in self._deaf if now - gap[1] < FORGOTTEN] + [(self._deaf_since, now)]
            self._deaf_since = None
        return set(self._unnoted)

    def deaf_since(self, at: datetime | None) -> None:
        """From then on until the next good look nobody could be heard; None = we never could."""
        self._deaf_since = self._deaf_since or at or NEVER

    def lost(self) -> None:
        """It is not known whether this is our store: nobody could be heard since we last wrote into it."""
        self.deaf_since(self._proved_at)

    def keep(self, alive: Collection[Key]) -> None:
        """Forget reports that are gone from the store, but for these attempts."""
        gone = [key for key, word in self._words.items() if not word.version and key not in alive]
        for key in gone:
            del self._words[key]
        self._heard = {k: h for k, h in self._heard.items() if k in self._words or k in self._unnoted}

    def _note(self, listed: Iterable[Listed], at: datetime) -> None:
        """Which reports there are. One that is gone was there until now: nobody was silent for longer than that."""
        before = self._words
        there = {key: x for x in listed if (key := _key_of(x.key)) is not None}
        gone = {
            key: word if not word.version else replace(word, version="", at=at)
            for key, word in before.items()
            if key not in there
        }
        self._words = gone
        for key, x in there.items():
            same = key in before and before[key].version == x.version
            too_large = x.size > REPORT_BYTES_MAX
            new = Word(x.version, at, "it is too large", garbled=True) if too_large else Word(x.version, at)
            self._words[key] = before[key] if same else new
        self._attempts = {job: [n for _, n in some] for job, some in groupby(sorted(self._words), key=itemgetter(0))}

    def noted(self, changed: Iterable[Key]) -> None:
        """These were written down as they are now."""
        self._unnoted.difference_update(changed)

    def refuse(self, job: str, attempt: int, why: str) -> None:
        """It could be read, and nothing could be made of it."""
        self._heard.pop((job, attempt), None)
        if (word := self._words.get((job, attempt))) is not None:
            self._words[job, attempt] = replace(word, unread=why, garbled=True)

    def heard(self, job: str, attempt: int) -> Heard | None:
        """The newest report of an attempt that could be read."""
        return self._heard.get((job, attempt))

    def word(self, job: str, attempt: int) -> Word | None:
        """The newest report of an attempt, whether it could be read or not."""
        return self._words.get((job, attempt))

    def words(self) -> Mapping[Key, Word]:
        """All reports that there are."""
        return self._words

    def desired(self, job: str) -> dict[AttemptNumber, int]:
        """The newest order that each attempt of a job with a report was told of, as far as it said; 0 = it did not."""
        heard = {number: self._heard.get((job, number)) for number in self._attempts.get(job, ())}
        return {AttemptNumber(number): h.report.desired if h else 0 for number, h in heard.items()}

    @property
    def unread(self) -> dict[Key, str]:
        """Why reports could not be read."""
        return {key: word.unread for key, word in self._words.items() if word.unread}

    def hearing(self, now: datetime) -> Hearing:
        """When agents could not be heard."""
        return Hearing((*self._deaf, *([] if self._deaf_since is None else [(self._deaf_since, now)])))

    def _prove(self, now: datetime) -> None:
        """Write a small object of our own now and then: who could not has no right to call anybody silent."""
        if self._deaf_since is None and self._proved_at is not None and now - self._proved_at < PROOF:
            return
        self._store.put(protocol.pulse_key(), now.isoformat().encode())
        self._proved_at = now

    def _read(self, key: Key, word: Word, now: datetime) -> Word:
        try:
            data = self._store.get(protocol.live_key(*key))
        except StoreError as e:
            return replace(word, unread=str(e))
        if data is None:
            return word  # removed since it was listed
        try:
            report = protocol.decode(Report, data)
        except ProtocolError as e:
            return replace(word, unread=str(e), garbled=True)
        if (report.job, report.attempt) != key:
            return replace(word, unread="it speaks for another attempt", garbled=True)
        self._take(report, word.version, now)
        self._unnoted.add(key)
        return replace(word, unread="")

    def _take(self, report: Report, version: str, now: datetime) -> None:
        before = self._heard.get((report.job, report.attempt))
        news = before is None or report.sequence != before.report.sequence
        same_notice = (
            before is not None
            and report.notice is not None
            and before.report.notice is not None
            and before.report.notice.id == report.notice.id
        )
        self._heard[report.job, report.attempt] = Heard(
            report,
            version,
            now if before is None or news else before.changed_at,
            before.notice_at if before is not None and same_notice else (now if report.notice else None),
        )


def _key_of(name: str) -> Key | None:
    """The attempt of an object's key; None = it is no report's."""
    job, _, number = name.removeprefix(protocol.live_prefix()).rpartition(".")
    key = (job, int(number)) if job and number.isascii() and number.isdecimal() else None
    return key if key is not None and protocol.live_key(*key) == name else None
