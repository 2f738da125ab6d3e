"""The promise that a deadline is kept, whatever a policy says. Pure.

As long as an on-demand machine that is launched one tick later could still finish in time, the policy is free. Past that point
the job goes on on-demand, or stays where it is if leaving is what would cost the time.
"""

from __future__ import annotations

import numpy as np

from spotsurfer.ports.purchase import Buy, Floats, Modes, Moment, Terms

SLIP = 1e-6  # seconds that sums of seconds may be off by


def kept(want: Modes, moment: Moment, terms: Terms) -> Modes:
    """What is wanted where the deadline can be met after it, else on-demand. Nothing can be had of spot that is not there."""
    want = np.where((want == Buy.SPOT) & (moment.spot_seen == 0), np.int8(Buy.WAIT), want)
    spare = spare_after(want, moment, terms)
    return np.where((want != Buy.ON_DEMAND) & (spare < -SLIP), np.int8(Buy.ON_DEMAND), want).astype(np.int8)


def spare_after(want: Modes, moment: Moment, terms: Terms) -> Floats:
    """Seconds to spare if an on-demand machine had to be launched one tick after this choice."""
    left = terms.deadline_seconds - moment.elapsed_seconds - terms.tick_seconds
    work = terms.work_seconds - moment.done_seconds
    owed = np.where(moment.held == Buy.SPOT, moment.owed_seconds, terms.safe_restart_seconds)
    gained = np.where(want == Buy.SPOT, np.maximum(0.0, terms.tick_seconds - owed), 0.0)
    spare: Floats = left - (work - gained) - terms.safe_restart_seconds
    return spare
