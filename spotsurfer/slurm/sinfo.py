"""`sinfo`: partitions, each with one line for all machines that can be had. There is no list of nodes: they come and go."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from spotsurfer.slurm.columns import Column, lines, long_format, short_format
from spotsurfer.slurm.options import Grammar, Refused, parse, table
from spotsurfer.slurm.site import Site
from spotsurfer.slurm.start_script import CLUSTER

_LONGS, _SHORTS = table(
    """all:a dead:d exact:e federation Format=:O format=:o help hide iterate=:i json list-reasons:R local long:l clusters=:M
    nodes=:n noconvert noheader:h Node:N partition=:p responding:r reservation:T sort=:S states=:t summarize:s usage verbose:v
    version:V yaml"""
)
GRAMMAR = Grammar("sinfo", _LONGS, _SHORTS)
DEFAULT = "%9P %.5a %.10l %.6D %.6t %N"
LONG = "%9P %.5a %.10l %.10s %.4r %.8h %.10g %.6D %.11T %N"
SUMMARY = "%9P %.5a %.10l %.16F  %N"
NODES = "%N %.6D %.9P %6t"


@dataclass(frozen=True, slots=True)
class Line:
    """A partition. `size`: of the largest machine that can be had."""

    name: str
    default: bool
    machines: int
    machines_max: int
    nodes: str


def _same(text: str) -> Callable[[Line], str]:
    return lambda _: text


def _counts(line: Line) -> str:
    free = max(0, line.machines_max - line.machines)
    return f"{line.machines}/{free}/0/{line.machines_max}"


PARTITION = ("PARTITION", lambda x: x.name + ("*" if x.default else ""))
LETTERS: dict[str, tuple[str, Callable[[Line], str]]] = {
    "P": PARTITION,
    "R": ("PARTITION", lambda x: x.name),
    "a": ("AVAIL", _same("up")),
    "l": ("TIMELIMIT", _same("infinite")),
    "D": ("NODES", lambda x: str(x.machines_max)),
    "t": ("STATE", lambda x: "mix" if x.machines else "idle"),
    "T": ("STATE", lambda x: "mixed" if x.machines else "idle"),
    "N": ("NODELIST", lambda x: x.nodes),
    "F": ("NODES(A/I/O/T)", _counts),
    "A": ("NODES(A/I)", lambda x: "/".join(_counts(x).split("/")[:2])),
    "C": ("CPUS(A/I/O/T)", _same("0/0/0/0")),
    "c": ("CPUS", _same("0")),
    "m": ("MEMORY", _same("0")),
    "G": ("GRES", _same("(null)")),
    "f": ("AVAIL_FEATURES", _same("(null)")),
    "d": ("TMP_DISK", _same("0")),
    "s": ("JOB_SIZE", _same("1")),
    "r": ("ROOT", _same("no")),
    "h": ("OVERSUBSCRIBE", _same("NO")),
    "g": ("GROUPS", _same("all")),
    "L": ("DEFAULTTIME", _same("n/a")),
    "E": ("REASON", _same("none")),
    "V": ("CLUSTER", _same(CLUSTER)),
    "w": ("WEIGHT", _same("1")),
    "v": ("VERSION", _same("22.05.8")),
    "z": ("S:C:T", _same("1:1:1")),
    "M": ("PREEMPT_MODE", _same("OFF")),
    "p": ("PRIO_TIER", _same("1")),
    "I": ("PRIO_JOB_FACTOR", _same("1")),
}
NAMES: dict[str, tuple[str, Callable[[Line], str]]] = {
    "available": LETTERS["a"],
    "cpus": LETTERS["c"],
    "cpusstate": LETTERS["C"],
    "defaulttime": LETTERS["L"],
    "features": LETTERS["f"],
    "gres": LETTERS["G"],
    "memory": LETTERS["m"],
    "nodelist": LETTERS["N"],
    "nodes": LETTERS["D"],
    "partition": LETTERS["P"],
    "partitionname": LETTERS["R"],
    "priorityjobfactor": LETTERS["I"],
    "prioritytier": LETTERS["p"],
    "statecompact": LETTERS["t"],
    "statelong": LETTERS["T"],
    "time": LETTERS["l"],
    "version": LETTERS["v"],
}


def sinfo(words: Sequence[str], site: Site) -> Iterator[str]:
    """The lines that `sinfo` prints. Raises Refused."""
    given = parse(GRAMMAR, words)
    if given.has("version"):
        yield site.version
        return
    wanted = given.last("partition")
    usual = LONG if given.has("long") else SUMMARY if given.has("summarize") else NODES if given.has("Node") else DEFAULT
    prefix, columns = "", list[Column[Line]]()
    try:
        if (long := given.last("Format")) is not None:
            columns = long_format(long, NAMES)
        else:
            prefix, columns = short_format(given.last("format") or usual, LETTERS)
    except KeyError as error:
        raise Refused(f"Invalid node format specification: {error.args[0]}") from None
    info = site.client.get("/v1/info")
    found = [
        Line(name, name == site.partition, info["instances"], info["instances_max"], info["provider"])
        for name in site.partitions
        if wanted is None or name in wanted.split(",")
    ]
    yield from lines(columns, found, prefix, heads=not given.has("noheader"))
