"""What the shim tells, as the types that it has: JSON knows none."""

from __future__ import annotations


def number(value: object) -> float:
    """A number."""
    assert isinstance(value, int | float)
    return float(value)


def counts(value: object) -> dict[str, int]:
    """Numbers by name."""
    assert isinstance(value, dict)
    return {str(k): int(v) for k, v in value.items()}


def texts(value: object) -> dict[str, str]:
    """Texts by name."""
    assert isinstance(value, dict)
    return {str(k): str(v) for k, v in value.items()}
