"""Hidden Markov models from records of when spot could be had: Baum and Welch's algorithm, from several random beginnings.

Pure: chance comes in as a generator of numpy. All markets and beginnings are computed side by side.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from spotsurfer.ports.purchase import Floats
from spotsurfer_policies.banks import encoded
from spotsurfer_policies.regimes import TICK_SECONDS, Model, scaled

STATES = 5
BEGINNINGS, FIRST_ROUNDS, ROUNDS = 4, 40, 150
# What is added to the counts of each round, so that nothing is believed to be impossible because it was not seen.
CHANGE, STAY, SEEN, LOOKS = 0.01, 0.1, 0.05, 0.1
LEAST_TICKS = 100

Step = Callable[[int, int], None]
Records = npt.NDArray[np.int8]  # (market, tick): 1 = could be had, 0 = not, -1 = nobody looked or past the end


@dataclass(frozen=True, slots=True, eq=False)
class _Guess:
    """Models side by side: arrays begin with (market, beginning)."""

    a: Floats
    b: Floats
    share: Floats


def make_bank(
    records: Mapping[str, npt.NDArray[np.int8]], tick_seconds: float, states: int, rng: np.random.Generator, step: Step
) -> tuple[str, list[str]]:
    """A bank as a file's text, and the names of its models; records at that tick. Raises ValueError."""
    models = [Model(m.name, scaled(m.a, TICK_SECONDS / tick_seconds), m.b, m.share) for m in train(records, states, rng, step)]
    return encoded(models, {"states": states}), [m.name for m in models]


def train(
    records: Mapping[str, npt.NDArray[np.int8]], states: int, rng: np.random.Generator, step: Step = lambda *_: None
) -> list[Model]:
    """A model for each market of at least `LEAST_TICKS` ticks. Raises ValueError where none is long enough."""
    kept = {name: seen for name, seen in records.items() if (seen >= 0).sum() >= LEAST_TICKS}
    if not kept:
        raise ValueError(f"no market was looked at for {LEAST_TICKS} ticks or more")
    longest = max(len(seen) for seen in kept.values())
    padded = np.full((len(kept), longest), -1, np.int8)
    lengths = np.array([len(seen) for seen in kept.values()])
    for row, seen in zip(padded, kept.values(), strict=True):
        row[: len(seen)] = seen
    guess = _random(len(kept), states, rng)
    for i in range(FIRST_ROUNDS):
        guess, _ = _round(guess, padded, lengths)
        step(i, FIRST_ROUNDS + ROUNDS)
    _, likely = _round(guess, padded, lengths)
    best = likely.argmax(axis=1)[:, None]
    guess = _Guess(_chosen(guess.a, best), _chosen(guess.b, best), _chosen(guess.share, best))
    for i in range(ROUNDS):
        guess, _ = _round(guess, padded, lengths)
        step(FIRST_ROUNDS + i + 1, FIRST_ROUNDS + ROUNDS)
    return [_model(name, guess, i) for i, name in enumerate(kept)]


def _chosen(values: Floats, best: npt.NDArray[np.int64]) -> Floats:
    """Of each market that beginning."""
    found: Floats = np.take_along_axis(values, best.reshape(best.shape + (1,) * (values.ndim - 2)), 1)
    return found


def _model(name: str, guess: _Guess, market: int) -> Model:
    """States in the order of how often spot can be had in them."""
    order = np.argsort(guess.b[market, 0])
    a = guess.a[market, 0][np.ix_(order, order)]
    return Model(name, a, guess.b[market, 0][order], guess.share[market, 0][order])


def _random(markets: int, states: int, rng: np.random.Generator) -> _Guess:
    shape = (markets, BEGINNINGS, states)
    a = rng.random((*shape, states)) * 0.1 + np.eye(states) * rng.uniform(1, 5, (*shape, 1))
    b = np.sort(rng.random(shape), axis=-1)
    return _Guess(a / a.sum(axis=-1, keepdims=True), b, np.full(shape, 1 / states))


def _round(guess: _Guess, seen: Records, lengths: npt.NDArray[np.int64]) -> tuple[_Guess, Floats]:
    """One step of the algorithm, and how likely (log) the records were before it, by market and beginning."""
    ticks, states = seen.shape[1], guess.b.shape[-1]
    look = seen.T[:, :, None, None]
    fits = np.where(look == 1, guess.b, np.where(look == 0, 1 - guess.b, 1.0))
    inside = (np.arange(ticks)[:, None] < lengths)[:, :, None, None]
    ahead, scale = np.empty_like(fits), np.ones(fits.shape[:-1])
    state = guess.share * fits[0]
    for t in range(ticks):
        if t:
            state = (state[..., None, :] @ guess.a)[..., 0, :] * fits[t]
        scale[t] = state.sum(axis=-1)
        state = state / scale[t][..., None]
        ahead[t] = state
    back = np.ones_like(fits[0])
    held = np.empty_like(fits)
    held[-1] = ahead[-1]
    moved = np.zeros_like(guess.a)
    for t in range(ticks - 1, 0, -1):
        front = fits[t] * back / scale[t][..., None]
        moved += np.where(inside[t][..., None], ahead[t - 1][..., :, None] * guess.a * front[..., None, :], 0.0)
        back = np.where(inside[t], (guess.a @ front[..., None])[..., 0], back)
        held[t - 1] = ahead[t - 1] * back
    counted = np.where(inside, held, 0.0)
    a = moved + CHANGE + STAY * np.eye(states)
    looked = np.where(look >= 0, counted, 0.0)
    b = (np.where(look == 1, counted, 0.0).sum(axis=0) + SEEN) / (looked.sum(axis=0) + LOOKS)
    share = counted.sum(axis=0)
    new = _Guess(a / a.sum(axis=-1, keepdims=True), b, share / share.sum(axis=-1, keepdims=True))
    return new, np.where(inside[..., 0], np.log(scale), 0.0).sum(axis=0)
