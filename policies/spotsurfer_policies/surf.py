"""`surf`: a deadline kept at the least expected cost. A bank of market models, a belief over them, a dynamic program.

Each tick the belief is brought up to date by whether spot can be had; what is held next is what costs least by the table of
expected costs (`outlook`), averaged over the belief. Nothing is tuned to a deadline, a price or a restart time.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from importlib.resources import files
from pathlib import Path

import numpy as np
import numpy.typing as npt

from spotsurfer.ports.parameters import LEAVE_OUT, Parameter, parameters
from spotsurfer.ports.purchase import Buy, Choice, Floats, Modes, Moment, Pilot, Terms, View
from spotsurfer_policies.banks import decoded
from spotsurfer_policies.outlook import Market, Outlook, outlook, weigh, weigh_one
from spotsurfer_policies.regimes import Bank, Model, bank, learn, learn_more, learn_one

SHIPPED = "aws_2022.json"
STRANGE = 0.02
TABLES = 6  # kept at a time, some 50 MB each
SHARED_TICKS, SHARED_SPARE = 40, 12
SLIP = 1e-9
BUYS = tuple(Buy)
WORDS = ("waiting", "spot", "on-demand")


class Surf:
    """See the module. `models` are what it knows of markets; `strange` is how much it allows for others."""

    def __init__(self, models: Sequence[Model], strange: float = STRANGE) -> None:
        self._models, self._strange = tuple(models), strange
        self._banks = lru_cache(maxsize=TABLES)(self._bank)
        self._tables = lru_cache(maxsize=TABLES)(self._table)
        self._last: tuple[float, tuple[bool | None, ...], Floats] | None = None

    def choose(self, view: View) -> Choice:
        """What to hold during the next tick, with the expected cost of each."""
        costs = self.costs(view)
        buy = BUYS[costs.index(min(costs))]
        per_hour = view.terms.on_demand_usd_per_hour
        told = ", ".join(f"{word} {cost * per_hour:.2f}" for word, cost in zip(WORDS, costs, strict=True))
        return Choice(buy, f"{WORDS[buy]} costs least from here on; expected USD: {told}")

    def costs(self, view: View) -> list[float]:
        """Expected cost to go of waiting, spot and on-demand during the next tick, in on-demand hours."""
        terms, tick, d = view.terms, view.terms.tick_seconds, view.terms.restart_seconds
        left = max(1, math.floor((terms.deadline_seconds - view.elapsed_seconds) / tick + SLIP))
        spare = left * tick - (terms.work_seconds - view.done_seconds)
        spot, on_demand = (spare - (view.owed_seconds if view.held is b else d) for b in (Buy.SPOT, Buy.ON_DEMAND))
        seen = view.spot_seen or (None,)
        if seen[-1] is None:  # nobody knows: to try costs nothing, so what counts is what to do if there is some
            seen = (*seen[:-1], True)
        belief = self.belief(tick, seen)
        return weigh_one(self._outlook(terms), left, (spare - tick, spot, on_demand), seen[-1] is True, belief)

    def pilot(self, terms: Terms, runs: int, past: tuple[bool | None, ...] = ()) -> Pilot:
        """The same for many runs; the belief is carried along."""
        model = self._banks(terms.tick_seconds)
        state = [np.tile(self.belief(terms.tick_seconds, past), (runs, 1))]
        begun = [bool(past)]

        def pilot(moment: Moment) -> Modes:
            belief = state[0] = learn(state[0], model, moment.spot_seen, not begun[0])
            begun[0] = True
            if (moment.spot_seen < 0).any():  # as in `costs`
                belief = learn_more(belief, model, moment.spot_seen < 0)
            best: Modes = self._costs(moment, terms, belief).argmin(axis=0).astype(np.int8)
            return best

        return pilot

    def belief(self, tick: float, seen: tuple[bool | None, ...]) -> Floats:
        """What is believed of the market after all that was seen, a chance each state. The past is not computed twice."""
        model = self._banks(tick)
        belief, known = model.share, 0
        if self._last is not None and self._last[0] == tick and self._last[1] == seen[: len(self._last[1])]:
            known, belief = len(self._last[1]), self._last[2]
        for i in range(known, len(seen)):
            belief = learn_one(belief if i == 0 else belief @ model.a, model, seen[i])
        self._last = (tick, seen, belief)
        return belief

    def imagine(self, view: View, runs: int, ticks: int, rng: np.random.Generator) -> npt.NDArray[np.bool_]:
        """Markets as the bank has them go on from what is believed now."""
        tick, seen = view.terms.tick_seconds, view.spot_seen
        model = self._banks(tick)
        state = _drawn(np.cumsum(self.belief(tick, seen))[None, :].repeat(runs, axis=0), rng)
        ahead, up = np.cumsum(model.a, axis=1), np.zeros((runs, ticks), np.bool_)
        for i in range(ticks):
            up[:, i] = rng.random(runs) < model.b[state]
            state = _drawn(ahead[state], rng)
        if seen and seen[-1] is not None:
            up[:, 0] = seen[-1]
        return up

    def _costs(self, moment: Moment, terms: Terms, belief: Floats) -> Floats:
        tick, d = terms.tick_seconds, terms.restart_seconds
        left = max(1, math.floor((terms.deadline_seconds - moment.elapsed_seconds) / tick + SLIP))
        table = self._outlook(terms)
        spare = left * tick - (terms.work_seconds - moment.done_seconds)
        spot = spare - np.where(moment.held == Buy.SPOT, moment.owed_seconds, d)
        on_demand = spare - np.where(moment.held == Buy.ON_DEMAND, moment.owed_seconds, d)
        return weigh(table, left, (spare - tick, spot, on_demand), moment.spot_seen != 0, belief)

    def _outlook(self, terms: Terms) -> Outlook:
        tick = terms.tick_seconds
        ticks = math.floor(terms.deadline_seconds / tick + SLIP)
        market = Market(
            terms.tick_seconds, terms.restart_seconds, terms.spot_usd_per_hour / (terms.on_demand_usd_per_hour or 1.0)
        )
        # Rounded up: a table serves every shorter deadline, so that jobs share them.
        steps = math.ceil((terms.deadline_seconds - terms.work_seconds) / tick / SHARED_SPARE)
        return self._tables(market, SHARED_TICKS * math.ceil(ticks / SHARED_TICKS), steps * SHARED_SPARE * tick)

    def _bank(self, tick: float) -> Bank:
        return bank(self._models, tick, self._strange)

    def _table(self, market: Market, ticks: int, spare: float) -> Outlook:
        return outlook(self._banks(market.tick), market, ticks, spare)


def _drawn(sums: Floats, rng: np.random.Generator) -> npt.NDArray[np.int64]:
    """A state each run, by running sums of chances."""
    found: npt.NDArray[np.int64] = (sums < rng.random((len(sums), 1))).sum(axis=1).clip(0, sums.shape[1] - 1)
    return found


@parameters(
    Parameter("bank", "", "file of market models, as `spotsurfer policies train` writes it; empty = those that ship"),
    Parameter("strange", STRANGE, "weight of made-up markets that no model is like, 0 to 1"),
    Parameter("leave_out", [], "names of models that are not used"),
)
def make(settings: Mapping[str, object]) -> Surf:
    """A deadline kept at the least expected cost: market models, a belief, a dynamic program. Raises ValueError."""
    if unknown := set(settings) - {"bank", "strange", LEAVE_OUT}:
        raise ValueError(f"purchase.surf: unknown: {', '.join(sorted(unknown))}")
    strange, out, path = settings.get("strange", STRANGE), settings.get(LEAVE_OUT, []), settings.get("bank", "")
    if isinstance(strange, bool) or not isinstance(strange, int | float) or not 0 <= strange <= 1:
        raise ValueError("purchase.surf: strange must be a number from 0 to 1")
    if not isinstance(out, list) or not all(isinstance(x, str) for x in out):
        raise ValueError("purchase.surf: leave_out must be a list of names")
    if not isinstance(path, str):
        raise ValueError("purchase.surf: bank must be the path of a file")
    models = _read(path)
    return Surf([m for m in models if m.name not in out], float(strange))


def _read(path: str) -> list[Model]:
    try:
        return decoded(Path(path).read_text() if path else (files("spotsurfer_policies.banks") / SHIPPED).read_text())
    except (OSError, UnicodeDecodeError, ValueError) as e:
        raise ValueError(f"purchase.surf: the bank {path or SHIPPED} can't be used: {e}") from e
