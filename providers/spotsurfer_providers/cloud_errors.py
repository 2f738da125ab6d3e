"""What the error tables of all clouds share; a cloud's own `error_codes.py` has its codes, remedies and exceptions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TypeVar

from spotsurfer.model.errors import ProviderError

E = TypeVar("E", bound=Exception)
Kind = type[ProviderError]


def by_code(table: Mapping[Kind, Sequence[str]]) -> dict[str, Kind]:
    """The table the other way round. Raises ValueError if a code stands in it twice."""
    kinds = {code: kind for kind, codes in table.items() for code in codes}
    if len(kinds) != sum(map(len, table.values())):
        raise ValueError("a code stands for two kinds of errors")
    return kinds


def error(kind: Kind, what: str, said: str, remedies: Mapping[Kind, str]) -> ProviderError:
    """Our error: what was tried, what the cloud said to it, and the remedy if there is one."""
    text, remedy = f"{what}: {said.rstrip('.')}", remedies.get(kind)
    return kind(f"{text}; {remedy}" if remedy else text)


@contextmanager
def calling(
    what: str, cloud: str, errors: tuple[type[E], ...], translated: Callable[[E, str], ProviderError]
) -> Iterator[None]:
    """Turns `errors`, those of the cloud's library, into ProviderError or a child of it; so an answer that can't be read."""
    try:
        yield
    except errors as e:
        raise translated(e, what) from e
    except (LookupError, TypeError, ValueError, AttributeError) as e:
        raise ProviderError(f"{what}: {cloud} answered something that can't be read ({type(e).__name__}: {e})") from e
