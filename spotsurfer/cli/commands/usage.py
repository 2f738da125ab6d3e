"""`usage`: the resources that a job used, over time."""

from __future__ import annotations

import gzip
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

import typer

from spotsurfer.cli.common import SESSION, JobArgument, examples, write
from spotsurfer.cli.printing import pairs, put, put_json, tell
from spotsurfer.common.units import counted, duration, size
from spotsurfer.web.client import Json, job_path

COLUMNS = ("t_s", "rss_mib", "cpu_cores", "read_mb_s", "write_mb_s", "processes")  # input of `backtest size --usage`
BARS = " ▁▂▃▄▅▆▇█"
WIDTH = 72  # characters of a drawn line
MIB = 1 << 20
WAITED = ("cpu", "memory", "io")


def add(app: typer.Typer) -> None:
    """Register the command of this file."""
    lines = ("spotsurfer usage assembly-3f9a1c", "spotsurfer usage assembly-3f9a1c --csv usage.csv")
    app.command(epilog=examples(*lines, "spotsurfer backtest size --usage usage.csv"))(usage)


def usage(
    job: JobArgument,
    csv: Annotated[
        Path | None, typer.Option("--csv", help="Write a line a second there (gzip where it ends in .gz).", show_default=False)
    ] = None,
    page: Annotated[Path | None, typer.Option("--page", help="Draw it on a page of HTML.", show_default=False)] = None,
) -> None:
    """Show what a job used: processors, memory, waiting, disks, network, GPUs.

    With control groups of version 1 the kernel counts waiting and disks for the whole machine. A box of the local provider
    then shows what all of this host waited for, read and wrote.
    """
    windows: list[Json] = SESSION.client().get(job_path(job, "usage"))["windows"]
    if csv is not None:
        text = "\n".join([",".join(COLUMNS), *seconds(windows)]) + "\n"
        write(csv, gzip.compress(text.encode(), mtime=0) if csv.suffix == ".gz" else text)
        tell(f"{csv}: {sum(w['seconds'] for w in windows):.0f} s of {job}.")
    if page is not None:
        write(page, drawn(job, windows))
        tell(f"{page}: {counted(len(windows), 'window')} of {job}.")
    put_json({"windows": windows})
    if not windows:
        put("Nothing was measured yet: the first figures come some seconds after the job began.")
    elif csv is None and page is None:
        _show(windows)


def _show(windows: Sequence[Json]) -> None:
    pairs([("measured", duration(sum(w["seconds"] for w in windows))), *summary(windows)])
    put()
    for name, key, said in LINES:
        values = [w[key] for w in windows if w[key] is not None]
        if values and max(values) > 0:
            put(f"{name:<10} {sparkline(values, WIDTH)} up to {said(max(values))}")


def lately(used: Json | None) -> str | None:
    """Use by a job in the last seconds, for people."""
    if used is None:
        return None
    memory, cache = size(int(used["resident_last_bytes"])), size(int(used["cache_bytes"]))
    shares = [(name, used[f"stalled_{name}"]) for name in WAITED]
    waits = [f"{100 * share:.0f} % of the time waiting for {name}" for name, share in shares if share and share >= 0.01]
    gpu = [f"GPUs busy {100 * used['gpu_share']:.0f} %"] if used["gpu_share"] is not None else []
    return ", ".join([f"{used['cpu_cores']:.2f} processors, {memory} resident, {cache} page cache", *waits, *gpu])


def summary(windows: Sequence[Json]) -> list[tuple[str, Any]]:
    """Means and peaks for people."""
    growth = _most(windows, "growth_bytes_per_second")
    return [
        ("processors", f"{_mean(windows, 'cpu_cores'):.2f} in use on average, {_most(windows, 'cpu_cores_max'):.2f} at most"),
        ("memory", f"{size(int(_most(windows, 'resident_bytes')))} at most, growing by up to {size(int(growth))}/s"),
        ("page cache", f"{size(int(_most(windows, 'cache_bytes')))} at most"),
        ("swap", size(int(_most(windows, "swap_bytes"))) if _most(windows, "swap_bytes") else None),
        ("waited", waited(windows)),
        ("disks", _bytes(windows, "read_bytes", "read", "write_bytes", "written")),
        ("network", _bytes(windows, "received_bytes", "received", "sent_bytes", "sent")),
        ("GPUs", gpus(windows)),
    ]


def waited(windows: Sequence[Json]) -> str | None:
    """Shares of the time in which some of its processes had to wait."""
    known = [(name, _mean(windows, f"stalled_{name}")) for name in WAITED]
    said = [f"{100 * share:.0f} % for {name}" for name, share in known if share >= 0.005]
    return ", ".join(said) or None


def gpus(windows: Sequence[Json]) -> str | None:
    """Work, memory and power of GPUs; None if the job has none."""
    if all(w["gpu_share"] is None for w in windows):
        return None
    share, watts = _mean(windows, "gpu_share"), _mean(windows, "gpu_watts")
    return f"busy {100 * share:.0f} % of the time, {size(int(_most(windows, 'gpu_memory_bytes')))} at most, {watts:.0f} W"


def sparkline(values: Sequence[float], width: int) -> str:
    """One line of blocks, from 0 to the largest value; each block is the largest of its share of the values."""
    most = max(values)
    count = min(width, len(values))
    cuts = [len(values) * i // count for i in range(count + 1)]
    peaks = [max(values[a:b]) for a, b in pairwise(cuts)]
    return "".join(BARS[round(p / most * (len(BARS) - 1))] if most > 0 else BARS[0] for p in peaks)


def seconds(windows: Sequence[Json]) -> Iterator[str]:
    """Lines of COLUMNS, one for each second of running time: all alike within a window, memory at its peak."""
    at, until = 0, 0.0
    for w in windows:
        until += w["seconds"]
        memory, processes = w["resident_bytes"] / MIB, w["processes"] or 1
        read, write = ((w[k] or 0.0) / w["seconds"] / 1e6 for k in ("read_bytes", "write_bytes"))
        while at < round(until):
            yield f"{at:.1f},{memory:.0f},{w['cpu_cores']:.2f},{read:.2f},{write:.2f},{processes:.0f}"
            at += 1


def drawn(job: str, windows: Sequence[Json]) -> str:
    """The page with plots."""
    from spotsurfer.common.charts import Lines, Series, plain

    at, xs = 0.0, []
    for w in windows:
        xs.append(at / 3600)
        at += w["seconds"]

    def line(name: str, key: str, unit: float) -> Series:
        return Series(name, [(x, w[key] / unit) for x, w in zip(xs, windows, strict=True) if w[key] is not None])

    x, gib = "hours", 1 << 30
    return plain(
        f"Usage of {job}",
        [
            Lines("Processors", x, "in use", [line("mean", "cpu_cores", 1), line("peak", "cpu_cores_max", 1)]),
            Lines("Memory", x, "GiB", [line("resident", "resident_bytes", gib), line("page cache", "cache_bytes", gib)]),
            Lines("Waiting", x, "share", [line(n, f"stalled_{n}", 1) for n in WAITED]),
            Lines("Disks", x, "MiB", [line("read", "read_bytes", MIB), line("written", "write_bytes", MIB)]),
            Lines("Network", x, "MiB", [line("received", "received_bytes", MIB), line("sent", "sent_bytes", MIB)]),
            Lines("GPUs", x, "share", [line("busy", "gpu_share", 1)]),
        ],
    )


def _mean(windows: Sequence[Json], key: str) -> float:
    known = [(w[key], w["seconds"]) for w in windows if w[key] is not None]
    total = sum(s for _, s in known)
    return float(sum(v * s for v, s in known) / total) if total else 0.0


def _most(windows: Sequence[Json], key: str) -> float:
    return float(max((w[key] for w in windows if w[key] is not None), default=0.0))


def _bytes(windows: Sequence[Json], key: str, name: str, other_key: str, other: str) -> str | None:
    if all(w[key] is None for w in windows):
        return None
    one, two = (sum(w[k] or 0 for w in windows) for k in (key, other_key))
    return f"{size(int(one))} {name}, {size(int(two))} {other}"


LINES: tuple[tuple[str, str, Callable[[float], str]], ...] = (
    ("processors", "cpu_cores_max", lambda v: f"{v:.2f}"),
    ("memory", "resident_bytes", lambda v: size(int(v))),
    ("page cache", "cache_bytes", lambda v: size(int(v))),
    ("GPU", "gpu_share", lambda v: f"{100 * v:.0f} %"),
)
