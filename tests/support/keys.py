"""Every kind of key that there is in the store, as `object_keys` makes them."""

from __future__ import annotations

import inspect
from collections.abc import Iterator

from spotsurfer_wire import object_keys

VALUES = {
    "job": ["other"],
    "attempt": [2, 3],
    "epoch": [2],
    "number": [1, 7],
    "generation": [1],
    "path": ["reads/x.fq", "head/00000001.json"],
    "stream": ["out"],
    "begin": [0],
    "end": [5],
    "checkpoint": ["000002-000001", "000003-000001"],
    "digest": ["ab" * 32],
    "name": ["cd" * 32],
    "sha256": ["ef" * 32],
    "scope": ["12" * 16],
    "machine": ["34" * 16],
    "slot": [1],
}


def keys_of(*jobs: str) -> set[str]:
    """Keys of these jobs, of attempts 2 and 3, and all others."""
    return {key for keys in by_kind(*jobs).values() for key in keys}


def by_kind(*jobs: str) -> dict[str, set[str]]:
    """The same, by the name of the function that makes them. One with an argument that is not known here is a KeyError."""
    kinds = {n: f for n, f in vars(object_keys).items() if inspect.isfunction(f) and n.endswith("_key")}
    found = {n: set(_made(f, list(inspect.signature(f).parameters), {**VALUES, "job": list(jobs)})) for n, f in kinds.items()}
    found["output_prefix"] = {object_keys.output_prefix(j, a) + "x.txt" for j in jobs for a in (2, 3)}
    found["partial_prefix"] = {object_keys.partial_prefix(j, 1, a) + "x.txt" for j in jobs for a in (2, 3)}
    return found


def _made(make: object, names: list[str], values: dict[str, list[object]], **chosen: object) -> Iterator[str]:
    if not names:
        yield make(**chosen)  # type: ignore[operator]
        return
    for value in values[names[0]]:
        yield from _made(make, names[1:], values, **chosen, **{names[0]: value})
