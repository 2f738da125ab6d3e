"""What a forecast of a final save says."""

from __future__ import annotations

from dataclasses import dataclass

SAID_SECONDS = 1.0  # less before the freeze is not worth a word


@dataclass(frozen=True, slots=True)
class Fit:
    """A final save now, forecast, and what follows from it."""

    frozen_seconds: float  # to read the job's memory
    send_bytes: int
    durable_seconds: float  # freeze to committed: the job stands still so long
    window_seconds: float | None  # what a notice leaves for it; None = the cloud gives none
    verdict: str  # "fits" | "late" (the base is too old) | "never" (not even with a fresh base) | "no notice"
    reserve_seconds: float  # so long before the end of a notice it must begin
    gain_seconds: float  # a live save made just before would shorten it by so much
    live_seconds: float  # such a live save takes so long
    base_age_seconds: float
    base_age_max_seconds: float | None = None  # with an older base it does not fit; None = with any it does, or with none
    interval_seconds: float | None = None  # between live saves, shortened where the base would become too old
    hastened: bool = False  # the interval is shorter than was asked for
    start_seconds: float = 0.0  # order to freeze: hooks, and what was not on the disk yet


def say(fit: Fit) -> str:
    """The forecast in one sentence."""
    start = f", after {fit.start_seconds:.1f} s before the freeze" if fit.start_seconds >= SAID_SECONDS else ""
    now = f"a final save now would take {fit.durable_seconds:.1f} s ({fit.send_bytes / (1 << 20):.0f} MiB to send){start}"
    if fit.window_seconds is None:
        return f"{now}; this machine goes without notice, so only earlier checkpoints count"
    room = f"the {fit.window_seconds:.0f} s that a notice leaves"
    if fit.verdict == "never":
        return f"{now} and would not fit {room} however fresh its base: it needs a faster link or a smaller job"
    oldest = (
        "" if fit.base_age_max_seconds is None else f"; with a base older than {fit.base_age_max_seconds:.0f} s it would not"
    )
    hastened = f", so one is made every {fit.interval_seconds:.0f} s" if fit.hastened and fit.interval_seconds else ""
    if fit.verdict == "late":
        return f"{now} and does not fit {room}: its base is too old{hastened}"
    return f"{now} and fits {room}{oldest}{hastened}"
