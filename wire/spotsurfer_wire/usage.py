"""What a job used, in windows of ten seconds, and how several windows become one."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass, field

KEPT = 30  # windows: a reader that is away for no longer than five minutes misses none


WINDOW_SECONDS = 10.0
Row = list[float | None]
SUMS = frozenset({"seconds", "read_bytes", "write_bytes", "received_bytes", "sent_bytes", "printed_bytes", "own_disk_bytes"})
MEANS = frozenset({"cpu_cores", "stalled_cpu", "stalled_memory", "stalled_io", "gpu_share", "gpu_watts"})
LAST = frozenset({"resident_last_bytes"})
FIRST = frozenset({"number"})


@dataclass(frozen=True, slots=True)
class Window:
    """What a job used. Of memory the largest sample; None = this kernel or machine does not tell."""

    number: int  # `WINDOW_SECONDS` long slices of the machine's monotonic clock, the first of several after `merged`
    seconds: float  # that samples cover
    cpu_cores: float  # mean
    cpu_cores_max: float  # of one second
    memory_bytes: float  # all that is charged, page cache included
    resident_bytes: float  # that only swapping or an end gives back: anonymous and shared memory
    resident_last_bytes: float
    working_bytes: float  # memory_bytes without the page cache that was not used lately, as Kubernetes counts
    cache_bytes: float  # page cache
    growth_bytes_per_second: float  # of resident memory, between two samples
    swap_bytes: float | None = None
    stalled_cpu: float | None = None  # share of the time in which something waited for it (PSI, "some")
    stalled_memory: float | None = None
    stalled_io: float | None = None
    read_bytes: float | None = None  # of disks
    write_bytes: float | None = None
    received_bytes: float | None = None  # by the job from outside of its machine
    sent_bytes: float | None = None
    processes: float | None = None
    gpu_share: float | None = None  # of the time in which a GPU worked, mean of all GPUs
    gpu_memory_bytes: float | None = None  # of all GPUs
    gpu_watts: float | None = None  # of all GPUs, mean
    arriving_bytes: float | None = None  # still missing at most, after a restore: what is resident is not all that it uses
    printed_bytes: float | None = None  # on its standard output and error
    own_disk_bytes: float | None = None  # read and written by its present processes, on any kernel

    def to_row(self) -> Row:
        """Numbers in the order of the fields, rounded to be short."""
        return [_short(getattr(self, name)) for name in NAMES]

    @staticmethod
    def from_row(row: Sequence[float | None]) -> Window:
        """The reverse of `to_row`; fields that a newer agent added are ignored. Raises ValueError if the row is no window."""
        if len(row) < len(NEEDED):
            raise ValueError(f"a window has {len(row)} numbers, expected at least {len(NEEDED)}")
        values = dict(zip(NAMES, row, strict=False))
        for name, value in values.items():
            if value is None and name in NEEDED:
                raise ValueError(f"a window has no {name}")
            if value is not None and not (math.isfinite(value) and value >= 0):
                raise ValueError(f"a window's {name} is {value}")
        number = values.pop("number")
        return Window(int(number or 0), **values)  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True)
class Usage:
    """What a report tells of usage: rows of `Window`, oldest first, the last one still growing."""

    at: float  # the machine's monotonic clock when this was written: windows are numbered by it
    rows: list[list[float | None]] = field(default_factory=list)


NAMES = tuple(f.name for f in dataclasses.fields(Window))
NEEDED = tuple(f.name for f in dataclasses.fields(Window) if f.default is dataclasses.MISSING)
BYTES = frozenset(name for name in NAMES if "bytes" in name)


def merged(windows: Sequence[Window]) -> Window:
    """Merge windows, oldest first: sums, means weighted by time, and the maximum of every other field."""
    values = {name: _merged(name, windows) for name in NAMES}
    return Window(**{**values, "number": windows[0].number})  # type: ignore[arg-type]


def _merged(name: str, windows: Sequence[Window]) -> float | None:
    known = [(v, w.seconds) for w in windows if (v := getattr(w, name)) is not None]
    if not known:
        return None
    if name in SUMS:
        return float(sum(v for v, _ in known))
    if name in LAST:
        return float(known[-1][0])
    if name in MEANS and (seconds := sum(s for _, s in known)) > 0:
        return float(sum(v * s for v, s in known) / seconds)
    return float(max(v for v, _ in known))


def _short(value: float | None) -> float | None:
    if value is None:
        return None
    return int(value) if value == int(value) else round(value, 3)
