"""With earlier runs of the same step: the cheapest way on, by their charts.

Where they do not explain what is seen, the policy of a first run decides.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from spotsurfer.ports.size import Moment, SizeChoice, SizeTerms
from spotsurfer_policies.size_chart import Belief, Chart, believed, chart, outlook, went_on
from spotsurfer_policies.size_rental import Floats, Rental, Riding, Table, table_of

FORGET_RUN = 0.98  # of the evidence for one earlier run or another
TRUST = 0.5  # below so much explained, the first-run policy decides
ROOM = 1.01  # a type must hold so many times what is used now
LATEST = 3  # earlier runs that are looked at


@dataclass(frozen=True, slots=True)
class Recalling:
    """What is remembered of a run: a chart and a belief for each earlier run, and what the first-run policy remembers.

    `evidence`: logarithms of how well each earlier run foretold what was seen, the past forgotten slowly.
    """

    first: Riding
    table: Table
    move_seconds: float
    charts: tuple[Chart, ...]
    beliefs: tuple[Belief, ...]
    evidence: Floats

    @property
    def shares(self) -> Floats:
        """How much each earlier run is believed, together 1."""
        likely = np.exp(self.evidence - self.evidence.max())
        found: Floats = likely / likely.sum()
        return found

    @property
    def explained(self) -> float:
        """How well the last minutes were, 0 to 1."""
        return float(self.shares @ np.array([b.explained for b in self.beliefs]))

    def outlook(self) -> Floats:
        """Expected USD from here to the end, by type."""
        parts = [outlook(c, b) for c, b in zip(self.charts, self.beliefs, strict=True)]
        found: Floats = self.shares @ np.array(parts)
        return found


class Recall:
    """Plans by earlier runs while they explain what is seen."""

    def __init__(self, first: Rental, stretch: bool = False) -> None:
        """`first` decides where they don't."""
        self._first, self._stretch = first, stretch

    def begin(self, terms: SizeTerms) -> tuple[Recalling, int]:
        """On the type that the plan begins on."""
        table = table_of(terms)
        charts = tuple(chart(e, terms, table, self._stretch) for e in terms.earlier[-LATEST:])
        beliefs = tuple(believed(c) for c in charts)
        start = int(np.mean([outlook(c, b) for c, b in zip(charts, beliefs, strict=True)], axis=0).argmin())
        memory, _ = self._first.begin(replace(terms, start=start))
        return Recalling(memory, table, terms.move_seconds, charts, beliefs, np.zeros(len(charts))), start

    def look(self, memory: Recalling, moment: Moment) -> tuple[Recalling, SizeChoice]:
        """The plan's choice, or that of the first-run policy where earlier runs explain too little."""
        first, other = self._first.look(memory.first, moment)
        went = [went_on(c, b, moment, memory.table) for c, b in zip(memory.charts, memory.beliefs, strict=True)]
        evidence = FORGET_RUN * memory.evidence + np.array([log for _, log in went])
        memory = replace(memory, first=first, beliefs=tuple(b for b, _ in went), evidence=evidence)
        return memory, other if memory.explained < TRUST else _planned(memory, moment)


def _planned(memory: Recalling, moment: Moment) -> SizeChoice:
    """The type with the least expected cost, the move there included."""
    table, here = memory.table, moment.here
    move = 0.0 * table.price if moment.free else memory.move_seconds * (table.price + table.price[here])
    move[here] = 0.0
    total = memory.outlook() + move
    total[table.usable < ROOM * max(moment.memory_bytes, moment.hinted_bytes)] = np.inf
    total[table.cores < min(moment.hinted_cores, table.cores.max())] = np.inf
    to = int(total.argmin())
    if to == here or not total[to] < total[here]:
        return SizeChoice()
    return SizeChoice(to, f"by the earlier run it saves {total[here] - total[to]:.6f} USD")
