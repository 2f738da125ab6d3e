"""What a rule asks for, as the specification of a job. Values only: Snakemake's job is looked at, nothing is done."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from spotsurfer.model.job import MarketChoice

NAME_MAX = 40
_MEGABYTE = 10**6  # as Snakemake counts
MEMORY_MIN_BYTES = 16 << 20


class Unfit(Exception):
    """A rule asks for something that no job can have; one sentence with the remedy."""


def named(rule: str) -> str:
    """The rule's name as one that a job may have."""
    return re.sub(r"[^A-Za-z0-9._-]", "-", rule).lstrip("._-")[:NAME_MAX] or "rule"


def resources(wanted: Mapping[str, Any], threads: int) -> dict[str, Any]:
    """The fields of a job's specification that a rule's resources and threads decide. Raises Unfit.

    `mem_mb` is megabytes, `mem_mb_per_cpu` the same for each thread, `runtime` minutes, `gpu` a number, `gpu_model` a chip.
    """
    spec: dict[str, Any] = {"cpus": max(1, threads)}
    memory = _whole(wanted, "mem_mb") or _whole(wanted, "mem_mb_per_cpu") * max(1, threads)
    if memory:
        spec["memory_bytes"] = max(MEMORY_MIN_BYTES, memory * _MEGABYTE)
    if gpus := _whole(wanted, "gpu") or _whole(wanted, "nvidia_gpu"):
        spec["gpus"] = gpus
    if model := wanted.get("gpu_model"):
        spec["gpu"] = str(model)
    if minutes := _whole(wanted, "runtime"):
        spec["time_limit_seconds"] = minutes * 60.0
    if types := wanted.get("instance_types"):
        spec["instance_types"] = tuple(str(types).split())
    return spec


def market_of(word: str) -> MarketChoice:
    """The markets that a word names; "" = the usual ones. Raises Unfit."""
    try:
        return MarketChoice(word or MarketChoice.SPOT_FIRST)
    except ValueError:
        raise Unfit(f"market is {word!r}, expected one of {', '.join(MarketChoice)}") from None


def tags(run: str, rule: str, wildcards: str, inputs_bytes: int) -> dict[str, str]:
    """By which jobs of a workflow are found, and by which sizes are learned: the rule and what it reads."""
    found = {"workflow": run, "rule": rule, "input_bytes": str(inputs_bytes)}
    return {**found, "wildcards": wildcards} if wildcards else found


def _whole(wanted: Mapping[str, Any], name: str) -> int:
    value = wanted.get(name)
    if value is None:
        return 0
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise Unfit(f"{name} is {value!r}, expected a whole number")
    return value
