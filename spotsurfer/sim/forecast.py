"""What is to be expected of a job with a deadline: its policy is played on markets as it imagines them from now on."""

from __future__ import annotations

import numpy as np

from spotsurfer.ports.purchase import Buy, Forecast, Imagines, Purchase, View
from spotsurfer.sim.deadline import play, ticks_of

RUNS, SEED = 200, 0
LOW, HIGH = 0.1, 0.9


def forecast(purchase: Purchase, view: View) -> Forecast | None:
    """From the view on, always the same; None where the policy can't imagine markets, or no time is left."""
    ticks = ticks_of(view.terms) - round(view.elapsed_seconds / view.terms.tick_seconds)
    if not isinstance(purchase, Imagines) or ticks < 1:
        return None
    up = purchase.imagine(view, RUNS, ticks, np.random.default_rng(SEED))
    played = play(purchase, view.terms, up, view)
    busy = played.held != Buy.WAIT
    last = ticks - busy[:, ::-1].argmax(axis=1)  # ticks until the last one that was paid for
    seconds = np.where(busy.any(axis=1), last, 0) * view.terms.tick_seconds
    low, high = np.quantile(seconds, [LOW, HIGH])
    fallback = float((played.held == Buy.ON_DEMAND).any(axis=1).mean())
    return Forecast(float(seconds.mean()), float(low), float(high), fallback, float(played.usd.mean()))
