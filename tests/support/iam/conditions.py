"""Condition operators, by "IAM JSON policy elements: Condition operators".

A positive operator wants one of its values to fit and the key to be there; a negated one that none fits, and is content
without the key; …IfExists is content without the key; ForAllValues wants each value of the request to fit (none is fine),
ForAnyValue at least one.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Mapping
from datetime import datetime

from support.iam.document import NotUnderstood
from support.iam.matching import Context, arn_matches, filled, matches, value_of

Test = Callable[[str, str, Context], bool]  # wanted (with variables), given


def _equal(wanted: str, given: str, context: Context) -> bool:
    return filled(wanted.replace("*", "${*}").replace("?", "${?}"), context) is not None and matches(
        wanted.replace("*", "${*}").replace("?", "${?}"), given, context
    )


def _number(fits: Callable[[float, float], bool]) -> Test:
    return lambda wanted, given, _: fits(float(given), float(wanted))


def _date(fits: Callable[[datetime, datetime], bool]) -> Test:
    return lambda wanted, given, _: fits(datetime.fromisoformat(given), datetime.fromisoformat(wanted))


def _address(wanted: str, given: str, _: Context) -> bool:
    return ipaddress.ip_address(given) in ipaddress.ip_network(wanted, strict=False)


_POSITIVE: Mapping[str, Test] = {
    "StringEquals": _equal,
    "StringEqualsIgnoreCase": lambda wanted, given, c: _equal(wanted.lower(), given.lower(), c),
    "StringLike": matches,
    "ArnEquals": lambda wanted, given, c: arn_matches(wanted, given, c),
    "ArnLike": lambda wanted, given, c: arn_matches(wanted, given, c),
    "Bool": lambda wanted, given, _: wanted.lower() == given.lower(),
    "NumericEquals": _number(lambda given, wanted: given == wanted),
    "NumericLessThan": _number(lambda given, wanted: given < wanted),
    "NumericLessThanEquals": _number(lambda given, wanted: given <= wanted),
    "NumericGreaterThan": _number(lambda given, wanted: given > wanted),
    "NumericGreaterThanEquals": _number(lambda given, wanted: given >= wanted),
    "DateLessThan": _date(lambda given, wanted: given < wanted),
    "DateGreaterThan": _date(lambda given, wanted: given > wanted),
    "IpAddress": _address,
}
_NEGATED: Mapping[str, Test] = {
    "StringNotEquals": _POSITIVE["StringEquals"],
    "StringNotLike": _POSITIVE["StringLike"],
    "ArnNotEquals": _POSITIVE["ArnEquals"],
    "ArnNotLike": _POSITIVE["ArnLike"],
    "NumericNotEquals": _POSITIVE["NumericEquals"],
    "NotIpAddress": _POSITIVE["IpAddress"],
}


def all_hold(conditions: Mapping[str, Mapping[str, tuple[str, ...]]], context: Context) -> bool:
    """Whether each operator holds for each of its keys. Raises NotUnderstood."""
    return all(
        _holds(op, wanted, value_of(context, key), context) for op, keys in conditions.items() for key, wanted in keys.items()
    )


def _holds(operator: str, wanted: tuple[str, ...], given: tuple[str, ...] | None, context: Context) -> bool:
    if operator == "Null":
        return (given is None) == (wanted[0].lower() == "true")
    qualifier, _, rest = operator.rpartition(":")
    name = rest.removesuffix("IfExists")
    if name not in _POSITIVE and name not in _NEGATED:
        raise NotUnderstood(f"condition operator {operator}")
    negated = name in _NEGATED
    if given is None:
        return negated or rest != name or qualifier == "ForAllValues"
    fits = [any((_NEGATED if negated else _POSITIVE)[name](w, g, context) for w in wanted) != negated for g in given]
    if qualifier in ("ForAnyValue", "ForAllValues"):
        return any(fits) if qualifier == "ForAnyValue" else all(fits)
    if qualifier:
        raise NotUnderstood(f"condition operator {operator}")
    return bool(fits) and all(fits)
