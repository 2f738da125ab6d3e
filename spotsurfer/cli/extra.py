"""Commands that parse their words by themselves: the demonstration, the builder of the agent's runtime."""

from __future__ import annotations

import importlib
import os

import typer

from spotsurfer.cli.common import SESSION
from spotsurfer.model.errors import HostUnfit

# All words and options after the command's name go on as they are, --help too.
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
    from spotsurfer.cli import runtimes
    from spotsurfer.runtime.__main__ import main
    from spotsurfer.runtime.debian import MIRROR_VARIABLE
    from spotsurfer.settings import load_settings

    settings = load_settings(SESSION.config)
    if settings.runtime.mirror:
        os.environ.setdefault(MIRROR_VARIABLE, settings.runtime.mirror)
    words = [w for w in context.args if w != "--json"]
    if words in (["list"], ["push"]):
        (runtimes.show if words == ["list"] else runtimes.push)(settings, "--json" in context.args)
        return
    given = context.args if "--out" in context.args else ["--out", str(settings.runtime_dir), *context.args]
    raise typer.Exit(main(given))
