"""What a maker of policies says of its settings, so that `spotsurfer policies` can list them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

Made = TypeVar("Made", bound=Callable[..., Any])
LEAVE_OUT = "leave_out"  # a policy with this parameter learns: back-tests leave out what it learned from the pool in question


@dataclass(frozen=True, slots=True)
class Parameter:
    """One key of the policy's table, its default, and what it means in a few words."""

    name: str
    default: object
    text: str


def parameters(*given: Parameter) -> Callable[[Made], Made]:
    """Decorates a maker with its parameters."""

    def decorate(make: Made) -> Made:
        make.parameters = given  # type: ignore[attr-defined]
        return make

    return decorate


def parameters_of(make: Callable[..., Any]) -> tuple[Parameter, ...]:
    """What a maker says; nothing where it says nothing, or nonsense."""
    found = getattr(make, "parameters", ())
    return tuple(p for p in found if isinstance(p, Parameter)) if isinstance(found, tuple) else ()
