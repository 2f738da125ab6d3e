"""Keeps typer from loading pydantic where a value needs no conversion: that takes longer than all the rest of a short command.

typer 0.29 makes a pydantic converter for every option of a command, also for text, and for options that nobody gave.
"""

from __future__ import annotations

from typing import Any

import typer.core


class _WhenNeeded:
    """Stands for typer's own converter of a parameter, and makes that for the first value that it is needed for."""

    def __init__(self, descriptor: Any) -> None:
        self._descriptor = descriptor
        self._text = descriptor.annotation is str and descriptor.parameter_info.parser is None

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        """The value as the command gets it."""
        many = param.multiple or param.nargs == -1
        if value is None:
            return () if many else None
        if not many and self._text and type(value) is str:
            return value
        return _CONVERTER(self._descriptor).coerce(value, param=param, ctx=ctx)


_CONVERTER: Any = getattr(typer.core, "build_runtime_param", None)  # a private name: another typer may lack it


def set_up() -> None:
    """From now on. A typer without such converters is left as it is: it may be slower, and does the same."""
    if _CONVERTER is not None:
        typer.core.build_runtime_param = _WhenNeeded  # type: ignore[assignment, attr-defined]
