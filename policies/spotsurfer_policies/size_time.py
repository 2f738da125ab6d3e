"""How long a run takes on each type, and how much time a size policy may still cost it.

The measure is the run's time on the machine that was asked for. Time is lost on types with fewer cores than the job uses, and
in moves. A job that uses all cores of a small type hides how many it wants: what is lost then is estimated, and bounded at
worst, until it has cores to spare again. Then most of it is reckoned by what the job uses there.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from spotsurfer.ports.policies import Came, SizeMoment, SizeTerms

Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]
SATURATED = 0.97  # of the cores: above, the demand for more is hidden
HIDDEN = 2.0  # times what may be lost as far as can be seen: what may be lost at worst, until demand is seen again
LEAST_SECONDS = 3600.0  # a run is taken to be at least so long
FORGOTTEN_SECONDS = 3600.0  # of hidden demand: what was known before counts for a third then
TRUST_MOST, TRUST_GROWS, SAME_CORES = 16.0, 4.0, 1.1
DOUBT = 0.3  # of hidden time is reckoned at worst even after the job has shown what it wants: less, the more it is trusted
FREE_MOVES = 2  # are allowed besides: there and back
HOUR = 3600.0
NEVER = 1e9  # seconds
TINY = 1e-9


@dataclass(frozen=True, slots=True)
class Table:
    """The types as arrays."""

    price: Floats  # USD a second
    cores: Floats
    usable: Floats  # bytes
    round_trip: Floats  # USD, by pair
    start: int
    threads: float
    asked: float  # cores of the request
    move_seconds: float


def table_of(terms: SizeTerms) -> Table:
    """The types as arrays."""
    price = np.array([k.usd_per_hour for k in terms.kinds]) / HOUR
    cores = np.array([k.cores for k in terms.kinds])
    usable = np.array([k.usable_bytes for k in terms.kinds])
    trip = 2 * terms.move_seconds * (price[:, None] + price[None, :])
    threads, asked = terms.threads or float(cores.max()), terms.asked_cores or float(cores[terms.start])
    return Table(price, cores, usable, trip, terms.start, threads, asked, terms.move_seconds)


@dataclass(frozen=True, slots=True)
class Tally:
    """Seconds that the work so far takes on the machine that was asked for, and seconds that it took beyond these."""

    work: float = 0.0
    lost: float = 0.0

    def plus(self, seconds: float, pace: float) -> Tally:
        """After so many seconds at a pace relative to the requested machine."""
        return Tally(self.work + seconds * pace, self.lost + seconds * (1 - pace))

    def mixed(self, other: Tally, share: float) -> Tally:
        """With this share of the other one."""
        return Tally(*((1 - share) * a + share * b for a, b in ((self.work, other.work), (self.lost, other.lost))))

    def left(self, share: float, move_seconds: float) -> float:
        """Seconds that may still be lost if `share` of the work's time may."""
        return share * max(self.work, LEAST_SECONDS) + FREE_MOVES * move_seconds - self.lost


@dataclass(frozen=True, slots=True)
class Spent:
    """The time of a run so far.

    `hidden`: seconds on each type in which the job used all cores, since it last had some to spare; `tally` is without them.
    `known_cores`: used when it last had some to spare. `trust`: grows each time that this had not become more meanwhile.
    """

    hidden: Floats
    tally: Tally = field(default_factory=Tally)
    known_cores: float = 0.0
    trust: float = 1.0

    def told(self, table: Table, wanted: float) -> Tally:
        """As if it had wanted so many cores in all hidden seconds, or all of the type if these are more."""
        speed = pace(table.cores, table.asked, np.maximum(wanted, table.cores))
        work = float(self.hidden @ speed)
        return Tally(self.tally.work + work, self.tally.lost + float(self.hidden.sum()) - work)


@dataclass(frozen=True, slots=True)
class Demand:
    """Cores that the job would use with enough of them: as far as can be seen, and at most."""

    cores: float
    most: float


@dataclass(frozen=True, slots=True)
class Room:
    """Where the run may be, by time. `full`: types as fast as the requested one; `may`: types that it may use."""

    full: Flags
    may: Flags
    moves: bool  # whether there is time for a move


def demand(table: Table, moment: SizeMoment, most_cores: float, spent: Spent) -> Demand:
    """The used cores, unless the job used all and could use more.

    Then those that it used when it last had some to spare, and with time, or if these are fewer, twice those that it uses.
    """
    here, used = float(table.cores[moment.here]), moment.cores
    if used <= SATURATED * here or here >= table.threads:
        return Demand(used, used)
    guess = min(most_cores, 2 * used) if most_cores > here else 2 * used
    known = spent.known_cores if spent.known_cores > SATURATED * here else guess
    trust = float(np.exp(-spent.hidden.sum() / (FORGOTTEN_SECONDS * spent.trust)))
    cores = max(used, trust * known + (1 - trust) * guess)
    return Demand(cores, max(cores, min(table.asked, max(table.threads, most_cores))))


def pace(cores: Floats, asked: float, wanted: Floats | float) -> Floats:
    """Speed with so many cores relative to that with those asked for, of a job that wants so many."""
    wanted = np.maximum(wanted, TINY)
    found: Floats = np.minimum(1.0, cores / wanted) / np.minimum(1.0, asked / wanted)
    return found


def went_on(spent: Spent, table: Table, moment: SizeMoment, wants: Demand) -> Spent:
    """The time after one more look."""
    moving = table.move_seconds * (moment.came in (Came.PLANNED, Came.FORCED))
    tally = replace(spent.tally, lost=spent.tally.lost + moving)
    here = np.zeros(len(table.cores))
    here[moment.here] = moment.seconds
    if wants.most > moment.cores:
        return replace(spent, tally=tally, hidden=spent.hidden + here)
    after = replace(spent, tally=tally)
    told = after.told(table, moment.cores).mixed(after.told(table, max(moment.cores, table.threads)), DOUBT / spent.trust)
    speed = float(pace(table.cores, table.asked, moment.cores)[moment.here])
    return Spent(0 * here, told.plus(moment.seconds, speed), moment.cores, _trust(spent, moment.cores))


def _trust(spent: Spent, cores: float) -> float:
    """After the job has shown again how many cores it wants."""
    if not spent.hidden.any():
        return spent.trust
    return min(TRUST_MOST, TRUST_GROWS * spent.trust) if cores <= SAME_CORES * spent.known_cores else max(1.0, spent.trust / 2)


def room(stretch: float, spent: Spent, table: Table, moment: SizeMoment, wants: Demand) -> Room:
    """Where it may be if the whole run may take `stretch` times as long as on the machine that was asked for.

    A slower type is gone to only if the time left suffices for the way there and back, and to save what both cost. It is left
    while there is time for the way.
    """
    move, share = table.move_seconds, stretch - 1
    rate = table.price * np.maximum(1.0, wants.cores / table.cores)
    pays = np.minimum(NEVER, table.round_trip[moment.here] / np.maximum(rate[moment.here] - rate, TINY * rate))
    may, stays = np.ones(len(rate), dtype=np.bool_), True
    worst = HIDDEN * spent.trust * share, wants.most, max(wants.most, table.threads)
    for of_it, most, later in ((share, wants.cores, wants.cores), worst):
        left = spent.told(table, most).left(of_it, move)
        stays &= left >= move + moment.seconds * (1 - float(pace(table.cores, table.asked, most)[moment.here]))
        slow = 1 / pace(table.cores, table.asked, later) - 1
        may &= left >= 2 * move + pays * np.maximum(slow - of_it, 0.0)
    full = pace(table.cores, table.asked, wants.most) >= 1 - TINY
    shows = (wants.cores <= SATURATED * table.cores) | (table.cores >= table.threads)  # else there must be time to come back
    may |= shows & (pace(table.cores, table.asked, wants.cores) >= 1 - TINY)
    may[moment.here] = full[moment.here] or stays
    return Room(full, may, spent.told(table, wants.cores).left(share, move) >= move)
