"""Entry point: runs one call of the command line, and turns errors into one sentence and an exit code."""

from __future__ import annotations

import os
import re
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
import typer.core

import spotsurfer
from spotsurfer.cli.command_table import Commands
from spotsurfer.cli.common import CONTEXT, SESSION, examples
from spotsurfer.cli.printing import answer_in_json, complain, hush, put, put_json
from spotsurfer.model.errors import DISK_FULL, DiskFull, SpotsurferError, UsageError

# ---- Start-up time: keeps typer from loading pydantic for values that need no conversion.
# typer 0.29 makes a pydantic converter for every option of a command, also for text and for unused options. Loading pydantic
# takes longer than all the rest of a short command.


class _WhenNeeded:
    """Replaces typer's own converter of a parameter, and makes that one for the first value that needs it."""

    def __init__(self, descriptor: Any) -> None:
        self._descriptor = descriptor
        self._text = descriptor.annotation is str and descriptor.parameter_info.parser is None

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        """The value that the command gets."""
        many = param.multiple or param.nargs == -1
        if value is None:
            return () if many else None
        if not many and self._text and type(value) is str:
            return value
        return _CONVERTER(self._descriptor).coerce(value, param=param, ctx=ctx)


_CONVERTER: Any = getattr(typer.core, "build_runtime_param", None)  # a private name: another typer may lack it


if _CONVERTER is not None:  # a typer without it is left alone: it may be slower, and does the same
    typer.core.build_runtime_param = _WhenNeeded  # type: ignore[assignment, attr-defined]


# ---- Entry point

INTERRUPTED = 130  # the shell's convention: 128 + SIGINT
COMPLETION = "_SPOTSURFER_COMPLETE"  # set by the shell's completion script, which typer prints
# Messages of typer's converters, and their plain replacements.
PLAINLY = (
    (re.compile(r"Input should be a valid integer.*"), "expected a whole number"),
    (re.compile(r"Input should be a valid number.*"), "expected a number"),
    (re.compile(r"Input should be greater than or equal to"), "expected at least"),
    (re.compile(r"Input should be less than or equal to"), "expected at most"),
    (re.compile(r"Input should be greater than"), "expected more than"),
    (re.compile(r"Input should be less than"), "expected less than"),
    (re.compile(r"Input should be"), "expected"),
    (re.compile(r"Unable to parse input string as an integer.*"), "expected a whole number"),
    (re.compile(r"\(s\) \((\S+)\)"), r" \1"),
    (re.compile(r"\(s\) \((.*)\)"), r"s \1"),
)

GREETING = """spotsurfer lets long jobs live on interruptible machines.

  spotsurfer doctor          can this host run a controller, and its machines?
  spotsurfer demo            see a real job move across machines of this host (root; under 15 minutes)
  spotsurfer submit --help   submit a job of your own

`spotsurfer --help` lists all commands."""
OTHER_WORDS = {  # what people type who know other tools -> what they want
    **dict.fromkeys(("cost", "costs", "bill"), "report"),
    **dict.fromkeys(("status", "jobs", "ps", "queue", "ls"), "list` or `spotsurfer show JOB"),
    **dict.fromkeys(("kill", "delete", "rm"), "cancel"),
    **dict.fromkeys(("stop", "pause"), "suspend"),
    **dict.fromkeys(("run", "launch", "exec"), "submit"),
    **dict.fromkeys(("snapshot", "save"), "checkpoint"),
    **dict.fromkeys(("migrate",), "move"),
    **dict.fromkeys(("top", "tail"), "watch --live"),
    **dict.fromkeys(("download", "results"), "outputs"),
    **dict.fromkeys(("start", "daemon"), "serve"),
}

app = typer.Typer(
    name="spotsurfer",
    cls=Commands,
    help="Long jobs on spot machines: the running program is frozen, moved, and goes on bit for bit.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings=CONTEXT,
)


def _say_version(wanted: bool) -> None:
    if wanted:
        version()
        raise typer.Exit


@app.callback()
def options(
    config: Annotated[Path | None, typer.Option("--config", help="Configuration file.", show_default=False)] = None,
    debug: Annotated[bool, typer.Option("--debug", help="Show where an error comes from.")] = False,
    show_version: Annotated[  # noqa: ARG001 - its callback has printed it
        bool, typer.Option("--version", help="Say which version this is.", is_eager=True, callback=_say_version)
    ] = False,
) -> None:
    """Options before the command's name."""
    SESSION.config, SESSION.debug = config, debug


def add(app: typer.Typer) -> None:
    """Register the command of this file."""
    app.command(epilog=examples("spotsurfer version", "spotsurfer version --json"))(version)


def version() -> None:
    """Say which version this is."""
    put_json({"version": spotsurfer.__version__})
    put(f"spotsurfer {spotsurfer.__version__}")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; the exit code. Installed as `spotsurfer`."""
    arguments, SESSION.tail = _split(list(sys.argv[1:] if argv is None else argv))
    hush(False)
    answer_in_json(False)
    try:
        code = _call(arguments)
        sys.stdout.flush()
    except BrokenPipeError:  # the reader has seen enough (`| head`)
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    return code


def _call(arguments: list[str]) -> int:
    try:
        code = app(args=arguments, prog_name="spotsurfer", standalone_mode=False)
        if code == INTERRUPTED:  # by the library, which prints nothing
            complain("Interrupted.")
    except BrokenPipeError:
        raise
    except (KeyboardInterrupt, typer.Abort):
        complain("Interrupted.")
        return INTERRUPTED
    except Exception as error:
        if COMPLETION in os.environ:  # no errors at a shell's prompt
            return SpotsurferError.exit_code
        return _report(error, "--debug" in arguments)
    return code if isinstance(code, int) else 0


def _report(error: Exception, debug: bool) -> int:
    """Print one sentence on stderr; returns the exit code."""
    if debug:
        traceback.print_exception(error)
    if isinstance(error, SpotsurferError):
        complain(_with_page(error))
        return error.exit_code
    if type(error).__name__ == "NoArgsIsHelpError":  # of the option parser, which keeps the type to itself
        put(GREETING if error.ctx.parent is None else str(error))  # type: ignore[attr-defined]
        return 0
    if hasattr(error, "format_message"):  # of the option parser
        complain(_usage(error))
        return UsageError.exit_code
    if isinstance(error, OSError) and error.errno in DISK_FULL:
        complain(f"{error.filename or 'A disk'} is full: make room and repeat the command.")
        return DiskFull.exit_code
    complain(f"spotsurfer failed inside: {type(error).__name__}: {error}. Repeat with `spotsurfer --debug …` to see where.")
    return SpotsurferError.exit_code


def _with_page(error: SpotsurferError) -> str:
    """What went wrong, and where more is written about it."""
    text = str(error)
    return f"{text}{'' if text.endswith(('.', '?', '…')) else '.'} See {error.page}." if error.page else text


def _usage(error: Any) -> str:
    context = getattr(error, "ctx", None)
    name = context.command_path if context is not None else "spotsurfer"
    message = str(error.format_message()).rstrip(".")
    if not message:
        return f"`{name} --help` shows how."
    for theirs, ours in PLAINLY:
        message = theirs.sub(ours, message)
    if (typed := re.match(r"No such command '(\w+)'", message)) and typed[1] in OTHER_WORDS:
        return f"{typed[0]}. You may want `spotsurfer {OTHER_WORDS[typed[1]]}`. `{name} --help` lists all commands."
    if name.endswith((" submit", " ssh")) and "extra argument" in message:
        message += f": what is to run comes after --, as in `{name} -- sleep 10`"
    return f"{message[:1].upper()}{message[1:]}{'' if message.endswith('?') else '.'} `{name} --help` shows how."


def _split(arguments: list[str]) -> tuple[list[str], list[str]]:
    """`submit … -- prog args`, `ssh JOB -- prog args`: words after -- belong to the program, even if they look like options."""
    cut = arguments.index("--") if "--" in arguments else len(arguments)
    if not {"submit", "ssh"} & set(arguments[:cut]):
        return arguments, []
    return arguments[:cut], arguments[cut + 1 :]
