"""One look at all instances of a cloud, page by page: what of it can be trusted."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from typing import Any

from spotsurfer.model.errors import ProviderError
from spotsurfer.ports.provider import InstanceView, Listing


def read(
    pages: Iterator[Any],
    calling: Callable[[], AbstractContextManager[None]],
    entries: Callable[[Any], tuple[Iterable[Any], bool]],
    view: Callable[[Any], InstanceView],
) -> Listing:
    """Complete only if every page came and was whole, and every entry could be read.

    `pages` asks the cloud for each; `calling` makes ProviderError of its errors. `entries`: those of a page, and whether the
    page is whole. `view` raises KeyError, TypeError or ValueError for an entry that can't be read. Raises ProviderError if
    there is nothing to show.
    """
    found: list[InstanceView] = []
    complete = True
    while True:
        try:
            with calling():
                page = next(pages, None)
                some, whole = ((), True) if page is None else entries(page)
        except ProviderError:
            if not found:
                raise
            return Listing(found, complete=False)
        if page is None:
            return Listing(found, complete)
        complete = complete and whole
        for entry in some:
            try:
                found.append(view(entry))
            except (KeyError, TypeError, ValueError):
                complete = False
