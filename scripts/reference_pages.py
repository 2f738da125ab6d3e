"""The pages of docs/reference that are made from code, as texts: job file, commands, configuration, API, metrics, events."""

from __future__ import annotations

import dataclasses
import os
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

from spotsurfer.cli.command_table import TABLE, load
from spotsurfer.common.log_setup import EVENTS
from spotsurfer.common.units import parse_bytes, parse_seconds
from spotsurfer.jobspec import keys
from spotsurfer.model.job import JobSpec
from spotsurfer.web.app import make_app
from spotsurfer.web.metrics import METRICS

ROOT = Path(__file__).resolve().parent.parent
MADE = "`make docs` makes this page from {source}."
COLUMNS = "100"  # of a help text


JOB_FILE = """\
# The job file

{made}

`spotsurfer submit job.toml` sends one. Only `command` must be there (or `[[steps]]`, or `image`). Options on the command line
win over the file.
A duration is a number of seconds, or a text like `90s`, `10m`, `6h`. A size is a text like `500M`, `4G`.

```toml title="job.toml"
name = "assembly"
command = ["megahit", "-t", "2", "-r", "reads.fq", "-o", "contigs"]
inputs = ["reads.fq"]
outputs = ["contigs/*.fa"]
checkpoint_interval = "10m"

[resources]
cpu = 2
memory = "4G"
```

A key with a dot stands in a table: `resources.cpu` is `cpu` below `[resources]`. Tables come after all keys without a dot.

| key | takes | default | option | what |
|---|---|---|---|---|
{rows}
"""


def job_file() -> str:
    """Each key with what it takes, its default, its option and its meaning."""
    defaults = {f.name: f.default for f in dataclasses.fields(JobSpec)}
    cells = (
        [f"`{name}`", keys.TAKES[key.parse], _default(defaults[key.field], key), _code(key.option), _cell(key.text)]
        for name, key in keys.KEYS.items()
    )
    made = MADE.format(source="`spotsurfer/jobspec/keys.py` and `spotsurfer/model/job.py`")
    return JOB_FILE.format(made=made, rows="\n".join(f"| {' | '.join(row)} |" for row in cells))


def _default(value: Any, key: keys.Key) -> str:
    if value in (dataclasses.MISSING, None, "", ()):
        return ""
    if key.parse is parse_bytes:
        return f"`{value >> 30}G`"
    if key.parse is parse_seconds:
        return f"`{value:g}s`"
    return _code(str(value).lower() if isinstance(value, bool) else str(value))


def _code(text: str) -> str:
    return text and f"`{text}`"


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


def metrics() -> str:
    """What `/metrics` tells."""
    rows = (
        f"| `spotsurfer_{m.name}{'_total' if m.counts else ''}` | {', '.join(m.labels)} | {_cell(m.help)} |" for m in METRICS
    )
    return METRICS_PAGE.format(made=MADE.format(source="`spotsurfer/web/metrics.py`"), rows="\n".join(rows))


METRICS_PAGE = """\
# Metrics

{made}

The controller tells them at `/metrics`, in the text format of Prometheus ([monitoring](../monitoring.md)). Times are seconds,
sizes bytes, money US dollars. What ends in `_total` only grows. Besides these there are the usual `process_…` figures of the
controller.

| metric | labels | means |
|---|---|---|
{rows}
"""
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
    "docs/reference/job-file.md": job_file,
    "docs/reference/command-line.md": command_line,
    "docs/reference/configuration.md": configuration,
    "docs/reference/api.md": api,
    "docs/reference/metrics.md": metrics,
    "docs/reference/events.md": events,
}
