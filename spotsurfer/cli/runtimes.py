"""`agent-runtime list` and `push`: what lies in the store beside what was built here."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from spotsurfer.cli.screen import put, put_json, table, tell
from spotsurfer.model.errors import ConfigError, StoreUnwritable
from spotsurfer.units import size

if TYPE_CHECKING:
    from spotsurfer_agent.storeport import FileStore

    from spotsurfer.settings import Settings


def push(settings: Settings, as_json: bool) -> None:
    """Upload the runtime that the configuration uses, unless it is there. Raises what building one does, StoreUnwritable."""
    from spotsurfer_agent.storeport import StoreError

    from spotsurfer import agentruntime
    from spotsurfer.runtime import shelf

    runtime = agentruntime.ready(settings, tell)
    try:
        sent = shelf.push(_store(settings), runtime)
    except StoreError as e:
        raise StoreUnwritable(f"the runtime can't be stored: {e}; check store.url and its rights") from e
    if as_json:
        put_json({"sha256": runtime.sha256, "sent": sent})
    else:
        put(f"{runtime.sha256} {'is in the store now' if sent else 'was in the store already'}")


def show(settings: Settings, as_json: bool) -> None:
    """All that are in the store or built here, and which one new machines get. Raises StoreUnwritable."""
    from spotsurfer_agent.storeport import StoreError

    from spotsurfer.runtime import find, shelf

    try:
        stored = {r.sha256: r for r in shelf.stored(_store(settings))}
    except StoreError as e:
        raise StoreUnwritable(f"the store can't be listed: {e}; check store.url and its rights") from e
    used = find(settings.runtime_dir)
    lines: list[dict[str, Any]] = [
        {
            "sha256": r.sha256,
            "size_bytes": r.size_bytes,
            "age_seconds": max(0.0, time.time() - r.modified) if r.modified is not None else None,  # noqa: TID251 - for people
            "stored": True,
            "used": used is not None and used.sha256 == r.sha256,
        }
        for r in stored.values()
    ]
    if used is not None and used.sha256 not in stored:
        size = used.path.stat().st_size
        lines.insert(0, {"sha256": used.sha256, "size_bytes": size, "age_seconds": None, "stored": False, "used": True})
    if as_json:
        put_json({"runtimes": lines})
    elif not lines:
        put("There is none: `spotsurfer agent-runtime build` makes one.")
    else:
        table(["sha-256", "size", "in the store for", "used"], [_row(x) for x in lines])


def _row(line: dict[str, Any]) -> list[str]:
    age = line["age_seconds"]
    known = f"{age / 86400:.1f} days" if age is not None else "yes"
    return [
        line["sha256"],
        size(line["size_bytes"]),
        known if line["stored"] else "no",
        "*" if line["used"] else "",
    ]


def _store(settings: Settings) -> FileStore:
    from obstore.exceptions import BaseError

    from spotsurfer.storeway import open_for

    try:
        return open_for(settings)
    except (OSError, ValueError, BaseError) as e:
        raise ConfigError(f"store.url {settings.store_url!r} can't be used: {e}") from e
