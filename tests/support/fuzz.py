"""Objects as somebody would write them who wants to stop their reader, or whose memory is bad."""

from __future__ import annotations

import json
import random
from typing import Any

NASTY: tuple[str, ...] = (
    "null", "true", "0", "-1", "1e300", "-1e300", "1e999", "NaN", "Infinity", "9223372036854775807", "9223372036854775808",
    "123456789012345678901234567890", '""', '"\\udcf6"', '"\\u0000"', '"' + "x" * 5000 + '"', "[]", "{}", "[null]",
    '{"a": 1}', "[" * 200 + "]" * 200, '"../../etc"', '"000001-000001"', '"running"', '"drained"', "1e-320", "-0.0", "[[1.0]]",
    '"2026-01-01T00:00:00"', '"9999-12-31T23:59:59+00:00"', '"0001-01-01T00:00:00+23:00"', "77",
)  # fmt: skip


def mutated(good: bytes, rand: random.Random) -> bytes:
    """A JSON object with one to three fields changed, at any depth, or broken bytes."""
    if rand.random() < 0.2:
        return _broken(good, rand)
    raw = json.loads(good)
    marks: dict[str, str] = {}
    for n in range(rand.randint(1, 3)):
        at, key = _place(raw, rand)
        marks[f'"@{n}@"'] = rand.choice(NASTY)
        at[key] = f"@{n}@"
    text = json.dumps(raw)
    for mark, value in marks.items():
        text = text.replace(mark, value)
    return text.encode()


def _place(raw: Any, rand: random.Random) -> tuple[Any, Any]:
    key = rand.choice(sorted(raw)) if isinstance(raw, dict) else rand.randrange(len(raw))
    inner = raw[key]
    return _place(inner, rand) if isinstance(inner, (dict, list)) and inner and rand.random() < 0.8 else (raw, key)


def _broken(good: bytes, rand: random.Random) -> bytes:
    data = bytearray(good)
    for _ in range(rand.randint(1, 4)):
        data[rand.randrange(len(data))] = rand.randrange(256)
    return bytes(data[: rand.randint(0, len(data))] if rand.random() < 0.3 else data)
