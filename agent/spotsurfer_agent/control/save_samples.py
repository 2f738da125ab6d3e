"""The samples of this job's saves on this machine, and the forecast made from them: what is asked, and when."""

from __future__ import annotations

from collections.abc import Callable

from spotsurfer_wire.messages import Fit, SaveFacts

from spotsurfer_agent.control.final_save_timing import SAMPLES_MAX, Sample, Window, forecast
from spotsurfer_agent.control.state_file import StateFile

AGAIN_SECONDS = 5.0  # a forecast changes with the age of the base, slowly
WHOLE_SHARE = 0.9  # a first save that sends more of its image than this knew nothing of its base


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
