"""Simulates size policies on recorded usage, and compares them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import Any

import numpy as np
import numpy.typing as npt

from spotsurfer.common.charts import Lines, Plot, Series
from spotsurfer.common.plugins import CATALOGS, SIZE, made, plugin
from spotsurfer.core.scheduling.rightsizing import MOVES_PER_HOUR, Course, Usage, ask_policy, begin, guard_rescue, moved
from spotsurfer.model.errors import UsageError
from spotsurfer.ports.policies import Came, MachineKind, Size, SizeChoice, SizeMoment, SizeTerms
from spotsurfer_lab.results import OPTIMUM, Floats, Step

# ---- Machine types: those of an installed catalogue, at prices of a past date.

MICROS = 1e6
MAX_FACTOR = 4.0  # of the requested cores and memory


def kinds_like(catalog: str, patterns: Sequence[str], spot: bool = False) -> tuple[MachineKind, ...]:
    """Types whose names fit one of the patterns; each must fit some. Raises UsageError, ConfigError."""
    types: Mapping[str, Any] = plugin(CATALOGS, catalog)()
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in types):
            raise UsageError(f"--types: no type of {catalog} is like {pattern!r}. Write it like 'c6i.*' or m6i.2xlarge.")
    return tuple(_kind(t, spot) for name, t in types.items() if any(fnmatchcase(name, p) for p in patterns))


def allowed(
    kinds: Sequence[MachineKind], request: str, cpu_factor: float, memory_factor: float
) -> tuple[tuple[MachineKind, ...], int]:
    """Types at most so many times larger than the requested one, and its index. Raises UsageError if that one is missing."""
    asked = next((k for k in kinds if k.name == request), None)
    if asked is None:
        raise UsageError(f"--request {request} is not among the types of --types: add it there.")
    left = [k for k in kinds if k.cores <= cpu_factor * asked.cores and k.memory_bytes <= memory_factor * asked.memory_bytes]
    if asked not in left:
        raise UsageError("--max-cpu-factor and --max-memory-factor must be at least 1, or the type asked for is too large.")
    return tuple(left), left.index(asked)


def _kind(given: Any, spot: bool) -> MachineKind:
    micros = given.spot_usd_micros_per_hour if spot else given.on_demand_usd_micros_per_hour
    return MachineKind(given.name, given.name.partition(".")[0], given.cpus, given.memory_bytes, micros / MICROS)


# ---- Simulation: a run under a policy, on the best fixed type, and at best with hindsight.
# During a move both machines cost and the job stands still. Missing cores stretch the run. At the guard's level the job is
# frozen and moved up: a near miss. Without the guard it is killed, and continues from its last image.

LOOK_SECONDS = 60.0
HOUR = 3600.0


@dataclass(frozen=True, slots=True)
class SpotTimes:
    """Availability of machines of this pool, by tick from the start of the run; always available outside of it."""

    tick_seconds: float
    up: npt.NDArray[np.bool_]

    def is_up(self, now: float) -> bool:
        """Whether a machine is available at this second."""
        tick = int(now / self.tick_seconds + 1e-9)
        return tick >= len(self.up) or bool(self.up[tick])

    def until_change(self, now: float) -> float:
        """Seconds until the next tick that differs, or forever."""
        tick = int(now / self.tick_seconds + 1e-9)
        later = np.flatnonzero(self.up[tick:] != self.up[tick]) if tick < len(self.up) else np.array([])
        if len(later):
            return float((tick + later[0]) * self.tick_seconds - now)
        return np.inf if tick >= len(self.up) or self.up[tick] else len(self.up) * self.tick_seconds - now


@dataclass(frozen=True, slots=True)
class Held:
    """A machine, in seconds since the run began."""

    kind: int
    begin: float
    end: float
    reclaimed: bool = False


@dataclass(slots=True)
class Ride:
    """The result of one run. `held`: machines, which overlap during moves. `used`: second, bytes, wanted cores."""

    usd: float = 0.0
    moves: int = 0
    near_misses: int = 0
    ooms: int = 0
    reclaims: int = 0
    elapsed_seconds: float = 0.0
    moved_at: list[float] = field(default_factory=list)
    held: list[Held] = field(default_factory=list)
    used: list[tuple[float, float, float]] = field(default_factory=list)
    alarm: str = ""


@dataclass(frozen=True, slots=True)
class World:
    """The environment of a run. `spot` None = machines are never reclaimed."""

    usage: Usage
    terms: SizeTerms
    guard: bool = True
    spot: SpotTimes | None = None
    moves_per_hour: int = MOVES_PER_HOUR


def play(policy: Size, world: World) -> Ride:
    """One run under a policy, with a look once a minute."""
    return _Player(policy, world).run()


class _Player:
    def __init__(self, policy: Size, world: World) -> None:
        self._policy, self._world, self._kinds = policy, world, world.terms.kinds
        self._course: Course = begin(policy, world.terms, world.moves_per_hour)
        self._ride = Ride(alarm=self._course.alarm)
        self._now, self._since, self._piece, self._left = 0.0, 0.0, 0, float(world.usage.seconds[0])
        self._image = (0, self._left)  # the job's position in its last image
        self._came, self._held = Came.STAYED, self._course.here
        self._clear()

    def run(self) -> Ride:
        while self._piece < len(self._world.usage.seconds):
            self._step()
        self._pay(self._now)
        self._ride.elapsed_seconds = self._now
        return self._ride

    def _clear(self) -> None:
        """A new minute begins."""
        self._seen, self._most, self._used = 0.0, 0.0, 0.0

    def _step(self) -> None:
        usage, here = self._world.usage, self._kinds[self._course.here]
        memory, cores = float(usage.memory_bytes[self._piece]), float(usage.cores[self._piece])
        spot = self._world.spot
        self._ride.used.append((self._now, memory, cores))
        if spot is not None and not spot.is_up(self._now):
            self._reclaimed(spot)
            return
        if memory > here.usable_bytes:
            self._rescue()
            return
        speed = min(1.0, here.cores / cores) if cores > 0 else 1.0
        lasts = min(self._left / speed, LOOK_SECONDS - self._seen, np.inf if spot is None else spot.until_change(self._now))
        self._now += lasts
        self._left -= lasts * speed
        self._seen += lasts
        self._most = max(self._most, memory)
        self._used += min(cores, here.cores) * lasts
        if self._left <= 1e-9:
            self._piece += 1
            self._left = float(usage.seconds[self._piece]) if self._piece < len(usage.seconds) else 0.0
        if self._seen >= LOOK_SECONDS - 1e-9:
            self._look(memory)

    def _look(self, memory: float, free: bool = False) -> None:
        moment = SizeMoment(
            self._course.here, self._seen, memory, self._most, self._used / max(self._seen, 1e-9), self._came, free=free
        )
        self._clear()
        self._came = Came.STAYED
        self._course, choice = ask_policy(self._policy, self._course, moment, self._now)
        self._ride.alarm = self._ride.alarm or self._course.alarm
        if choice.to is not None and not free:
            self._move(choice.to, Came.PLANNED)
        elif choice.to is not None:
            self._course = moved(self._course, choice.to, self._now)

    def _rescue(self) -> None:
        """Frozen at the guard's level: the further need of the job is unknown then."""
        level = self._kinds[self._course.here].usable_bytes
        self._course = replace(self._course, peak_bytes=max(self._course.peak_bytes, self._most, level))
        if self._seen > 0:
            self._course = replace(self._course, cores=self._used / self._seen)
        to = guard_rescue(self._course, level, self._now)
        if to is None:
            raise ValueError("nothing among the types holds the run's peak")
        if self._world.guard:
            self._ride.near_misses += 1
        else:
            self._ride.ooms += 1
            self._piece, self._left = self._image
        self._clear()
        self._move(to, Came.FORCED)

    def _move(self, to: int, came: Came) -> None:
        self._ride.moves += 1
        self._ride.moved_at.append(self._now)
        self._course = moved(self._course, to, self._now)
        self._launch(to, came, self._now)

    def _launch(self, to: int, came: Came, from_: float) -> None:
        """The old machine costs until the move is done, the new one from its begin."""
        done = from_ + self._world.terms.move_seconds
        self._pay(done)
        self._held, self._since, self._now = to, from_, done
        self._came, self._image = came, (self._piece, self._left)

    def _reclaimed(self, spot: SpotTimes) -> None:
        """The job was frozen within the notice; the next machine may have any size."""
        self._ride.reclaims += 1
        memory = float(self._world.usage.memory_bytes[self._piece])
        self._pay(self._now, reclaimed=True)
        if self._seen > 0:
            self._look(memory, free=True)
        self._now += spot.until_change(self._now)
        self._held, self._since = self._course.here, self._now
        self._now += self._world.terms.move_seconds
        self._came, self._image = Came.RECLAIMED, (self._piece, self._left)

    def _pay(self, until: float, reclaimed: bool = False) -> None:
        self._ride.usd += self._kinds[self._held].usd_per_hour * (until - self._since) / HOUR
        self._ride.held.append(Held(self._held, self._since, until, reclaimed))


class Stay:
    """Stays on the requested type: shows the effect of reclaims."""

    def begin(self, terms: SizeTerms) -> tuple[None, int]:
        """Begin on the requested type, without memory."""
        return None, terms.start

    def look(self, memory: None, moment: SizeMoment) -> tuple[None, SizeChoice]:
        """Stay."""
        del memory, moment
        return None, SizeChoice()


def fixed(kind: int, world: World) -> Ride | None:
    """The run on one type from begin to end; None if it does not hold the peak."""
    usage, machine = world.usage, world.terms.kinds[kind]
    if usage.memory_bytes.max() > machine.usable_bytes:
        return None
    usd = float((machine.usd_per_hour * usage.seconds * _stretch(machine, usage)).sum()) / HOUR
    ends = (usage.seconds * _stretch(machine, usage)).cumsum()
    used = list(zip([0.0, *ends[:-1].tolist()], *_asked(usage), strict=True))
    return Ride(usd, elapsed_seconds=float(ends[-1]), held=[Held(kind, 0.0, float(ends[-1]))], used=used)


def best_fixed(world: World) -> Ride:
    """The cheapest type in hindsight. Raises ValueError if none holds the peak."""
    rides = [r for r in (fixed(i, world) for i in range(len(world.terms.kinds))) if r is not None]
    if not rides:
        raise ValueError("nothing among the types holds the run's peak")
    return min(rides, key=lambda r: (r.usd, r.elapsed_seconds))


def optimum(world: World) -> Ride:
    """The least cost with hindsight, begun on any type: a dynamic program over pieces and types."""
    kinds, usage, n = world.terms.kinds, world.usage, len(world.usage.seconds)
    price = np.array([k.usd_per_hour for k in kinds]) / HOUR
    piece = np.array([usage.seconds * _stretch(k, usage) for k in kinds]).T
    fits = np.array([usage.memory_bytes <= k.usable_bytes for k in kinds]).T
    cost = np.where(fits, piece * price, np.inf)
    move = world.terms.move_seconds * (price[:, None] + price[None, :])
    np.fill_diagonal(move, 0.0)
    ahead, choice = np.zeros(len(kinds)), np.zeros((n, len(kinds)), dtype=np.int64)
    for i in range(n - 1, -1, -1):
        through = move + (cost[i] + ahead)[None, :]
        choice[i] = through.argmin(axis=1)
        ahead = through[np.arange(len(kinds)), choice[i]]
    return _told(world, choice, piece, int(ahead.argmin()), float(ahead.min()))


def _told(world: World, choice: npt.NDArray[np.int64], piece: Floats, start: int, usd: float) -> Ride:
    ride, here, now, since = Ride(usd), int(choice[0, start]), 0.0, 0.0
    for i, (memory, cores) in enumerate(zip(*_asked(world.usage), strict=True)):
        to = int(choice[i, here])
        if to != here:
            ride.moved_at.append(now)
            ride.held.append(Held(here, since, now + world.terms.move_seconds))
            here, since, now = to, now, now + world.terms.move_seconds
        ride.used.append((now, memory, cores))
        now += float(piece[i, here])
    ride.held.append(Held(here, since, now))
    ride.moves, ride.elapsed_seconds = len(ride.moved_at), now
    return ride


def _asked(usage: Usage) -> tuple[list[float], list[float]]:
    """Bytes and cores by piece."""
    return usage.memory_bytes.tolist(), usage.cores.tolist()


def _stretch(kind: MachineKind, usage: Usage) -> Floats:
    stretched: Floats = np.maximum(1.0, usage.cores / kind.cores)
    return stretched


# ---- Comparison of policies on one run

Settings = Mapping[str, Mapping[str, object]]
NONE: Settings = {}
HINDSIGHT = {"best-fixed": best_fixed, OPTIMUM: optimum}  # these know the run beforehand


@dataclass(frozen=True, slots=True)
class Rides:
    """Results of a run by policy; `fixed_usd`: on the best fixed type."""

    by_policy: Mapping[str, Ride]
    fixed_usd: float
    run_seconds: float

    def figures(self) -> dict[str, dict[str, object]]:
        """By policy: money, moves, near misses, runs killed for memory, elapsed time over the run's own, saving."""
        return {name: self._of(ride) for name, ride in self.by_policy.items()}

    def _of(self, ride: Ride) -> dict[str, object]:
        found: dict[str, object] = {
            "usd": ride.usd,
            "moves": ride.moves,
            "oom": ride.ooms,
            "near_misses": ride.near_misses,
            "stretch": ride.elapsed_seconds / self.run_seconds,
            "saving_against_best_fixed": 1 - ride.usd / self.fixed_usd,
        }
        return found | ({"alarm": ride.alarm} if ride.alarm else {})


def compare(world: World, names: Sequence[str], step: Step, settings: Settings = NONE) -> Rides:
    """The results by policy. Raises UsageError if no type holds the run, ConfigError for unknown policies."""
    _check(world)
    policies = {n: size_policy(n, settings.get(n, {})) for n in names if n not in HINDSIGHT}
    rides: dict[str, Ride] = {}
    for i, name in enumerate(names):
        step(i, len(names))
        rides[name] = HINDSIGHT[name](world) if name in HINDSIGHT else play(policies[name], world)
    step(len(names), len(names))
    return Rides(rides, best_fixed(world).usd, world.usage.total_seconds)


def size_policy(name: str, settings: Mapping[str, object]) -> Size:
    """The policy of this name. Raises ConfigError with the known names."""
    policy: Size = made(SIZE, name, settings)
    return policy


def _check(world: World) -> None:
    kinds, peak = world.terms.kinds, float(world.usage.memory_bytes.max())
    if all(k.usable_bytes < peak for k in kinds):
        largest = max(kinds, key=lambda k: k.memory_bytes)
        raise UsageError(
            f"The run's peak of {peak / 2**30:.1f} GiB fits none of the types: the largest, {largest.name}, can use "
            f"{largest.usable_bytes / 2**30:.1f} GiB. Allow larger --types, or set a smaller --scale-memory."
        )


# ---- Plots: use of the job and size of its machine over time, by policy.

GIB = float(1 << 30)
BINS = 600  # drawn points of a run, each with the maximum of its time
Points = list[tuple[float, float]]


def plots(rides: Mapping[str, Ride], kinds: Sequence[MachineKind]) -> list[Plot]:
    """Two plots for each policy, over hours since the run began: memory, and cores."""
    return [plot for name, ride in rides.items() for plot in _of(name, ride, kinds)]


def _of(name: str, ride: Ride, kinds: Sequence[MachineKind]) -> Iterator[Plot]:
    axis = "hours since it began"
    has: dict[str, Callable[[MachineKind], float]] = {"GiB": lambda k: k.memory_bytes / GIB, "cores": lambda k: k.cores}
    used = {"GiB": [(at, memory / GIB) for at, memory, _ in ride.used], "cores": [(at, cores) for at, _, cores in ride.used]}
    for unit, title in (("GiB", "memory"), ("cores", "cores")):
        machine = [(h.begin, has[unit](kinds[h.kind])) for h in sorted(ride.held, key=lambda h: h.begin)]
        series = [Series("wanted", _steps(most(used[unit]), ride)), Series("machine", _steps(machine, ride))]
        yield Lines(f"{name}: {title}", axis, unit, series)


def most(points: Points) -> Points:
    """At most 600 points over equal times, each the maximum of its time."""
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
