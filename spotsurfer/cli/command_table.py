"""All commands in one table. Help and completion read only the table; calling a command loads its module."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command, get_group

from spotsurfer.cli.printing import answer_in_json, hush

PLUGINS = "spotsurfer.cli"  # group of entry points of plug-ins' commands: name = a typer application

# Module -> the commands that its function `add` registers, with the first sentence of their help.
TABLE = {
    "spotsurfer.cli.main": {"version": "Say which version this is."},
    "spotsurfer.cli.commands.submit": {
        "submit": "Submit a job: a job file, options and `-- prog args`, or both (options win)."
    },
    "spotsurfer.cli.commands.show": {
        "list": "Show all jobs, newest first or as you like.",
        "show": "Show everything about one job.",
        "why": "Explain why a job waits, is where it is, or moved: what was done, what was not taken and why.",
        "watch": "Follow what happens: the last moments and what comes, of all jobs, or of some until they have ended.",
    },
    "spotsurfer.cli.commands.report": {
        "report": "Say what was spent, what on-demand would have cost, what was repeated and how long jobs stood still."
    },
    "spotsurfer.cli.commands.usage": {"usage": "Show what a job used: processors, memory, waiting, disks, network, GPUs."},
    "spotsurfer.cli.commands.job_control": {
        "checkpoint": "Save the job while it runs on.",
        "move": "Take the job to another machine; if that fails it runs on where it is.",
        "signal": "Send a signal to the processes of a job that runs.",
        "wait": "Wait until a job, or all tasks of an array, have ended; 16 if one failed, 41 if it is held.",
        "suspend": "Save jobs, give their machines back, keep them in storage until `resume`.",
        "resume": "Let suspended or held jobs go on; with --from, any job from a checkpoint of your choice.",
        "priority": "Change how much the job counts: where limits leave no room for all, a higher one suspends a lower one.",
        "cancel": "End jobs without results.",
    },
    "spotsurfer.cli.commands.budget": {
        "budget": "Say what one job may cost (JOB USD), or all of an owner, a tag, a project together: list, set, remove."
    },
    "spotsurfer.cli.commands.licences": {"licences": "Show pools of licences: how many there are, who has them, who waits."},
    "spotsurfer.cli.commands.checkpoints": {
        "checkpoints": "List a job's checkpoints: what is proven, what is kept and why.",
        "protect": "Keep a checkpoint whatever the rules of retention say.",
        "unprotect": "Leave a checkpoint to the rules of retention again.",
        "fork": "Copy a job as of a checkpoint: the copy has an id of its own and goes its own way from there, on a machine of"
        " its own.",
        "rehearse": "Show that the newest checkpoint comes to life elsewhere, while the job runs on; it is proven then.",
    },
    "spotsurfer.cli.commands.store": {"store": "Look after the store: check, stats, gc."},
    "spotsurfer.cli.commands.logs_and_outputs": {
        "logs": "Print the job's output in the order in which it was written, over all moves: stderr goes to stderr.",
        "outputs": "List the results of a job that has ended, or download them; each file is checked against its digest.",
    },
    "spotsurfer.cli.commands.home": {
        "home": "Bring home what jobs made of folders of this host, and say what is still awaited."
    },
    "spotsurfer.cli.commands.hint": {"hint": "For a job's own script: tell its stage, or ask for a checkpoint."},
    "spotsurfer.cli.commands.slurm": {
        "slurm": "Slurm's commands (sbatch, squeue …) for programs that submit to Slurm: put them into a folder."
    },
    "spotsurfer.cli.commands.init": {
        "init": "Write a configuration with all keys, Terraform's modules, a systemd unit, files for monitoring."
    },
    "spotsurfer.cli.commands.serve_and_doctor": {
        "serve": "Run the controller until SIGTERM or Ctrl-C.",
        "reload": "Let the controller read its configuration again: what may change while it runs counts at once.",
        "doctor": "Say what this machine can and can't do, and the remedy; exit code 7 if something needed is missing.",
    },
    "spotsurfer.cli.commands.access": {
        "whoami": "Say who you are for the controller, and what you may do.",
        "token": "Let people in: make, list, revoke (operators).",
        "audit": "Say who changed what, and who was refused it (operators).",
    },
    "spotsurfer.cli.commands.backup": {
        "backup": "Save the controller's database, key and token in one encrypted file; the controller may be running.",
        "restore": "Put a backup where this configuration has the controller's data folder: whole, or not at all.",
        "adopt": "Take up the jobs of a store of which the controller's database is lost, or older than they are.",
    },
    "spotsurfer.cli.commands.ssh": {"ssh": "Log in to the machine that a job is on, or run what stands behind -- there."},
    "spotsurfer_lab.cli.backtest": {"backtest": "Try policies on recorded or made-up markets: what would they have cost?"},
    "spotsurfer_lab.cli.policies": {
        "policies": "List policies with their parameters, or train one on records of spot markets."
    },
    "spotsurfer.cli.commands.demo_and_agent_runtime": {
        "demo": "Show a real assembly surfing across machines on this host (root; under 15 minutes).",
        "agent-runtime": "Build, list, push or unpack the tarball that machines run.",
    },
}
# Commands that answer nothing, or have an option --json of their own.
OWN_WORDS = frozenset({"serve", "hint", "demo", "agent-runtime"})
KINDS = {"int": "N", "float": "NUMBER"}  # of values, by their Python types
MODULES = {name: module for module, commands in TABLE.items() for name in commands}


class Commands(TyperGroup):
    """The group of all commands. Until one is called, it holds only their names and help."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self._plugins: dict[str, Any] | None = None
        for commands in TABLE.values():
            for name, text in commands.items():
                self.add_command(TyperCommand(name=name, help=text, rich_markup_mode=None))

    def list_commands(self, ctx: Any) -> list[str]:
        """All names, in the order of the table; then those of plug-ins."""
        self._find_plugins()
        return super().list_commands(ctx)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The command's name and help, for a list; None if unknown."""
        if cmd_name not in self.commands:
            self._find_plugins()
        return super().get_command(ctx, cmd_name)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The command itself, loaded with its module, and its arguments. A broken plug-in breaks no other command."""
        name, command, rest = super().resolve_command(ctx, args)
        if name in MODULES:
            command = load(MODULES[name])[name]
        elif name is not None and self._plugins is not None:
            command = get_command(self._plugins[name].load())
            command.name = name
        return name, command, rest

    def _find_plugins(self) -> None:
        """Looks for plug-ins only if the table is not enough: reading the installed packages takes as long as all the rest."""
        if self._plugins is None:
            from importlib.metadata import entry_points

            self._plugins = {point.name: point for point in entry_points(group=PLUGINS) if point.name not in MODULES}
            for name in sorted(self._plugins):
                text = f"Commands of the provider {name!r}: `spotsurfer {name} --help` lists them."
                self.add_command(TyperCommand(name=name, help=text, rich_markup_mode=None))


def load(module: str) -> dict[str, Any]:
    """The commands that a module registers, by name; each gets the options --json (but for OWN_WORDS) and --quiet."""
    app = typer.Typer(rich_markup_mode=None)
    app.callback()(lambda: None)  # a group even with one command
    importlib.import_module(module).add(app)
    found = dict(get_group(app).commands)
    carrier = typer.Typer(rich_markup_mode=None, add_completion=False)
    carrier.command()(_manner)
    options = get_command(carrier).params[:2]
    for name, command in found.items():
        _complete(command, options[1:] if name in OWN_WORDS else options)
    return found


def _manner(
    as_json: Annotated[
        bool, typer.Option("--json", help="JSON on stdout, nothing else there.", expose_value=False, callback=answer_in_json)
    ] = False,
    quiet: Annotated[
        bool,
        typer.Option("-q", "--quiet", help="Say nothing but errors and what was asked for.", expose_value=False, callback=hush),
    ] = False,
) -> None:
    """Holds the options that all commands have."""


def _complete(command: Any, options: Sequence[Any]) -> None:
    """Give a command, or those of a group, these options; show kinds of values in the help in plain words."""
    for inner in getattr(command, "commands", {}).values():
        _complete(inner, options)
    for param in command.params:
        if param.param_type_name == "argument":
            param.display_type = lambda _: ""
        elif param.metavar is None and not (param.is_flag or param.type_descriptor.is_choice):
            kind = param.bare_type().removeprefix("list[").removesuffix("]")
            param.metavar = KINDS.get(kind, "PATH" if param.type_descriptor.is_path else "TEXT")
    if not getattr(command, "commands", None):
        command.params += options
