"""A study of Optuna in a database of SQLite. Argument: number of trials."""

import sys
import time
from pathlib import Path

sys.path.insert(0, "lib")
import optuna


def objective(trial):
    x, y = trial.suggest_float("x", -10, 10), trial.suggest_int("y", 0, 100)
    time.sleep(0.1)
    return (x - 2) ** 2 + (y - 30) ** 2


sampler = optuna.samplers.TPESampler(seed=1)
study = optuna.create_study(storage="sqlite:///study.db", sampler=sampler)
study.optimize(objective, n_trials=int(sys.argv[1]))
Path("trials.txt").write_text("\n".join(f"{t.number} {t.state} {t.params} {t.value}" for t in study.trials))
