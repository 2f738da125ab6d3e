"""From samples to windows. Pure: whoever reads files and clocks is elsewhere."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from spotsurfer_agent.usage.kept import KEPT
from spotsurfer_agent.usage.meters import Sample, Totals
from spotsurfer_agent.usage.window import WINDOW_SECONDS, Row, Window


@dataclass(frozen=True, slots=True)
class GpuSample:
    """All GPUs of the machine, now."""

    share: float | None  # of the last second in which they worked, mean; None where one of them does not tell
    memory_bytes: int
    watts: float


def number_of(at: float) -> int:
    """The window that a moment belongs to."""
    return int(at // WINDOW_SECONDS)


class Gathering:
    """Of one job on one machine. `add` is called once a second; `due` says when the totals are wanted, too."""

    def __init__(self) -> None:
        self._rows: deque[Row] = deque(maxlen=KEPT)
        self._samples: list[tuple[float, Sample]] = []
        self._arriving: list[int | None] = []  # of each sample
        self._gpus: list[GpuSample] = []
        self._before: tuple[float, Totals] | None = None
        self._open: Window | None = None

    @property
    def resident_bytes(self) -> float | None:
        """Of the newest sample."""
        return self._samples[-1][1].resident_bytes if self._samples else None

    def due(self, at: float) -> bool:
        """A sample of this moment begins a window."""
        return not self._samples or number_of(at) != number_of(self._samples[-1][0])

    def add(
        self,
        at: float,
        sample: Sample,
        totals: Totals | None = None,
        gpus: Sequence[GpuSample] = (),
        arriving_bytes: int | None = None,
    ) -> None:
        """`at` is monotonic. `totals` where it was due: they close the window before. `arriving_bytes`: None = all is there."""
        if totals is not None:
            self._close(at, sample, totals, arriving_bytes)
        self._samples.append((at, sample))
        self._arriving.append(arriving_bytes)
        self._gpus.extend(gpus)

    def rows(self, at: float, totals: Totals | None = None) -> list[Row]:
        """Closed windows, oldest first, and the one that is open now, as far as it goes."""
        open_now = self._window(at, totals) if len(self._samples) > 1 else None
        return [*self._rows, *([open_now.to_row()] if open_now is not None else [])]

    def _close(self, at: float, sample: Sample, totals: Totals, arriving_bytes: int | None) -> None:
        if self._samples:
            number = number_of(self._samples[-1][0])
            if number_of(at) == number + 1:  # this sample ends it; after a gap it says nothing of that window
                self._samples.append((at, sample))
                self._arriving.append(arriving_bytes)
            window = self._window(at, totals, number)
            if window is not None:
                self._rows.append(window.to_row())
        self._samples, self._arriving, self._gpus, self._before = [], [], [], (at, totals)

    def _window(self, at: float, totals: Totals | None, number: int | None = None) -> Window | None:
        if len(self._samples) < 2:
            return None
        begin, (end, last) = self._samples[0][0], self._samples[-1]
        seconds, all_of = end - begin, [s for _, s in self._samples]
        if seconds <= 0:
            return None
        pairs = zip(pairwise(self._samples), self._arriving, strict=False)
        steps = [(b[0] - a[0], a[1], b[1], brought) for (a, b), brought in pairs if b[0] > a[0]]
        worked = [max(b.cpu_seconds - a.cpu_seconds, 0.0) for _, a, b, _ in steps]  # a step that begins counts from 0
        # Memory that is brought back is no growth: the job had it where it was before.
        grown = [(b.resident_bytes - a.resident_bytes) / s for s, a, b, brought in steps if brought is None]
        swaps = [s.swap_bytes for s in all_of if s.swap_bytes is not None]
        return Window(
            number=number_of(begin) if number is None else number,
            seconds=seconds,
            cpu_cores=sum(worked) / seconds,
            cpu_cores_max=max(used / s for used, (s, *_) in zip(worked, steps, strict=True)),
            memory_bytes=max(s.memory_bytes for s in all_of),
            resident_bytes=max(s.resident_bytes for s in all_of),
            resident_last_bytes=last.resident_bytes,
            working_bytes=max(s.working_bytes for s in all_of),
            cache_bytes=max(s.cache_bytes for s in all_of),
            growth_bytes_per_second=max([0.0, *grown]),
            swap_bytes=max(swaps, default=None),
            arriving_bytes=max((b for b in self._arriving if b is not None), default=None),
            **self._grown(at, totals),
            **self._gpu(),
        )

    def _grown(self, at: float, totals: Totals | None) -> dict[str, float | None]:
        """What the totals grew by since the window began."""
        if totals is None or self._before is None:
            return {}
        since, before = self._before
        seconds = max(at - since, 1e-3)
        waited = [
            None if a is None or b is None else min(max(b - a, 0.0) / seconds, 1.0)
            for a, b in zip(before.stalled_seconds, totals.stalled_seconds, strict=True)
        ]
        disk, net = _more(before.disk, totals.disk), _more(before.network, totals.network)
        grown: dict[str, float | None] = dict(zip(("stalled_cpu", "stalled_memory", "stalled_io"), waited, strict=True))
        grown |= {"read_bytes": disk[0], "write_bytes": disk[1], "received_bytes": net[0], "sent_bytes": net[1]}
        return grown | {"processes": totals.processes}

    def _gpu(self) -> dict[str, float | None]:
        if not self._gpus:
            return {}
        n = len(self._gpus)
        return {
            "gpu_share": mean_of_all([g.share for g in self._gpus]),
            "gpu_memory_bytes": max(g.memory_bytes for g in self._gpus),
            "gpu_watts": sum(g.watts for g in self._gpus) / n,
        }


def mean_of_all(values: Sequence[float | None]) -> float | None:
    """None where one of them is not known, or there is none."""
    known = [v for v in values if v is not None]
    return sum(known) / len(known) if known and len(known) == len(values) else None


def _more(before: tuple[int, int] | None, now: tuple[int, int] | None) -> tuple[float | None, float | None]:
    if before is None or now is None:
        return None, None
    return max(now[0] - before[0], 0), max(now[1] - before[1], 0)
