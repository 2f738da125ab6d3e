"""`threshold` for sizes: one step up after use above a ratio for some time, one step down after use below, then a pause.

These are the conventions of tools that resize by thresholds. A step is one size up or down within the family of the first
type. By default only memory counts; cores can count, too, but a computing program always uses 100 % of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from spotsurfer.ports.policies import Came, MachineKind, Parameter, SizeChoice, SizeMoment, SizeTerms, parameters
from spotsurfer_policies.parameter_values import values

GIB = 1 << 30
PARAMETERS = (
    Parameter("mem_upper", 90.0, "per cent of memory above which the job goes up; 0 = memory is not looked at"),
    Parameter("mem_lower", 20.0, "per cent of memory below which it goes down"),
    Parameter("cpu_upper", 0.0, "per cent of the cores above which the job goes up; 0 = cores are not looked at"),
    Parameter("cpu_lower", 0.0, "per cent of the cores below which it goes down"),
    Parameter("upper_seconds", 60.0, "it must have been above for so long"),
    Parameter("lower_seconds", 60.0, "it must have been below for so long"),
    Parameter("cool_down_seconds", 300.0, "after a move nothing is done for so long"),
    Parameter("step", 1.0, "sizes a move goes up or down"),
    Parameter("floor_gib", 0.0, "never on less memory"),
    Parameter("ceiling_gib", 0.0, "never on more memory; 0 = no limit"),
    Parameter("max_cpu_factor", 4.0, "never on more than so many times the cores that were asked for"),
    Parameter("max_memory_factor", 4.0, "never on more than so many times the memory that was asked for"),
)


@dataclass(frozen=True, slots=True)
class Bounds:
    """The parameters; see `PARAMETERS`."""

    mem_upper: float
    mem_lower: float
    cpu_upper: float
    cpu_lower: float
    upper_seconds: float
    lower_seconds: float
    cool_down_seconds: float
    step: float
    floor_gib: float
    ceiling_gib: float
    max_cpu_factor: float
    max_memory_factor: float


@dataclass(frozen=True, slots=True)
class Watch:
    """Memory of a run: how long use has been above and below, and the time since the last move."""

    kinds: tuple[MachineKind, ...]
    ladder: tuple[int, ...]  # possible types of a step, by memory
    above: float = 0.0
    below: float = 0.0
    rest: float = 0.0


class Threshold:
    """Plain thresholds."""

    def __init__(self, bounds: Bounds) -> None:
        self._bounds = bounds

    def begin(self, terms: SizeTerms) -> tuple[Watch, int]:
        """Begin on the requested type."""
        asked, b = terms.kinds[terms.start], self._bounds
        ceiling = min(b.ceiling_gib * GIB or float("inf"), b.max_memory_factor * asked.memory_bytes)
        ladder = [
            i
            for i, k in enumerate(terms.kinds)
            if k.family == asked.family
            and b.floor_gib * GIB <= k.memory_bytes <= ceiling
            and k.cores <= b.max_cpu_factor * asked.cores
        ]
        order = sorted(ladder, key=lambda i: (terms.kinds[i].memory_bytes, terms.kinds[i].cores))
        return Watch(terms.kinds, tuple(order)), terms.start

    def look(self, memory: Watch, moment: SizeMoment) -> tuple[Watch, SizeChoice]:
        """One step, if use passed a bound for long enough."""
        b, here = self._bounds, memory.kinds[moment.here]
        shares = (100 * moment.memory_max_bytes / here.memory_bytes, 100 * moment.cores / here.cores)
        bounds = ((b.mem_upper, b.mem_lower), (b.cpu_upper, b.cpu_lower))
        watched = [(share, up, low) for share, (up, low) in zip(shares, bounds, strict=True) if up > 0]
        above = any(share > up for share, up, _ in watched)
        below = bool(watched) and all(share < low for share, _, low in watched)
        rest = b.cool_down_seconds if moment.came is not Came.STAYED else max(0.0, memory.rest - moment.seconds)
        watch = replace(
            memory,
            above=memory.above + moment.seconds if above else 0.0,
            below=memory.below + moment.seconds if below else 0.0,
            rest=rest,
        )
        if rest > 0 and not moment.free:
            return watch, SizeChoice()
        if above and watch.above >= b.upper_seconds:
            return self._step(watch, moment, 1)
        if below and watch.below >= b.lower_seconds:
            return self._step(watch, moment, -1)
        return watch, SizeChoice()

    def _step(self, watch: Watch, moment: SizeMoment, way: int) -> tuple[Watch, SizeChoice]:
        here = watch.kinds[moment.here].memory_bytes
        rungs = [i for i in watch.ladder if (watch.kinds[i].memory_bytes - here) * way > 0]
        rungs = rungs if way > 0 else rungs[::-1]
        fit = [i for i in rungs[: int(self._bounds.step)] if watch.kinds[i].usable_bytes >= moment.memory_bytes]
        if not fit:
            return watch, SizeChoice()
        word = "above" if way > 0 else "below"
        return replace(watch, above=0.0, below=0.0), SizeChoice(fit[-1], f"use was {word} its bound for long enough")


@parameters(*PARAMETERS)
def make(settings: Mapping[str, object]) -> Threshold:
    """Up and down a size when memory (or cores) was above or below a ratio for a while."""
    found = values("size.threshold", settings, PARAMETERS)
    if below := [name for name, value in found.items() if value < 0]:
        raise ValueError(f"size.threshold: {below[0]} must be 0 or more")
    bounds = Bounds(**found)
    if bounds.step < 1 or bounds.step % 1:
        raise ValueError("size.threshold: step must be a whole number of at least 1")
    for upper, lower, name in ((bounds.mem_upper, bounds.mem_lower, "mem"), (bounds.cpu_upper, bounds.cpu_lower, "cpu")):
        if upper and lower >= upper:
            raise ValueError(f"size.threshold: {name}_lower must be below {name}_upper")
    return Threshold(bounds)
