"""What agents wrote to the store: their reports, and the image digests they pinned."""

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

# What the names of jobs' container images meant when their first attempts asked: the agents' pins, as a user sees them.


class ImageDigests:
    """Digests by job. A pin never changes, so each is read once."""

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


# Agents' reports: one listing shows all changes; only changed ones are read.

REPORT_BYTES_MAX = 1 << 20  # an honest one has some kilobytes
PROOF = timedelta(seconds=10)  # so often we write into the store ourselves
LOOKS = timedelta(seconds=30)  # are closer to each other than this, or time stood still for us
FAILED_MAX = 3  # reads in one look: each may take half a minute, and a store that gives nothing fails all of them
DIGITS_MAX = 12  # of an attempt's number: more are nobody's, and too large for the database
NEVER = datetime.min.replace(tzinfo=UTC)
FORGOTTEN = timedelta(days=1)  # nobody asks for silence that long ago
Key = tuple[str, int]  # job, attempt
Gap = tuple[datetime, datetime]  # from, until


@dataclass(frozen=True, slots=True)
class Heard:
    """A report and when, on our clock, its sequence last changed. `notice_at` is when its notice was first read.

    `before`: the report before it, in case nothing can be made of this one.
    """

    report: Report
    version: str
    changed_at: datetime
    notice_at: datetime | None = None
    before: Heard | None = None


@dataclass(frozen=True, slots=True)
class Word:
    """An object that an agent wrote, as it is listed: its agent lives and can write, whatever is in it.

    `version`: "" = it is gone from the store. `at`: when we first saw it so, on our clock. `unread`: why we don't know what is
    in it, "" = we do. `failed`: how often in a row the store did not give it.
    """

    version: str
    at: datetime
    unread: str = "it was not read yet"
    garbled: bool = False  # it was read, and is no report of its attempt
    failed: int = 0


class Reports:
    """What the agents last said of which the store still has a report: that of an attempt that is over is removed there.

    Silence is only evidence while we can hear, and while the store takes what is written: else its outage would look like the
    death of the whole fleet. So times in which it did not answer us, or did not take a small object from us, are `deaf`.
    """

    def __init__(self, store: ObjectStore, clock: Callable[[], datetime] | None = None, tick_seconds: float = 0.0) -> None:
        """`clock` says how late it is when the store has answered; None = it answers at once.

        `tick_seconds`: so far from each other looks are meant to be. What makes one much later is not known: a tick that took
        long, or a host that slept, and the machines with it. So it counts as deaf, from the beginning of the look before.
        """
        self._store, self._clock = store, clock
        self._apart = max(LOOKS, 1.5 * timedelta(seconds=tick_seconds))
        self.listed = False  # this process has seen once which reports there are
        self._heard: dict[Key, Heard] = {}
        self._words: dict[Key, Word] = {}
        self._attempts: dict[str, list[int]] = {}  # of each job, those with a report
        self._listed_at: datetime | None = None
        self._proved_at: datetime | None = None  # when the store last took something from us
        self._deaf: list[Gap] = []
        self._deaf_since: datetime | None = NEVER
        self._unnoted: set[Key] = set()

    def listen(self, now: datetime) -> set[Key]:
        """Read what changed; the (job, attempt) of reports that changed since they were `noted`.

        Raises StoreError where nothing could be listed or written: silence then stands still. A report that can't be read
        hinders no other: see `word`.
        """
        well_at = self._listed_at
        if well_at is not None and now - well_at > self._apart:
            self.deaf_since(well_at)  # nobody looked meanwhile: this process stood still
        try:
            listed = self._store.list(object_keys.live_prefix())
        except StoreError:
            self.deaf_since(well_at)
            raise
        at = now if self._clock is None else self._clock()  # who spoke while the store took its time has just spoken
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
        fresh = {
            key: word if (word := before.get(key)) is not None and word.version == x.version else _new(x, at, word)
            for key, x in there.items()
        }
        self._words = gone | fresh  # at once: others ask while we look
        self.listed = True
        self._attempts = {job: [n for _, n in some] for job, some in groupby(sorted(self._words), key=itemgetter(0))}

    def noted(self, changed: Iterable[Key]) -> None:
        """These were written down as they are now."""
        self._unnoted.difference_update(changed)

    def refuse(self, job: str, attempt: int, why: str) -> None:
        """It could be read, and nothing could be made of it: the one before it stays the newest that was understood."""
        heard = self._heard.pop((job, attempt), None)
        if heard is not None and heard.before is not None:
            self._heard[job, attempt] = heard.before
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
        return Hearing(tuple(self._deaf if self._deaf_since is None else _joined(self._deaf, (self._deaf_since, now))))

    def _prove(self, now: datetime) -> None:
        """Write a small object of our own now and then: who could not has no right to call anybody silent."""
        if self._deaf_since is None and self._proved_at is not None and now - self._proved_at < PROOF:
            return
        self._store.put(object_keys.pulse_key(), now.isoformat().encode())
        self._proved_at = now

    def _read_news(self, now: datetime) -> None:
        """All that is not known yet. Where the store gives nothing the rest waits for the next look, first of all then."""
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


def _new(x: Listed, at: datetime, before: Word | None) -> Word:
    """An object that was written since the last look."""
    if not 0 < x.size <= REPORT_BYTES_MAX:
        return Word(x.version, at, "it is too large" if x.size else "it is empty", garbled=True)
    return Word(x.version, at, failed=before.failed if before is not None else 0)


def _joined(gaps: Sequence[Gap], last: Gap) -> list[Gap]:
    """Times that touch no other, oldest first, with one more that ends after all of them."""
    begin = min([last[0], *(gap[0] for gap in gaps if gap[1] >= last[0])])
    return [*(gap for gap in gaps if gap[1] < last[0]), (begin, last[1])]


def _key_of(name: str) -> Key | None:
    """The attempt of an object's key; None = it is no report's."""
    job, _, number = name.removeprefix(object_keys.live_prefix()).rpartition(".")
    key = (job, int(number)) if job and number.isascii() and number.isdecimal() and len(number) <= DIGITS_MAX else None
    return key if key is not None and object_keys.live_key(*key) == name else None
