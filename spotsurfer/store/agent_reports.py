"""Objects that agents write to the store: their reports, and the pinned digests of container images."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from itertools import groupby
from operator import itemgetter

from spotsurfer_wire import json_codec, object_keys
from spotsurfer_wire.container_image import Pins
from spotsurfer_wire.json_codec import ProtocolError
from spotsurfer_wire.messages import Report
from spotsurfer_wire.store.port import Listed, ObjectStore, StoreError

from spotsurfer.model.job import AttemptNumber
from spotsurfer.model.snapshot import Hearing


class ImageDigests:
    """Image digests by job, as its first attempt pinned them. A pin never changes, so each is read once."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._known: dict[str, str] = {}

    def of(self, job: str, image: str) -> str:
        """The digest that `image` is pinned to; "" = none, not asked yet, or the store does not say."""
        if image and job not in self._known:
            try:
                pin = Pins(self._store, job).read()
            except (StoreError, ProtocolError):
                return ""
            if pin is not None:
                self._known[job] = pin.digest
        return self._known.get(job, "") if image else ""


# ---- Reports: one listing shows all changes, and only changed reports are read

REPORT_BYTES_MAX = 1 << 20  # a valid one has some kilobytes
PROOF = timedelta(seconds=10)  # interval of our own writes into the store
LOOKS = timedelta(seconds=30)  # longest time between two looks; a longer gap counts as deaf
FAILED_MAX = 3  # failed reads per look: each may take half a minute, and a store that is down fails all of them
DIGITS_MAX = 12  # of an attempt's number: a longer one is invalid, and too large for the database
NEVER = datetime.min.replace(tzinfo=UTC)
FORGOTTEN = timedelta(days=1)  # silence that long ago does not matter any more
Key = tuple[str, int]  # job, attempt
Gap = tuple[datetime, datetime]  # from, until


@dataclass(frozen=True, slots=True)
class Heard:
    """A report and when, on our clock, its sequence last changed. `notice_at` is when its notice was first read.

    `before`: the report before it, in case this one can't be used.
    """

    report: Report
    version: str
    changed_at: datetime
    notice_at: datetime | None = None
    before: Heard | None = None


@dataclass(frozen=True, slots=True)
class Word:
    """A report object as listed: its agent lives and can write, whatever the object holds.

    `version`: "" = it is gone from the store. `at`: when this version was first seen, on our clock. `unread`: why its contents
    are unknown, "" = they are known. `failed`: number of consecutive failed reads.
    """

    version: str
    at: datetime
    unread: str = "it was not read yet"
    garbled: bool = False  # it was read, and is not a report of its attempt
    failed: int = 0


class Reports:
    """The last reports of agents, as far as the store still has them: reports of attempts that are over are removed there.

    Silence is evidence only while we can read and the store accepts writes: otherwise its outage would look like the death of
    the whole fleet. So times in which it did not answer us, or did not accept a small object from us, count as `deaf`.
    """

    def __init__(self, store: ObjectStore, clock: Callable[[], datetime] | None = None, tick_seconds: float = 0.0) -> None:
        """`clock` gives the time at which the store has answered; None = it answers at once.

        `tick_seconds`: the planned time between looks. A much longer gap has an unknown cause: a long tick, or a host in
        suspend, and perhaps its machines with it. So the gap counts as deaf, from the beginning of the look before.
        """
        self._store, self._clock = store, clock
        self._apart = max(LOOKS, 1.5 * timedelta(seconds=tick_seconds))
        self.listed = False  # this process has listed the reports at least once
        self._heard: dict[Key, Heard] = {}
        self._words: dict[Key, Word] = {}
        self._attempts: dict[str, list[int]] = {}  # job -> its attempts with a report
        self._listed_at: datetime | None = None
        self._proved_at: datetime | None = None  # when the store last accepted a write of ours
        self._deaf: list[Gap] = []
        self._deaf_since: datetime | None = NEVER
        self._unnoted: set[Key] = set()

    def listen(self, now: datetime) -> set[Key]:
        """Read changed reports; returns the (job, attempt) of those that changed since they were `noted`.

        Raises StoreError if the store can't be listed or written: then silence does not grow. An unreadable report does not
        affect the others: see `word`.
        """
        well_at = self._listed_at
        if well_at is not None and now - well_at > self._apart:
            self.deaf_since(well_at)  # no look meanwhile: this process stood still
        try:
            listed = self._store.list(object_keys.live_prefix())
        except StoreError:
            self.deaf_since(well_at)
            raise
        at = now if self._clock is None else self._clock()  # a report during the store's slow answer counts as new
        self._note(listed, at)
        self._read_news(at)
        try:
            self._prove(now)
        except StoreError:
            self.deaf_since(self._proved_at)
            raise
        self._listed_at = now
        if self._deaf_since is not None:
            self._deaf = _joined([gap for gap in self._deaf if now - gap[1] < FORGOTTEN], (self._deaf_since, now))
            self._deaf_since = None
        return set(self._unnoted)

    def deaf_since(self, at: datetime | None) -> None:
        """Count as deaf from `at` until the next good look; None = from the beginning."""
        self._deaf_since = self._deaf_since or at or NEVER

    def lost(self) -> None:
        """The store may not be ours any more: count as deaf since our last write into it."""
        self.deaf_since(self._proved_at)

    def keep(self, alive: Collection[Key]) -> None:
        """Forget reports that are gone from the store, but for these attempts."""
        gone = [key for key, word in self._words.items() if not word.version and key not in alive]
        for key in gone:
            del self._words[key]
        self._heard = {k: h for k, h in self._heard.items() if k in self._words or k in self._unnoted}

    def _note(self, listed: Iterable[Listed], at: datetime) -> None:
        """Take in a listing. A report that is gone was there until now, so its agent's silence begins now at the earliest."""
        before = self._words
        there = {key: x for x in listed if (key := _key_of(x.key)) is not None}
        gone = {
            key: word if not word.version else replace(word, version="", at=at)
            for key, word in before.items()
            if key not in there
        }
        fresh = dict[Key, Word]()
        for key, x in there.items():
            word = before.get(key)
            if word is not None and word.version == x.version:
                fresh[key] = word
            elif 0 < x.size <= REPORT_BYTES_MAX:
                fresh[key] = Word(x.version, at, failed=word.failed if word is not None else 0)
            else:
                fresh[key] = Word(x.version, at, "it is too large" if x.size else "it is empty", garbled=True)
        self._words = gone | fresh  # in one assignment: other threads read it meanwhile
        self.listed = True
        self._attempts = {job: [n for _, n in some] for job, some in groupby(sorted(self._words), key=itemgetter(0))}

    def noted(self, changed: Iterable[Key]) -> None:
        """Mark these reports as stored in the database in their present version."""
        self._unnoted.difference_update(changed)

    def refuse(self, job: str, attempt: int, why: str) -> None:
        """Reject a report that could be read but not used: the one before it stays the newest that was understood."""
        heard = self._heard.pop((job, attempt), None)
        if heard is not None and heard.before is not None:
            self._heard[job, attempt] = heard.before
        if (word := self._words.get((job, attempt))) is not None:
            self._words[job, attempt] = replace(word, unread=why, garbled=True)

    def heard(self, job: str, attempt: int) -> Heard | None:
        """The newest readable report of an attempt."""
        return self._heard.get((job, attempt))

    def word(self, job: str, attempt: int) -> Word | None:
        """The newest report of an attempt, readable or not."""
        return self._words.get((job, attempt))

    def words(self) -> Mapping[Key, Word]:
        """All reports, readable or not."""
        return self._words

    def desired(self, job: str) -> dict[AttemptNumber, int]:
        """The newest order that each attempt with a report has received, by its report; 0 = not reported."""
        heard = {number: self._heard.get((job, number)) for number in self._attempts.get(job, ())}
        return {AttemptNumber(number): h.report.desired if h else 0 for number, h in heard.items()}

    def machines(self, job: str) -> dict[AttemptNumber, str]:
        """Tokens of the machines that attempts with a report share with others."""
        heard = ((number, self._heard.get((job, number))) for number in self._attempts.get(job, ()))
        return {AttemptNumber(number): h.report.machine for number, h in heard if h is not None and h.report.machine}

    @property
    def unread(self) -> dict[Key, str]:
        """Why reports could not be read."""
        return {key: word.unread for key, word in self._words.items() if word.unread}

    def hearing(self, now: datetime) -> Hearing:
        """When agents could not be heard."""
        return Hearing(tuple(self._deaf if self._deaf_since is None else _joined(self._deaf, (self._deaf_since, now))))

    def _prove(self, now: datetime) -> None:
        """Write a small object of our own now and then: only if that works is silence of agents evidence."""
        if self._deaf_since is None and self._proved_at is not None and now - self._proved_at < PROOF:
            return
        self._store.put(object_keys.pulse_key(), now.isoformat().encode())
        self._proved_at = now

    def _read_news(self, now: datetime) -> None:
        """Read all changed reports. If the store fails, the rest waits and comes first in the next look."""
        news = [key for key, word in self._words.items() if word.unread and not word.garbled]
        failures = 0
        for key in sorted(news, key=lambda key: self._words[key].failed):
            if failures == FAILED_MAX:
                return
            word = self._words[key] = self._read(key, self._words[key], now)
            failures += word.failed > 0

    def _read(self, key: Key, word: Word, now: datetime) -> Word:
        try:
            data = json_codec.read_bounded(self._store, object_keys.live_key(*key), REPORT_BYTES_MAX)
            if data is None:
                return replace(word, failed=0)  # removed since it was listed
            report = json_codec.decode(Report, data)
        except StoreError as e:
            return replace(word, unread=str(e), failed=word.failed + 1)
        except ProtocolError as e:
            return replace(word, unread=str(e), garbled=True)
        if (report.job, report.attempt) != key:
            return replace(word, unread="it speaks for another attempt", garbled=True)
        self._take(report, word.version, now)
        self._unnoted.add(key)
        return replace(word, unread="", failed=0)

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
            replace(before, before=None) if before is not None else None,
        )


def _joined(gaps: Sequence[Gap], last: Gap) -> list[Gap]:
    """Disjoint times, oldest first, joined with one more that ends after all of them."""
    begin = min([last[0], *(gap[0] for gap in gaps if gap[1] >= last[0])])
    return [*(gap for gap in gaps if gap[1] < last[0]), (begin, last[1])]


def _key_of(name: str) -> Key | None:
    """The attempt of an object's key; None = it is not a report's key."""
    job, _, number = name.removeprefix(object_keys.live_prefix()).rpartition(".")
    key = (job, int(number)) if job and number.isascii() and number.isdecimal() and len(number) <= DIGITS_MAX else None
    return key if key is not None and object_keys.live_key(*key) == name else None
