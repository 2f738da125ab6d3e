"""Listings of the gateway against the simplest model: sort the keys, fold, cut."""

from __future__ import annotations

import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st
from spotsurfer_providers.local.object_gateway.folder_store import Objects
from spotsurfer_providers.local.object_gateway.server import list_page

NAMES = st.text("ab-./ü0", min_size=1, max_size=6)


def _keys(names: list[str]) -> set[str]:
    """Those that can lie in one tree of folders: no empty or dotted part, none that is another's folder."""
    good = [n for n in names if all(p not in ("", ".", "..") for p in n.split("/"))]
    return {n for n in good if not any(other.startswith(n + "/") for other in good)}


def _model(keys: set[str], prefix: str, delimiter: str, after: str, limit: int) -> list[str]:
    found: list[str] = []
    for key in sorted(keys, key=str.encode):
        if not key.startswith(prefix) or key <= after:
            continue
        head, mark, _ = key[len(prefix) :].partition(delimiter) if delimiter else ("", "", "")
        name = prefix + head + mark if mark else key
        if name not in found:
            found.append(name)
    return found[:limit]


@settings(max_examples=150, deadline=None)
@given(
    st.lists(NAMES, max_size=12), NAMES | st.just(""), st.sampled_from(["", "/", "-"]), NAMES | st.just(""), st.integers(1, 4)
)
def test_pages(names: list[str], prefix: str, delimiter: str, after: str, limit: int) -> None:
    keys = _keys(names)
    with tempfile.TemporaryDirectory() as folder:
        for key in keys:
            path = Path(folder) / key
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
        objects = Objects(Path(folder), "box")
        page = list_page(objects, prefix, delimiter, after, limit)
        got = sorted([e.key for e in page.entries] + list(page.prefixes), key=str.encode)
        assert got == _model(keys, prefix, delimiter, after, limit)
        everything: list[str] = []
        at: str | None = after
        while at is not None:
            page = list_page(objects, prefix, delimiter, at, limit)
            everything += sorted([e.key for e in page.entries] + list(page.prefixes), key=str.encode)
            at = page.after
        assert everything == _model(keys, prefix, delimiter, after, 10_000)
