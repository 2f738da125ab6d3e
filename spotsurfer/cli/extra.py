"""Commands that live elsewhere: plug-ins' own (`local`), the demonstration, the builder of the agent's runtime.

A plug-in adds commands by the entry point group "spotsurfer.cli": name = a typer application. It is loaded only when it
is called, so that a broken plug-in breaks no other command.
"""

from __future__ import annotations

import importlib
import os
from importlib.metadata import EntryPoint, entry_points

import typer

from spotsurfer.cli.common import SESSION
from spotsurfer.model.errors import HostUnfit

# All words and options after the command's name go on as they are, --help too.
THROUGH = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}


def add(app: typer.Typer) -> None:
    """Register the commands of this file and of installed plug-ins."""
    app.command(context_settings=THROUGH, add_help_option=False)(demo)
    app.command(name="agent-runtime", context_settings=THROUGH, add_help_option=False)(agent_runtime)
    for point in sorted(entry_points(group="spotsurfer.cli"), key=lambda p: p.name):
        _add_plugin(app, point)


def demo(context: typer.Context) -> None:
    """Show a real assembly surfing across machines on this host (root; under 15 minutes)."""
    try:
        module = importlib.import_module("spotsurfer.demo.__main__")
    except ModuleNotFoundError as e:
        if e.name is None or not e.name.startswith("spotsurfer.demo"):
            raise
        raise HostUnfit("This installation has no demonstration: run `make demo` in a checkout of the sources.") from None
    raise typer.Exit(module.main(context.args))


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


def _add_plugin(app: typer.Typer, point: EntryPoint) -> None:
    def call(context: typer.Context) -> None:
        plugin: typer.Typer = point.load()
        raise typer.Exit(plugin(args=context.args, prog_name=f"spotsurfer {point.name}", standalone_mode=False) or 0)

    help_text = f"Commands of the provider {point.name!r}: `spotsurfer {point.name} --help` lists them."
    app.command(name=point.name, context_settings=THROUGH, add_help_option=False, help=help_text)(call)
