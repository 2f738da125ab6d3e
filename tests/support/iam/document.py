"""Policy documents as values."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_ELEMENTS = {"Sid", "Effect", "Action", "NotAction", "Resource", "NotResource", "Condition", "Principal", "NotPrincipal"}


class NotUnderstood(Exception):
    """A document holds something that this evaluator does not know."""


@dataclass(frozen=True)
class Statement:
    """One statement. Lists even where the document has one text."""

    sid: str
    allows: bool
    actions: tuple[str, ...]
    all_actions_but: bool  # NotAction
    resources: tuple[str, ...]  # empty in trust policies
    all_resources_but: bool
    conditions: Mapping[str, Mapping[str, tuple[str, ...]]]
    principals: tuple[tuple[str, str], ...]  # kind, name; empty in identity policies


@dataclass(frozen=True)
class Policy:
    """A document with a name for messages."""

    name: str
    statements: tuple[Statement, ...]
    variables: bool  # version 2012-10-17 has them, the one before had not


def read(name: str, document: str | Mapping[str, Any]) -> Policy:
    """A policy from its JSON. Raises NotUnderstood."""
    data = json.loads(document) if isinstance(document, str) else document
    if unknown := set(data) - {"Version", "Id", "Statement"}:
        raise NotUnderstood(f"{name}: elements {sorted(unknown)}")
    statements = [data["Statement"]] if isinstance(data["Statement"], Mapping) else data["Statement"]
    return Policy(name, tuple(_statement(name, s) for s in statements), data.get("Version") == "2012-10-17")


def _statement(name: str, s: Mapping[str, Any]) -> Statement:
    if unknown := set(s) - _ELEMENTS or ("NotPrincipal" in s and {"NotPrincipal"}):
        raise NotUnderstood(f"{name}: elements {sorted(unknown)}")
    if s["Effect"] not in ("Allow", "Deny") or ("Action" in s) == ("NotAction" in s):
        raise NotUnderstood(f"{name}: {s}")
    return Statement(
        sid=s.get("Sid", ""),
        allows=s["Effect"] == "Allow",
        actions=texts(s.get("Action", s.get("NotAction"))),
        all_actions_but="NotAction" in s,
        resources=texts(s.get("Resource", s.get("NotResource", ()))),
        all_resources_but="NotResource" in s,
        conditions={op: {key: texts(v) for key, v in keys.items()} for op, keys in s.get("Condition", {}).items()},
        principals=_principals(s.get("Principal", ())),
    )


def _principals(value: Any) -> tuple[tuple[str, str], ...]:
    if value == "*":
        return (("*", "*"),)
    return tuple((kind, name) for kind, names in dict(value).items() for name in texts(names))


def texts(value: Any) -> tuple[str, ...]:
    """One or many, booleans and numbers as JSON writes them."""
    many: Sequence[Any] = value if isinstance(value, list | tuple) else [value]
    return tuple(v if isinstance(v, str) else json.dumps(v) for v in many)
