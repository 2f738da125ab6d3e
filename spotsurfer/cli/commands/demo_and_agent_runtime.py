"""`demo` and `agent-runtime`: both parse their own words. `agent-runtime list` and `push` also read the store."""

from __future__ import annotations

import importlib
import os
import time
from typing import TYPE_CHECKING, Any

import typer

from spotsurfer.cli.common import SESSION
from spotsurfer.cli.printing import answer_in_json, put, put_json, table, tell
from spotsurfer.common.units import size
from spotsurfer.model.errors import ConfigError, HostUnfit, StoreUnwritable

if TYPE_CHECKING:
    from spotsurfer_wire.store.port import FileStore

    from spotsurfer.config.settings import Settings


# ---- `agent-runtime list` and `push`: runtimes in the store beside those built here.


def push(settings: Settings) -> None:
    """Upload the runtime that the configuration uses, unless it is there. Raises what building one does, StoreUnwritable."""
    from spotsurfer_wire.store.port import StoreError

    from spotsurfer.agent_runtime import provision

    runtime = provision.ready(settings, tell)
    try:
        sent = provision.push(_store(settings), runtime)
    except StoreError as e:
        raise StoreUnwritable(f"the runtime can't be stored: {e}; check store.url and its rights") from e
    put_json({"sha256": runtime.sha256, "sent": sent})
    put(f"{runtime.sha256} {'is in the store now' if sent else 'was in the store already'}")


def show(settings: Settings) -> None:
    """All that are in the store or built here, and which one new machines get. Raises StoreUnwritable."""
    from spotsurfer_wire.store.port import StoreError

    from spotsurfer.agent_runtime import find, provision

    try:
        stored = {r.sha256: r for r in provision.stored(_store(settings))}
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
        room = used.path.stat().st_size
        lines.insert(0, {"sha256": used.sha256, "size_bytes": room, "age_seconds": None, "stored": False, "used": True})
    put_json({"runtimes": lines})
    if not lines:
        put("There is none: `spotsurfer agent-runtime build` makes one.")
    else:
        ages = [f"{x['age_seconds'] / 86400:.1f} days" if x["age_seconds"] is not None else "yes" for x in lines]
        rows = [
            [x["sha256"], size(x["size_bytes"]), age if x["stored"] else "no", "*" if x["used"] else ""]
            for x, age in zip(lines, ages, strict=True)
        ]
        table(["sha-256", "size", "in the store for", "used"], rows)


def _store(settings: Settings) -> FileStore:
    from obstore.exceptions import BaseError

    from spotsurfer.store.open_store import open_for

    try:
        return open_for(settings)
    except (OSError, ValueError, BaseError) as e:
        raise ConfigError(f"store.url {settings.store_url!r} can't be used: {e}") from e


# ---- Registration: both commands get all words and options unparsed.

# Passes all words and options after the command's name on unchanged, --help too.
THROUGH = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}


def add(app: typer.Typer) -> None:
    """Register the commands of this file."""
    app.command(context_settings=THROUGH, add_help_option=False)(demo)
    app.command(name="agent-runtime", context_settings=THROUGH, add_help_option=False)(agent_runtime)


def demo(context: typer.Context) -> None:
    """Show a real assembly surfing across machines on this host (root; under 15 minutes)."""
    try:
        module = importlib.import_module("spotsurfer.demo.__main__")
    except ModuleNotFoundError as e:
        if e.name is None or not e.name.startswith("spotsurfer.demo"):
            raise
        raise HostUnfit("This installation has no demonstration: run `make demo` in a checkout of the sources.") from None
    raise typer.Exit(module.main(context.args, SESSION.config))


def agent_runtime(context: typer.Context) -> None:
    """Build, list, push or unpack the tarball that machines run."""
    from spotsurfer.agent_runtime.__main__ import main
    from spotsurfer.agent_runtime.package_fetch import MIRROR_VARIABLE

    settings = SESSION.settings()
    if settings.runtime.mirror:
        os.environ.setdefault(MIRROR_VARIABLE, settings.runtime.mirror)
    words = [w for w in context.args if w != "--json"]
    if words in (["list"], ["push"]):
        answer_in_json("--json" in context.args)
        (show if words == ["list"] else push)(settings)
        return
    given = context.args if "--out" in context.args else ["--out", str(settings.runtime_dir), *context.args]
    raise typer.Exit(main(given))
