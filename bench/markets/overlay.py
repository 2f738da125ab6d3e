"""Lay recorded price changes over the ticks of an availability trace: `python bench/markets/overlay.py CHANGES OUT [crossed]`.

CHANGES has columns instance_type, zone, time_utc, spot_usd_per_hour (gpu-spot-2020). The trace's first tick is laid on
2020-02-10, the start of the month in which prices moved most. `crossed`: the zones with the most spot get the prices of
those with the least.
"""

from __future__ import annotations

import csv
import gzip
import sys
from datetime import UTC, datetime
from pathlib import Path

HERE = Path(__file__).parent
TICK_SECONDS, KIND = 195, "p3.2xlarge"
BEGIN = datetime(2020, 2, 10, tzinfo=UTC)
SAME = {"us-east-1a": "us-east-1b"}  # no prices of 1a were recorded
CROSSED = {
    "us-west-2b": "us-east-1b",
    "us-west-2c": "us-west-2a",
    "us-west-2a": "us-west-2b",
    "us-east-2a": "us-west-2c",
    "us-east-2b": "us-east-2b",
    "us-east-1f": "us-east-2a",
    "us-east-1c": "us-east-1f",
    "us-east-1d": "us-east-1d",
    "us-east-1a": "us-east-1c",
}


def main(changes: str, out: str, kind: str = "named") -> None:
    """Write OUT: a row wherever a price changes."""
    with gzip.open(HERE / "zones-2023.csv.gz", "rt") as f:
        header, *rows = list(csv.reader(f))
    first, pools = int(rows[0][0]), header[1:]
    names = [p.partition("_")[0] for p in pools]
    sources = [CROSSED[n] if kind == "crossed" else SAME.get(n, n) for n in names]
    series: dict[str, list[tuple[int, str]]] = {s: [] for s in sources}
    with gzip.open(changes, "rt") as f:
        for row in csv.DictReader(f):
            if row["instance_type"] == KIND and row["zone"] in series:
                at = (datetime.fromisoformat(row["time_utc"]) - BEGIN).total_seconds()
                series[row["zone"]].append((int(-(-at // TICK_SECONDS)) + first, row["spot_usd_per_hour"]))
    ticks = sorted({max(t, first) for s in series.values() for t, _ in s if t <= int(rows[-1][0])})
    with gzip.GzipFile(out, "wb", mtime=0) as raw:
        lines = [",".join(["tick", *pools])]
        lines += [f"{t}," + ",".join(max(x for x in sorted(series[s]) if x[0] <= t)[1] for s in sources) for t in ticks]
        raw.write(("\n".join(lines) + "\n").encode())


if __name__ == "__main__":
    main(*sys.argv[1:])
