"""Markets that nothing was tuned on: the later half of the records, nine other zones a year later, made-up ones."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from multiprocessing.pool import Pool
from pathlib import Path

import numpy as np
import numpy.typing as npt
from spotsurfer_lab.deadline_backtest import compare
from spotsurfer_lab.markets import Trace, read_trace, read_windows, records_of
from spotsurfer_lab.results import figures

from bench.report import Part, percent, table
from spotsurfer.common.plugins import TRAINING, plugin
from spotsurfer.ports.policies import Terms

DATA = Path(__file__).resolve().parent.parent / "markets"
SETTINGS = [(hours, restart) for hours in (52, 60, 70, 92) for restart in (0.05, 0.2)]
POLICIES = ("surf", "uniform-progress", "greedy", "optimum")
STATES, SEED = 4, 0
RUNS, TICKS = 60, 552
Bools = npt.NDArray[np.bool_]
# In ticks of ten minutes: so long up, so long down, over and over.
PERIODS = ((3, 6), (6, 2), (12, 36))


def run(pool: Pool, every: int) -> Part:
    """Gap to the optimum of each policy on each family of markets, mean over the settings, and the worst setting."""
    families: dict[str, Callable[[int], tuple[Trace, list[int], dict[str, dict[str, object]]]]] = {
        "later half of 2022, trained on the earlier": _later,
        "nine zones of 2023": _zones,
        "made up: calm and storms": _storms,
        "made up: runs of any length": _heavy,
        "made up: strictly periodic": _periodic,
        "made up: no memory": _memoryless,
    }
    keys: dict[str, float | int] = {}
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for name, make in families.items():
            trace, starts, settings = make(every)
            if bank := settings.get("surf", {}).pop("text", None):
                path = Path(folder) / "bank.json"
                path.write_text(str(bank))
                settings["surf"]["bank"] = str(path)
            jobs = [(trace, starts, s, settings) for s in SETTINGS]
            found = pool.starmap(_one, jobs, chunksize=1)
            gaps = {p: [f[p]["gap_to_optimum"] for f in found] for p in POLICIES}
            worst = max(f["surf"]["mean_usd"] / min(f[b]["mean_usd"] for b in POLICIES[1:3]) - 1 for f in found)
            missed = int(sum(f["surf"]["deadline_misses"] for f in found))
            rows.append([name, *(percent(float(np.mean(gaps[p]))) for p in POLICIES[:3]), percent(worst, True), str(missed)])
            key = "e1_fresh_" + "_".join(name.replace("made up: ", "").replace(",", "").split()[:3])
            keys[key] = float(np.mean(gaps["surf"]))
    columns = ["gap to the optimum, mean of eight settings, %", "surf", "uniform-progress", "greedy", "worst", "misses"]
    return Part(keys, {"e1-fresh": table(columns, rows)})


def _one(
    trace: Trace, starts: list[int], setting: tuple[float, float], settings: dict[str, dict[str, object]]
) -> dict[str, dict[str, float]]:
    hours, restart = setting
    terms = Terms(600, 48 * 3600, hours * 3600, restart * 3600, 0.9731, 3.06)
    return figures(compare(trace, starts, terms, POLICIES, lambda *_: None, settings).comparison)  # type: ignore[return-value]


def _later(every: int) -> tuple[Trace, list[int], dict[str, dict[str, object]]]:
    """Models of the first half of the ticks; windows that lie in the second. The pool itself is left out as always."""
    trace, starts = read_trace(DATA / "pools-2022.csv.gz"), read_windows(DATA / "pools-2022-windows.csv")
    middle = trace.first + len(trace.up) // 2
    early = Trace(trace.pools, trace.first, trace.up[: middle - trace.first])
    learn = plugin(TRAINING, "surf")
    text, _ = learn(records_of(early), 600.0, STATES, np.random.default_rng(SEED), lambda *_: None)
    json.loads(text)
    return trace, [s for s in starts if s >= middle][::every], {"surf": {"text": text}}


def _zones(every: int) -> tuple[Trace, list[int], dict[str, dict[str, object]]]:
    """Each third tick of 195 s as one of ten minutes."""
    trace, starts = read_trace(DATA / "zones-2023.csv.gz"), read_windows(DATA / "zones-2023-windows.csv")
    third = Trace(trace.pools, 0, trace.up[::3])
    return third, [(s - trace.first) // 3 for s in starts][::every], {}


def _made(rows: list[Bools], every: int) -> tuple[Trace, list[int], dict[str, dict[str, object]]]:
    """Each market is a pool of its own with `RUNS` windows one after the other."""
    return (
        Trace(tuple(f"market-{i}" for i in range(len(rows))), 0, np.array(rows).T),
        list(range(0, RUNS * TICKS, TICKS))[::every],
        {},
    )


def _runs(rng: np.random.Generator, draw: Callable[[np.random.Generator, bool], float]) -> Bools:
    """Up and down by turns, each for as long as is drawn (ticks)."""
    found: list[bool] = []
    up = bool(rng.random() < 0.5)
    while len(found) < RUNS * TICKS:
        found += [up] * max(1, round(draw(rng, up)))
        up = not up
    return np.array(found[: RUNS * TICKS])


def _storms(every: int) -> tuple[Trace, list[int], dict[str, dict[str, object]]]:
    """Days of long runs and days of short ones, by turns that nobody announces."""
    rows = []
    for seed in range(4):
        rng = np.random.default_rng(100 + seed)
        stormy = np.cumsum(rng.random(RUNS * TICKS * 2) < 1 / 144) % 2 == 1
        at = [0]

        def draw(rng: np.random.Generator, up: bool, at: list[int] = at, stormy: Bools = stormy, seed: int = seed) -> float:
            mean = (4 if up else 3 + 3 * seed) if stormy[at[0]] else (90 if up else 12)
            length = max(1.0, float(rng.exponential(mean)))
            at[0] = min(at[0] + round(length), len(stormy) - 1)
            return length

        rows.append(_runs(rng, draw))
    return _made(rows, every)


def _heavy(every: int) -> tuple[Trace, list[int], dict[str, dict[str, object]]]:
    """Log-normal lengths: many short runs, some very long ones."""
    rows = []
    for seed, (up, down) in enumerate(((8, 8), (24, 8), (6, 18), (40, 20))):
        rng = np.random.default_rng(200 + seed)
        rows.append(_runs(rng, lambda r, is_up, u=up, d=down: float(r.lognormal(np.log(u if is_up else d), 1.3))))  # type: ignore[misc]
    return _made(rows, every)


def _periodic(every: int) -> tuple[Trace, list[int], dict[str, dict[str, object]]]:
    at = np.arange(RUNS * TICKS)
    return _made([at % (up + down) < up for up, down in PERIODS], every)


def _memoryless(every: int) -> tuple[Trace, list[int], dict[str, dict[str, object]]]:
    return _made([np.random.default_rng(300 + i).random(RUNS * TICKS) < p for i, p in enumerate((0.3, 0.5, 0.8))], every)
