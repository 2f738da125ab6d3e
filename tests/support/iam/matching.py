"""Texts with wildcards and policy variables."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache

Context = Mapping[str, str | Sequence[str]]  # condition keys of a request, in lower case
_VARIABLE = re.compile(r"\$\{([^}]*)\}")
_LITERAL = {"*": "[*]", "?": "[?]", "$": "[$]"}


def value_of(context: Context, key: str) -> tuple[str, ...] | None:
    """Values of a condition key, whatever its letters' case; None where the request has none."""
    found = context.get(key.lower())
    return None if found is None else (found,) if isinstance(found, str) else tuple(found)


def filled(pattern: str, context: Context) -> str | None:
    """The pattern with its policy variables put in, as a regular expression; None where a variable has no value.

    A value that came from a variable is taken literally: a user named "*" matches no other.
    """
    out, at = "", 0
    for found in _VARIABLE.finditer(pattern):
        out += _wild(pattern[at : found.start()])
        name, _, default = (part.strip() for part in found[1].partition(","))
        values = (name,) if name in _LITERAL else value_of(context, name)
        if values is None and default:
            values = (default.strip("'"),)
        if values is None or len(values) != 1:
            return None
        out += re.escape(values[0])
        at = found.end()
    return out + _wild(pattern[at:])


def matches(pattern: str, text: str, context: Context | None = None, fold: bool = False) -> bool:
    """Whether `text` is meant by `pattern` with its `*`, `?` and (with a context) variables."""
    expression = _wild(pattern) if context is None else filled(pattern, context)
    return expression is not None and _compiled(expression, fold).fullmatch(text) is not None


def arn_matches(pattern: str, arn: str, context: Context | None = None) -> bool:
    """The same, part by part, as ArnLike does it: a wildcard does not reach past a colon, but in the last of the six parts."""
    if pattern == "*" or arn == "*":
        return pattern == "*"
    wanted, given = pattern.split(":", 5), arn.split(":", 5)
    return len(wanted) == len(given) == 6 and all(matches(w, g, context) for w, g in zip(wanted, given, strict=True))


def resource_matches(pattern: str, arn: str, context: Context | None = None) -> bool:
    """For the element Resource: there a `*` that ends one of the parts may reach past the colon behind it."""
    reaches = any(part.endswith("*") for part in pattern.split(":", 5)[:5])
    return arn_matches(pattern, arn, context) or (reaches and arn != "*" and matches(pattern, arn, context))


def _wild(text: str) -> str:
    return "".join({"*": ".*", "?": "."}.get(c) or re.escape(c) for c in text)


@lru_cache(4096)
def _compiled(expression: str, fold: bool) -> re.Pattern[str]:
    return re.compile(expression, re.DOTALL | (re.IGNORECASE if fold else 0))
