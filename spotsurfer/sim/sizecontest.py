"""Size policies against each other on one run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from spotsurfer.model.errors import UsageError
from spotsurfer.plugins import SIZE, made
from spotsurfer.ports.size import Size
from spotsurfer.sim.match import Step
from spotsurfer.sim.sizing import Ride, World, best_fixed, optimum, play

Settings = Mapping[str, Mapping[str, object]]
NONE: Settings = {}
BEST_FIXED, OPTIMUM = "best-fixed", "optimum"
HINDSIGHT = {BEST_FIXED: best_fixed, OPTIMUM: optimum}  # they know the run beforehand


@dataclass(frozen=True, slots=True)
class Rides:
    """What came of a run, by policy; `fixed_usd`: on the best fixed type."""

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
    """Raises UsageError where no type holds the run, ConfigError for policies that there are not."""
    _check(world)
    policies = {n: size_policy(n, settings.get(n, {})) for n in names if n not in HINDSIGHT}
    rides: dict[str, Ride] = {}
    for i, name in enumerate(names):
        step(i, len(names))
        rides[name] = HINDSIGHT[name](world) if name in HINDSIGHT else play(policies[name], world)
    step(len(names), len(names))
    return Rides(rides, best_fixed(world).usd, world.usage.total_seconds)


def size_policy(name: str, settings: Mapping[str, object]) -> Size:
    """The policy of this name. Raises ConfigError with the names there are."""
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
