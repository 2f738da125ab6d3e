"""Timelines of runs on machines of changing size: what the job used, and what its machine had, by policy."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from spotsurfer.ports.size import Kind
from spotsurfer.sim.plots import Lines, Plot, Series
from spotsurfer.sim.sizing import Held, Ride

GIB = float(1 << 30)
HOUR = 3600.0
BINS = 600  # of a run that are drawn, each with the most that was used in it
Points = list[tuple[float, float]]


def plots(rides: Mapping[str, Ride], kinds: Sequence[Kind]) -> list[Plot]:
    """Two plots a policy, over hours since the run began: memory, and cores."""
    return [plot for name, ride in rides.items() for plot in _of(name, ride, kinds)]


def _of(name: str, ride: Ride, kinds: Sequence[Kind]) -> Iterator[Plot]:
    axis = "hours since it began"
    has: dict[str, Callable[[Kind], float]] = {"GiB": lambda k: k.memory_bytes / GIB, "cores": lambda k: k.cores}
    used = {"GiB": [(at, memory / GIB) for at, memory, _ in ride.used], "cores": [(at, cores) for at, _, cores in ride.used]}
    for unit, title in (("GiB", "memory"), ("cores", "cores")):
        machine = [(h.begin, has[unit](kinds[h.kind])) for h in _in_turn(ride.held)]
        series = [Series("wanted", _steps(most(used[unit]), ride)), Series("machine", _steps(machine, ride))]
        yield Lines(f"{name}: {title}", axis, unit, series)


def _in_turn(held: Sequence[Held]) -> list[Held]:
    return sorted(held, key=lambda h: h.begin)


def most(points: Points) -> Points:
    """At most 600 of them, over equal times, each the highest of its time."""
    if len(points) <= BINS:
        return points
    first, width = points[0][0], (points[-1][0] - points[0][0]) / BINS or 1.0
    highest: dict[int, float] = {}
    for at, value in points:
        number = int((at - first) / width)
        highest[number] = max(highest.get(number, value), value)
    return [(first + number * width, value) for number, value in highest.items()]


def _steps(points: Points, ride: Ride) -> Points:
    """Each value holds until the next one begins; in hours."""
    ends = [at for at, _ in points[1:]] + [ride.elapsed_seconds]
    return [(at / HOUR, value) for (begin, value), end in zip(points, ends, strict=True) for at in (begin, end)]
