"""frames.py ROUNDS: pandas: groups, joins, windows, and files of comma-separated values that grow."""

import hashlib
import sys

import numpy as np
import pandas as pd

chance = np.random.default_rng(11)
for r in range(int(sys.argv[1])):
    n = 40_000
    left = pd.DataFrame(
        {"key": chance.integers(0, 500, n), "value": chance.random(n), "word": chance.integers(0, 99, n).astype(str)}
    )
    right = left.groupby("key")["value"].agg(["mean", "max", "count"]).reset_index()
    both = left.merge(right, on="key").sort_values(["key", "value"], kind="stable").reset_index(drop=True)
    both["window"] = both["value"].rolling(20, min_periods=1).mean()
    table = both.pivot_table(index="key", columns="word", values="window", aggfunc="sum").fillna(0)
    table.round(9).to_csv("table.csv")
    again = pd.read_csv("table.csv", index_col=0)
    if r % 10 == 9:
        print(r, len(both), hashlib.sha256(again.to_numpy().tobytes()).hexdigest(), flush=True)
