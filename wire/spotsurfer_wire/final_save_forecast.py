"""The forecast of a final save, and what a notice of a given length does by it. Pure.

The agent makes the forecast from earlier saves (`spotsurfer_agent.control.final_save_timing`), and acts on a notice by
`prospect`; the controller shows that for notices of several lengths (`spotsurfer.core.facts.notice_prospects`).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

SAFETY = 1.5  # a forecast is held against a notice, and a final save begun, with this factor
ASSUMED_BYTES_PER_SECOND = 100e6  # of a job that was never saved on its machine: all of its memory, at this rate

SAID_SECONDS = 1.0  # a shorter time before the freeze is not mentioned


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
    interval_seconds: float | None = None  # between live saves, shortened if the base would become too old
    hastened: bool = False  # the interval is shorter than was asked for
    start_seconds: float = 0.0  # order to freeze: hooks, and what was not on the disk yet
    enough_seconds: float | None = None  # a notice of so many leaves time for it; None = an older agent's, which does not tell
    least_seconds: float = 0.0  # order to committed, at best: with less time left it is not tried


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


# ---- What a notice does


class Prospect(StrEnum):
    """What becomes of a job whose machine is taken."""

    SAVED = "saved"  # the final save fits: nothing is lost
    TRIED = "tried"  # it may fit: if it does not, the job goes on from its newest checkpoint
    LOST = "lost"  # it can't fit: the job runs on until the end, and goes on from its newest checkpoint, or begins again


def prospect(fit: Fit | None, notice_seconds: float, saving: bool = False, memory_bytes: float = 0.0) -> Prospect:
    """What a notice with so many seconds left does. `saving`: a live save is under way, and ends first.

    Without a forecast the save is tried at once, so nothing but its outcome is assumed, from the `memory_bytes` of the job.
    """
    if notice_seconds <= 0:
        return Prospect.LOST
    if fit is None:
        return Prospect.SAVED if SAFETY * memory_bytes / ASSUMED_BYTES_PER_SECOND <= notice_seconds else Prospect.TRIED
    if notice_seconds < fit.least_seconds:
        return Prospect.LOST
    first = fit.live_seconds if saving else 0.0
    fits = fit.enough_seconds is not None and fit.enough_seconds + first <= notice_seconds
    return Prospect.SAVED if fits else Prospect.TRIED
