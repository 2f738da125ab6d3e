"""Hidden Markov models of spot availability, banks of them, and their training (Baum-Welch).

A model has a few hidden states (calm, flickering, empty ...). `a[j, k]` is the chance to be in k one tick after j, `b[k]` the
chance that spot is available in k, `share[k]` the share of time in k. A bank is one large model with all states of its models,
one model for each recorded market. Bayes' filter finds out which model fits, and that may change (`SWITCH`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import numpy.typing as npt

from spotsurfer.ports.policies import Floats, Seen

# ---- Models, banks and the filter

SWITCH = 1 / 3000  # a tick of ten minutes: chance that the market behaves like another one from now on
TICK_SECONDS = 600.0  # of the models here
# Made-up markets unlike any recorded one keep the belief open for strange ones: two-state chains by the chance of a change in a
# tick, and markets without memory.
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
    """Models side by side, as one model."""

    a: Floats
    b: Floats
    share: Floats


def bank(models: Sequence[Model], tick_seconds: float, strange: float) -> Bank:
    """The models, and made-up ones that together weigh `strange`. Raises ValueError without any model."""
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
    """Made-up markets: they keep a state for a typical time, or have no memory."""
    found = []
    for down, up in product(CHANGES, CHANGES):  # chance to go down, to come up
        a = np.array([[1 - up, up], [down, 1 - down]])
        found.append(Model(f"chain {down:.3f} {up:.3f}", a, np.array([0.001, 0.999]), np.array([down, up]) / (down + up)))
    for chance in CHANCES:
        found.append(Model(f"chance {chance}", np.ones((1, 1)), np.array([chance]), np.ones(1)))
    return found


def scaled(a: Floats, ticks: float) -> Floats:
    """The same chain at another pace: a matrix power, corrected to a matrix of chances if it is none."""
    if ticks == 1.0 or len(a) == 1:
        return a
    values, vectors = np.linalg.eig(a)
    power = (vectors * values.astype(complex) ** ticks) @ np.linalg.inv(vectors)
    chances = np.clip(power.real, 0.0, None)
    found: Floats = chances / chances.sum(axis=1, keepdims=True)
    return found


def learn(belief: Floats, model: Bank, seen: Seen, first: bool) -> Floats:
    """The filter: (run, state) after one more look; `seen` 1, 0, or -1 = not observed."""
    ahead = belief if first else belief @ model.a
    fits = np.where(seen[:, None] == 1, model.b, np.where(seen[:, None] == 0, 1 - model.b, 1.0))
    weighed = ahead * fits
    found: Floats = weighed / weighed.sum(axis=1, keepdims=True)
    return found


def learn_more(belief: Floats, model: Bank, up: npt.NDArray[np.bool_]) -> Floats:
    """The belief of those runs if spot were available."""
    weighed = belief * np.where(up[:, None], model.b, 1.0)
    found: Floats = weighed / weighed.sum(axis=1, keepdims=True)
    return found


# ---- Files of banks

STATES_MAX, MODELS_MAX = 16, 64
SLACK = 1e-3  # rounded rows sum to 1 only within this error


def decoded(text: str) -> list[Model]:
    """The models of a bank's JSON, at the common tick. Raises ValueError that explains the fault."""
    try:
        doc = json.loads(text)
        tick, rows = float(doc["tick_seconds"]), doc["models"]
        if not 1 <= tick <= 86400:
            raise ValueError(f"its tick of {tick} seconds is none between a second and a day")
        models = [_decoded_model(row, tick) for row in rows]
    except (KeyError, TypeError, AttributeError, json.JSONDecodeError) as e:
        raise ValueError(f"it is no bank of models: {type(e).__name__} {e}") from None
    if len(models) > MODELS_MAX:
        raise ValueError(f"it has {len(models)} models, more than {MODELS_MAX}")
    return models


def encoded(models: Sequence[Model], note: Mapping[str, object]) -> str:
    """The same as JSON, one model on each line; `note` names their source."""
    rows = [json.dumps({"name": m.name, "a": _rounded(m.a), "b": _rounded(m.b), "share": _rounded(m.share)}) for m in models]
    head = json.dumps({**note, "tick_seconds": TICK_SECONDS})[:-1]
    return head + ', "models": [\n ' + ",\n ".join(rows) + "\n]}\n"


def _rounded(values: Any) -> Any:
    return np.round(values, 5).tolist()


def _decoded_model(row: Mapping[str, Any], tick: float) -> Model:
    try:
        a, b, share = (np.array(row[key], dtype=np.float64) for key in ("a", "b", "share"))
    except ValueError:
        raise ValueError(f"model {row['name']!r}: a, b or share is no table of numbers") from None
    n = len(b) if b.ndim == 1 else 0
    if not 1 <= n <= STATES_MAX or a.shape != (n, n) or share.shape != (n,):
        raise ValueError(f"model {row['name']!r}: a, b and share must be of one size, 1 to {STATES_MAX} states")
    every = np.concatenate([a.ravel(), b, share])
    if not (np.isfinite(every).all() and (every >= 0).all() and (every <= 1 + SLACK).all()):
        raise ValueError(f"model {row['name']!r}: a number is no chance between 0 and 1")
    if (abs(a.sum(axis=1) - 1) > SLACK).any() or abs(share.sum() - 1) > SLACK:
        raise ValueError(f"model {row['name']!r}: rows of a, and share, must sum to 1")
    a = scaled(a / a.sum(axis=1, keepdims=True), TICK_SECONDS / tick)
    return Model(str(row["name"]), a, np.clip(b, 1e-4, 1 - 1e-4), share / share.sum())


# ---- Training: Baum and Welch's algorithm on records of availability, from several random beginnings.
# Pure: chance comes in as a numpy generator. All markets and beginnings are computed side by side.

STATES = 5
BEGINNINGS, FIRST_ROUNDS, ROUNDS = 4, 40, 150
# Added to the counts of each round, so that an unobserved change does not become impossible.
CHANGE, STAY, SEEN, LOOKS = 0.01, 0.1, 0.05, 0.1
LEAST_TICKS = 100

Step = Callable[[int, int], None]
Records = npt.NDArray[np.int8]  # (market, tick): 1 = available, 0 = not, -1 = not observed, or past the end


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
    """A model for each market of at least `LEAST_TICKS` ticks. Raises ValueError if none is long enough."""
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
    """The values of the chosen beginning, by market."""
    found: Floats = np.take_along_axis(values, best.reshape(best.shape + (1,) * (values.ndim - 2)), 1)
    return found


def _model(name: str, guess: _Guess, market: int) -> Model:
    """A model with its states in the order of their spot availability."""
    order = np.argsort(guess.b[market, 0])
    a = guess.a[market, 0][np.ix_(order, order)]
    return Model(name, a, guess.b[market, 0][order], guess.share[market, 0][order])


def _random(markets: int, states: int, rng: np.random.Generator) -> _Guess:
    shape = (markets, BEGINNINGS, states)
    a = rng.random((*shape, states)) * 0.1 + np.eye(states) * rng.uniform(1, 5, (*shape, 1))
    b = np.sort(rng.random(shape), axis=-1)
    return _Guess(a / a.sum(axis=-1, keepdims=True), b, np.full(shape, 1 / states))


def _round(guess: _Guess, seen: Records, lengths: npt.NDArray[np.int64]) -> tuple[_Guess, Floats]:
    """One step of the algorithm, and the log-likelihood of the records before it, by market and beginning."""
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
