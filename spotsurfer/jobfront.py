"""`ports` and `[idle]` of a job file: from TOML to values, and what is wrong with them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping

from spotsurfer.hints import did_you_mean
from spotsurfer.model.job import JobSpec
from spotsurfer.model.ports import JobPort

PORT_KEYS = ("name", "port")
NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,39})")
PORTS_MAX = 16
IDLE_MIN_SECONDS = 10.0
EXAMPLE = 'ports = [8888], or [[ports]] with name = "notebook", port = 8888'


def read_ports(value: object) -> tuple[JobPort, ...]:
    """Numbers and tables; a port without a name is called by its number. Raises ValueError: half a sentence."""
    entries = value if isinstance(value, list) else [value]
    return tuple(_port(entry) for entry in entries)


def _port(entry: object) -> JobPort:
    table = entry if isinstance(entry, Mapping) else {"port": entry}
    for key in table:
        if key not in PORT_KEYS:
            raise ValueError(f"has an unknown key {key!r}. {did_you_mean(str(key), PORT_KEYS)}")
    port, name = table.get("port"), table.get("name", str(table.get("port")))
    if isinstance(port, bool) or not isinstance(port, int) or not isinstance(name, str):
        raise ValueError(f"has the entry {entry!r}, expected something like {EXAMPLE}")
    return JobPort(name, port)


def read_share(value: object) -> float:
    """A number that is not negative. Raises ValueError."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"is {value!r}, expected a number like 0.05")
    return float(value)


def problems(spec: JobSpec) -> Iterator[tuple[str, str]]:
    """Everything wrong with them: (key of the job file, second half of a sentence)."""
    if len(spec.ports) > PORTS_MAX:
        yield "ports", f"are {len(spec.ports)}, more than {PORTS_MAX}"
    for p in spec.ports:
        if not NAME.fullmatch(p.name):
            yield "ports", f"has the name {p.name!r}, expected up to 40 letters, digits, '.', '_' or '-'"
        if not 1 <= p.port <= 65535:
            yield "ports", f"has {p.port}, expected 1 to 65535"
    for what, values in (("name", [p.name for p in spec.ports]), ("port", [p.port for p in spec.ports])):
        for value, count in Counter(values).items():
            if count > 1:
                yield "ports", f"has the {what} {value!r} {count} times: each needs its own"
    yield from _idle(spec)


def _idle(spec: JobSpec) -> Iterator[tuple[str, str]]:
    time = spec.idle_seconds
    if time is not None and not time >= IDLE_MIN_SECONDS:
        yield "idle.suspend_after", f"is {time:g} seconds, expected at least {IDLE_MIN_SECONDS:g}"
    if time is not None and spec.engine == "none":
        yield "idle.suspend_after", 'can\'t be kept with engine = "none": such a job would start over'
    if time is not None and spec.deadline_seconds is not None:
        yield "idle.suspend_after", "and a deadline exclude each other: a job that sleeps does not get done"
    for key, value, most in (("idle.cpu", spec.idle_cpu, float("inf")), ("idle.gpu", spec.idle_gpu, 1.0)):
        if not 0 < value <= most:
            yield key, f"is {value:g}, expected more than 0" + (" and at most 1" if most == 1.0 else "")
