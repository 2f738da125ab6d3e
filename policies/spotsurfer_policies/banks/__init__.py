"""Banks of models that ship with the policies; README.md says where they come from and how they are made again."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from spotsurfer_policies.regimes import TICK_SECONDS, Model, scaled

STATES_MAX, MODELS_MAX = 16, 64
SLACK = 1e-3  # rows of rounded numbers sum to 1 only so well


def decoded(text: str) -> list[Model]:
    """The models of a bank's JSON, at the tick of the others. Raises ValueError with what is wrong."""
    try:
        doc = json.loads(text)
        tick, rows = float(doc["tick_seconds"]), doc["models"]
        if not 1 <= tick <= 86400:
            raise ValueError(f"its tick of {tick} seconds is none between a second and a day")
        models = [_model(row, tick) for row in rows]
    except (KeyError, TypeError, AttributeError, json.JSONDecodeError) as e:
        raise ValueError(f"it is no bank of models: {type(e).__name__} {e}") from None
    if len(models) > MODELS_MAX:
        raise ValueError(f"it has {len(models)} models, more than {MODELS_MAX}")
    return models


def encoded(models: Sequence[Model], note: Mapping[str, object]) -> str:
    """The same as JSON, one model a line; `note` says where they come from."""
    rows = [json.dumps({"name": m.name, "a": _round(m.a), "b": _round(m.b), "share": _round(m.share)}) for m in models]
    head = json.dumps({**note, "tick_seconds": TICK_SECONDS})[:-1]
    return head + ', "models": [\n ' + ",\n ".join(rows) + "\n]}\n"


def _round(values: Any) -> Any:
    return np.round(values, 5).tolist()


def _model(row: Mapping[str, Any], tick: float) -> Model:
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
