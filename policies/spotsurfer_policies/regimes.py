"""Hidden Markov models of when spot can be had: one for each market that was watched, all of them together a bank.

A model has a few hidden states (calm, flickering, empty ...). `a[j, k]` is the chance to be in k one tick after j, `b[k]` the
chance that spot can be had in k, `share[k]` how much of the time is spent there. A bank is one large model whose states are all
states of its models: which one is right is found out while looking on (Bayes' filter), and may change (`SWITCH`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
import numpy.typing as npt

from spotsurfer.ports.purchase import Floats, Seen

SWITCH = 1 / 3000  # a tick of ten minutes: the market behaves like another one from now on
TICK_SECONDS = 600.0  # of the models here
# Markets that no recorded one is like, so that a strange one is met with an open mind: two-state chains by the chance to change
# a tick, and markets without memory.
CHANGES = (1 / 120, 1 / 30, 1 / 8, 1 / 3)
CHANCES = (0.2, 0.4, 0.6, 0.8)


@dataclass(frozen=True, slots=True, eq=False)
class Model:
    """One market. Arrays over hidden states; rows of `a` sum to 1, as does `share`."""

    name: str
    a: Floats
    b: Floats
    share: Floats


@dataclass(frozen=True, slots=True, eq=False)
class Bank:
    """Models side by side, as one."""

    a: Floats
    b: Floats
    share: Floats


def bank(models: Sequence[Model], tick_seconds: float, strange: float) -> Bank:
    """The models, and made-up ones that together weigh `strange`. Raises ValueError where there is no model at all."""
    extra = strangers() if strange > 0 else []
    if not models and not extra:
        raise ValueError("a bank needs a model")
    shares = (1.0 - strange if models and extra else 1.0, strange if models else 1.0)
    weights = [w / len(some) for w, some in zip(shares, (models, extra), strict=True) for _ in some]
    every = [*models, *extra]
    size = sum(len(m.b) for m in every)
    a, at = np.zeros((size, size)), 0
    for m in every:
        a[at : at + len(m.b), at : at + len(m.b)] = scaled(m.a, tick_seconds / TICK_SECONDS)
        at += len(m.b)
    share = np.concatenate([w * m.share for w, m in zip(weights, every, strict=True)])
    switch = 1 - (1 - SWITCH) ** (tick_seconds / TICK_SECONDS)
    return Bank((1 - switch) * a + switch * share, np.concatenate([m.b for m in every]), share)


def strangers() -> list[Model]:
    """Made-up markets: they stay as they are for a typical time, or have no memory."""
    found = []
    for down, up in product(CHANGES, CHANGES):  # chance to go down, to come up
        a = np.array([[1 - up, up], [down, 1 - down]])
        found.append(Model(f"chain {down:.3f} {up:.3f}", a, np.array([0.001, 0.999]), np.array([down, up]) / (down + up)))
    for chance in CHANCES:
        found.append(Model(f"chance {chance}", np.ones((1, 1)), np.array([chance]), np.ones(1)))
    return found


def scaled(a: Floats, ticks: float) -> Floats:
    """The same chain seen at another pace: a matrix power, made a matrix of chances again where it is none."""
    if ticks == 1.0 or len(a) == 1:
        return a
    values, vectors = np.linalg.eig(a)
    power = (vectors * values.astype(complex) ** ticks) @ np.linalg.inv(vectors)
    chances = np.clip(power.real, 0.0, None)
    found: Floats = chances / chances.sum(axis=1, keepdims=True)
    return found


def learn(belief: Floats, model: Bank, seen: Seen, first: bool) -> Floats:
    """The filter: (run, state) after one more look; `seen` 1, 0, or -1 = nobody looked."""
    ahead = belief if first else belief @ model.a
    fits = np.where(seen[:, None] == 1, model.b, np.where(seen[:, None] == 0, 1 - model.b, 1.0))
    weighed = ahead * fits
    found: Floats = weighed / weighed.sum(axis=1, keepdims=True)
    return found


def learn_more(belief: Floats, model: Bank, up: npt.NDArray[np.bool_]) -> Floats:
    """The belief of those runs as it would be if spot could be had."""
    weighed = belief * np.where(up[:, None], model.b, 1.0)
    found: Floats = weighed / weighed.sum(axis=1, keepdims=True)
    return found


def learn_one(ahead: Floats, model: Bank, seen: bool | None) -> Floats:
    """As `learn`, of a single run: `ahead` is what was expected of this tick."""
    if seen is None:
        return ahead
    weighed = ahead * model.b if seen else ahead * (1 - model.b)
    found: Floats = weighed / weighed.sum()
    return found
