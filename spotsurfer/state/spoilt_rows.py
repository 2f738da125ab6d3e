"""Rows that can't be decoded are found one by one, so that the others are read all the same."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import structlog
from sqlalchemy import ColumnElement, Connection, Select, tuple_
from sqlalchemy.exc import SQLAlchemyError

log = structlog.get_logger()
T = TypeVar("T")
Name = tuple[Any, ...]


def decoded(
    connection: Connection,
    query: Select[Any],
    keys: Sequence[ColumnElement[Any]],
    decode: Callable[[Any], T],
    spoilt: dict[Name, str] | None = None,
) -> list[T]:
    """The rows of a query in its order. Those that can't be decoded are left out, logged, and noted in `spoilt` by key."""
    try:
        return [decode(row) for row in connection.execute(query).mappings()]
    except SQLAlchemyError:
        raise
    except Exception:
        names: list[Name] = [tuple(x) for x in connection.execute(query.with_only_columns(*keys)).all()]
        return _halved(connection, query, keys, decode, names, {} if spoilt is None else spoilt)


def _halved(
    connection: Connection,
    query: Select[Any],
    keys: Sequence[ColumnElement[Any]],
    decode: Callable[[Any], T],
    names: list[Name],
    spoilt: dict[Name, str],
) -> list[T]:
    try:
        some = query.where(tuple_(*keys).in_(names))
        return [decode(row) for row in connection.execute(some).mappings()]
    except SQLAlchemyError:
        raise
    except Exception as e:
        if len(names) == 1:
            spoilt[names[0]] = f"{type(e).__name__}: {e}"
            _tell(names[0], spoilt[names[0]])
            return []
    middle = len(names) // 2
    parts = (_halved(connection, query, keys, decode, part, spoilt) for part in (names[:middle], names[middle:]))
    return [one for part in parts for one in part]


@functools.lru_cache(maxsize=1000)
def _tell(name: Name, why: str) -> None:
    """Log it once: the same row is read at each tick."""
    log.error("row.spoilt", row="/".join(map(str, name)), error=why)
