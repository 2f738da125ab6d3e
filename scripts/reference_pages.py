"""The pages of docs/reference that are made from code: command line, configuration, API, events. It returns texts."""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

from spotsurfer.cli.command_table import TABLE, load
from spotsurfer.common.log_setup import EVENTS
from spotsurfer.web.app import make_app

ROOT = Path(__file__).resolve().parent.parent
MADE = "`make docs` makes this page from {source}."
COLUMNS = "100"  # of a help text


def command_line() -> str:
    """Each command with its help."""
    os.environ["COLUMNS"] = COLUMNS
    parts = ["# The command line", MADE.format(source="the programs themselves")]
    parts += [
        "`spotsurfer --install-completion` teaches your shell the commands, their options and the names of your jobs. "
        "Failures end with an [exit code](exit-codes.md) of their own."
    ]
    for module, commands in TABLE.items():
        loaded = load(module) if module != "spotsurfer.cli.main" else {}
        for name in commands:
            if name in loaded:
                parts += list(_help(f"spotsurfer {name}", loaded[name]))
    return "\n\n".join(parts) + "\n"


def _help(path: str, command: Any, level: str = "##") -> Iterator[str]:
    context = command.make_context(path, [], resilient_parsing=True)
    text = "\n".join(line.rstrip() for line in command.get_help(context).strip().splitlines())
    yield f"{level} {path.removeprefix('spotsurfer ')}"
    yield f"```text\n{text}\n```"
    for name, inner in getattr(command, "commands", {}).items():
        yield from _help(f"{path} {name}", inner, "###")


def configuration() -> str:
    """config.example.toml, section by section."""
    text = (ROOT / "config.example.toml").read_text()
    head, *sections = re.split(r"^(?=(?:##? )?\[[a-z])", text, flags=re.MULTILINE)
    parts = ["# The configuration", MADE.format(source="`config.example.toml`, which `spotsurfer init` writes"), _toml(head)]
    parts += [_toml(part) for part in sections]
    return "\n\n".join(parts) + "\n"


def _toml(text: str) -> str:
    return f"```toml\n{text.strip()}\n```"


def api() -> str:
    """Each request of the API, by its tag."""
    page = make_app(cast(Any, None)).openapi()
    by_tag: defaultdict[str, list[str]] = defaultdict(list)
    for path, methods in page["paths"].items():
        for method, about in methods.items():
            told = " ".join((about.get("description") or about.get("summary") or "").split("\n\n")[0].split())
            by_tag[next(iter(about.get("tags", [])), "other")].append(f"| `{method.upper()} {path}` | {_cell(told)} |")
    parts = ["# The API", MADE.format(source="the controller's routes")]
    parts += [
        "The controller answers on its Unix socket, and over TCP if `[controller] listen` says so. Clients over TCP send "
        "`Authorization: Bearer TOKEN` ([access](../access.md)). `GET /v1/openapi.json` describes each body and answer. "
        "Programs may rely on everything below `/v1`."
    ]
    for tag in sorted(by_tag):
        parts += [f"## {tag.capitalize()}", "\n".join(["| request | what it does |", "|---|---|", *by_tag[tag]])]
    return "\n\n".join(parts) + "\n"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


KIND = re.compile(r'^    [A-Z_]+ = "(?P<word>[a-z ]+)"(?:  # (?P<what>.+))?$', re.MULTILINE)


def events() -> str:
    """The kinds of moments of a timeline, and the names of events in the controller's log."""
    source = (ROOT / "spotsurfer/model/timeline_events.py").read_text()
    rows = [f"| {m['word']} | {_cell(m['what'] or '')} |" for m in KIND.finditer(source)]
    return (
        "\n\n".join(
            [
                "# Events",
                MADE.format(source="`spotsurfer/model/timeline_events.py` and `spotsurfer/common/log_setup.py`"),
                "## Of a timeline",
                "`spotsurfer watch`, `GET /v1/moments` and [webhooks](../notifications.md) tell them. "
                "An *attempt* is one machine's try at a job.",
                "\n".join(["| kind | means |", "|---|---|", *rows]),
                "## Of the controller's log",
                "Each line of the log has one of these names as its `event`, and its facts as data.",
                ", ".join(f"`{name}`" for name in sorted(EVENTS)),
            ]
        )
        + "\n"
    )


PAGES: Mapping[str, Any] = {
    "docs/reference/command-line.md": command_line,
    "docs/reference/configuration.md": configuration,
    "docs/reference/api.md": api,
    "docs/reference/events.md": events,
}
