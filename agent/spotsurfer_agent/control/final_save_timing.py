"""Forecasts whether a final save fits the notice window, from the earlier saves of this job on this machine.

Every save leaves a `Sample`. Five things are read from the samples, each on the pessimistic side of what was seen:

- the *freeze rate*: image bytes a second while frozen;
- the *send rate*: bytes a second from the end of the freeze to durable, by the saves that had the most to send;
- the *tail*: seconds that even a save with nothing to send needs for its manifest and head entry;
- the *start*: seconds from the order to the freeze, for hooks and for what was not on the disk yet; the most that was seen;
- the *curve*: which share of the image must be sent after how many seconds since the base. It never falls. Between saves it is
  interpolated; below the youngest it falls with the square root of the age (what changes often changes at once); above the
  oldest it grows with the age, up to the whole image.

What the job's memory grew by since the last save comes on top: it is part of the image now, and no base has it.

A final save keeps the job frozen until it is durable, so its length is the first half of a move's pause.

Whether a final save is worth a try is read on the other side (`_at_best`): only what was never faster is given up.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from spotsurfer_wire.final_save_forecast import SAFETY, Fit
from spotsurfer_wire.messages import SaveFacts

from spotsurfer_agent.control.state_file import StateFile

SAMPLES_MAX = 16  # older ones say little about what the job does now
RESERVE_SECONDS_MIN = 10.0  # a machine that is about to go may be slow in everything, also in a save that took no time before
SEND_BYTES_MIN = 4 << 20  # a save with less to send says nothing about the link
TAIL_SECONDS = 0.2  # until measured
AGE_SECONDS_MAX = 7 * 86400.0  # a base older than that is not asked about
INTERVAL_SECONDS_MIN = 30.0  # saves are never made to follow each other faster than that
STEPS = 24  # of bisecting an age: far below a second
AGAIN_SECONDS = 5.0  # a forecast changes with the age of the base, slowly
NEAR_AGE = 1.5  # a save says how much is new with a base at most so many times older or younger
WHOLE_SHARE = 0.9  # a first save that sends more of its image than this knew nothing of its base


@dataclass(frozen=True, slots=True)
class Sample:
    """One save as measured, and as it would have been had all of it been done in the freeze. Seconds and bytes."""

    age_seconds: float | None  # from the freeze of its base to its own; None = it had no base
    image_bytes: int
    sent_bytes: int
    frozen_seconds: float
    durable_seconds: float  # freeze to committed
    start_seconds: float = 0.0  # order to freeze
    resident_bytes: float | None = None  # what the job had in memory then; None = not known, or no part of the image

    @property
    def share(self) -> float:
        """Which part of the image was sent."""
        return min(self.sent_bytes / self.image_bytes, 1.0)

    def to_row(self) -> list[float | None]:
        """For a file."""
        return list(dataclasses.astuple(self))

    @staticmethod
    def from_row(row: Sequence[float | None]) -> Sample:
        """The reverse; older agents wrote fewer values."""
        age, image, sent, frozen, durable, start, resident = (*row, None, None)[:7]
        return Sample(age, int(image or 0), int(sent or 0), frozen or 0.0, durable or 0.0, start or 0.0, resident)


@dataclass(frozen=True, slots=True)
class Window:
    """The agreed limits. `notice_seconds` 0: the cloud gives no notice; `interval_seconds` None: saves only when asked."""

    notice_seconds: float = 0.0
    margin_seconds: float = 0.0  # of the notice left unused
    interval_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Model:
    """What the samples show."""

    image_bytes: int
    freeze_bytes_per_second: float
    send_bytes_per_second: float
    tail_seconds: float
    start_seconds: float
    curve: tuple[tuple[float, float], ...]  # (age, share), both growing
    grown_bytes: int = 0  # of the image: no base has them yet

    def share(self, age_seconds: float) -> float:
        """Which part of the image is new after so long."""
        if not self.curve:
            return 1.0
        below, above = (0.0, 0.0), None
        for age, share in self.curve:
            if age_seconds <= age:
                above = (age, share)
                break
            below = (age, share)
        if above is None:
            return min(below[1] * age_seconds / below[0], 1.0)
        if below[0] == 0.0:
            return above[1] * float((age_seconds / above[0]) ** 0.5)
        part = (age_seconds - below[0]) / (above[0] - below[0])
        return below[1] + part * (above[1] - below[1])

    @property
    def known_from_seconds(self) -> float:
        """The youngest base that was seen: with a younger one as much may be new, so no more is promised."""
        return self.curve[0][0] if self.curve else 0.0

    @property
    def frozen_seconds(self) -> float:
        """Reading the whole image."""
        return self.image_bytes / self.freeze_bytes_per_second

    def send_bytes(self, age_seconds: float) -> int:
        """Bytes that a save must send with a base of this age."""
        return int((self.image_bytes - self.grown_bytes) * self.share(age_seconds)) + self.grown_bytes

    def durable_seconds(self, age_seconds: float) -> float:
        """Freeze to committed with a base of this age."""
        return self.frozen_seconds + self.send_bytes(age_seconds) / self.send_bytes_per_second + self.tail_seconds

    def whole_seconds(self, age_seconds: float) -> float:
        """Order to committed: what a notice must leave room for, with a margin."""
        return (self.start_seconds + self.durable_seconds(age_seconds)) * SAFETY


def learn(samples: Sequence[Sample], resident_bytes: float | None = None) -> Model | None:
    """The model of these samples, newest last; None without samples. `resident_bytes`: what the job has in memory now."""
    good = _good(samples)
    if not good:
        return None
    tail = min(TAIL_SECONDS, *(_rest(s) for s in good))
    then = good[-1].resident_bytes
    grown = int(max(resident_bytes - then, 0.0)) if resident_bytes is not None and then is not None else 0
    return Model(
        image_bytes=good[-1].image_bytes + grown,
        freeze_bytes_per_second=_slow(_freeze_rates(good)),
        send_bytes_per_second=_slow(_telling_rates(good)),
        tail_seconds=tail,
        start_seconds=max(s.start_seconds for s in good),
        curve=_curve(good),
        grown_bytes=grown,
    )


def _slow(rates: Sequence[float]) -> float:
    """The lower median: half of the saves were faster."""
    return sorted(rates)[(len(rates) - 1) // 2]


def _good(samples: Sequence[Sample]) -> list[Sample]:
    return [s for s in samples[-SAMPLES_MAX:] if s.image_bytes > 0 and s.durable_seconds > 0]


def _rest(s: Sample) -> float:
    """Seconds from the end of the freeze to committed."""
    return max(s.durable_seconds - s.frozen_seconds, 1e-3)


def _freeze_rates(samples: Sequence[Sample]) -> list[float]:
    return [s.image_bytes / max(s.frozen_seconds, 1e-3) for s in samples]


def _telling_rates(samples: Sequence[Sample]) -> list[float]:
    """Bytes a second of the saves that say something about the link."""
    largest = max(s.sent_bytes for s in samples)
    telling = [s.sent_bytes / _rest(s) for s in samples if s.sent_bytes >= max(largest / 2, 1)]
    if largest < SEND_BYTES_MIN:  # too little to divide by: as fast as it was, and no slower than that little allows
        return [max(*telling, 1.0, SEND_BYTES_MIN / TAIL_SECONDS)]
    return telling


def _curve(samples: Sequence[Sample]) -> tuple[tuple[float, float], ...]:
    points = sorted((s.age_seconds, s.share) for s in samples if s.age_seconds)
    curve: list[tuple[float, float]] = []
    most = 0.0
    for age, share in points:
        most = max(most, share)
        if curve and curve[-1][0] == age:
            curve.pop()
        curve.append((age, most))
    return tuple(curve)


def forecast(
    samples: Sequence[Sample], base_age_seconds: float, window: Window, resident_bytes: float | None = None
) -> Fit | None:
    """What a final save now would take, and whether that fits; None before the first save on this machine."""
    model = learn(samples, resident_bytes)
    if model is None:
        return None
    saved = dataclasses.replace(model, grown_bytes=0)  # once a base has it all
    now = model.durable_seconds(base_age_seconds)
    # A live save takes as long as this one would, and the next machine as long again to fetch it: the base is that old then.
    fresh = saved.durable_seconds(min(2 * now, base_age_seconds))
    room = max(window.notice_seconds - window.margin_seconds, 0.0) if window.notice_seconds > 0 else None
    oldest, verdict = _judge(saved, room, model.whole_seconds(base_age_seconds))
    interval = _interval(saved, oldest, window.interval_seconds, late=verdict == "late")
    return Fit(
        frozen_seconds=model.frozen_seconds,
        send_bytes=model.send_bytes(base_age_seconds),
        durable_seconds=now,
        window_seconds=room,
        verdict=verdict,
        reserve_seconds=max(model.whole_seconds(base_age_seconds), RESERVE_SECONDS_MIN) + window.margin_seconds,
        gain_seconds=max(now - fresh, 0.0),
        live_seconds=model.start_seconds + now,
        base_age_seconds=base_age_seconds,
        start_seconds=model.start_seconds,
        base_age_max_seconds=oldest,
        interval_seconds=interval,
        hastened=interval != window.interval_seconds,
        enough_seconds=model.whole_seconds(max(base_age_seconds, model.known_from_seconds)) + window.margin_seconds,
        least_seconds=min(_at_best(samples, base_age_seconds, model), model.start_seconds + now),
    )


def _at_best(samples: Sequence[Sample], base_age_seconds: float, model: Model) -> float:
    """Order to committed if everything goes as well as it ever did. What is not known takes no time.

    New is as little as ever with a base about as old as this one, else with an older one, else with the oldest: of that a part
    in proportion to the age. What the job grew by packs no better than its image when most of that was sent.
    """
    good = _good(samples)
    aged = sorted((base_age_seconds / s.age_seconds, s.share) for s in good if s.age_seconds)
    near = [x for x in aged if 1 / NEAR_AGE <= x[0] <= NEAR_AGE]
    told = near or [x for x in aged if x[0] < 1] or aged[:1]
    least = min((share * min(older, 1.0) for older, share in told), default=0.0)
    sent = least * (model.image_bytes - model.grown_bytes) + max(s.share for s in good) * model.grown_bytes
    freezing, sending = (max(rates) for rates in (_freeze_rates(good), _telling_rates(good)))
    return min(s.start_seconds for s in good) + model.image_bytes / freezing + sent / sending


def _judge(model: Model, room: float | None, now: float) -> tuple[float | None, str]:
    """The greatest age of a base that fits (None: any, or none), and the verdict on the present one, which takes `now`."""
    if room is None:
        return None, "no notice"
    if model.whole_seconds(0.0) > room:
        return None, "never"
    verdict = "fits" if now <= room else "late"
    if model.whole_seconds(AGE_SECONDS_MAX) <= room:
        return None, verdict
    low, high = 0.0, AGE_SECONDS_MAX
    for _ in range(STEPS):
        middle = (low + high) / 2
        low, high = (middle, high) if model.whole_seconds(middle) <= room else (low, middle)
    return low, verdict


def _interval(model: Model, oldest: float | None, asked: float | None, *, late: bool) -> float | None:
    """As asked, or shorter: the next live save must be durable before the base is too old. Never longer.

    `late`: the base is too old now, or the job has grown: a new one would do.
    """
    if asked is not None and late:
        return min(asked, INTERVAL_SECONDS_MIN)
    if asked is None or oldest is None:
        return asked
    return min(asked, max(oldest - model.durable_seconds(oldest), INTERVAL_SECONDS_MIN))


class Measures:
    """Remembers saves across restarts of the agent, and forecasts the next one.

    `resident_bytes`: what the job has in memory; during a save, what it had when the save began. Memory that is added after
    the freeze is not in the image, and memory of GPUs lies there, too, while it is read.
    """

    def __init__(self, state: StateFile, now: Callable[[], float]) -> None:
        self._state, self._now = state, now
        self._fit: Fit | None = None
        self._asked_at = float("-inf")
        self._for: Window | None = None
        self.resident_bytes: float | None = None

    def note(self, save: SaveFacts, age_seconds: float) -> None:
        """A save was committed, its freeze `age_seconds` after that of its base."""
        first = not self._state.memory.samples
        blind = first and save.new_bytes > WHOLE_SHARE * save.image_bytes
        age = None if blind or age_seconds <= 0 else age_seconds
        reading = save.frozen_seconds - save.sending_seconds + save.read_seconds
        frozen = reading - save.device_back_seconds  # a final save brings nothing back
        durable = save.durable_seconds + save.ahead_seconds - save.device_back_seconds
        resident = self.resident_bytes if save.memory_bytes else None  # a program that saves itself saves files
        sample = Sample(age, save.image_bytes, save.new_bytes, frozen, durable, save.start_seconds, resident)
        self._state.update(samples=[*self._state.memory.samples, sample.to_row()][-SAMPLES_MAX:])
        self._asked_at = float("-inf")

    def fit(self, base_age_seconds: float, window: Window) -> Fit | None:
        """A final save now; None before the first save here."""
        now = self._now()
        if now - self._asked_at >= AGAIN_SECONDS or window != self._for:
            samples = [Sample.from_row(row) for row in self._state.memory.samples]
            self._fit = forecast(samples, max(base_age_seconds, 0.0), window, self.resident_bytes)
            self._asked_at, self._for = now, window
        return self._fit
