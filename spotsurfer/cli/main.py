"""Entry point: commands by name, errors to one sentence and an exit code."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

import spotsurfer
from spotsurfer.cli import act, ask, backtests, checkpoints, extra, files, hint, host, login, policies, storework, submit, usage
from spotsurfer.cli.common import CONTEXT, DISK_FULL, SESSION, AsJson, examples
from spotsurfer.cli.screen import put, put_json, tell
from spotsurfer.model.errors import DiskFull, SpotsurferError, UsageError

INTERRUPTED = 130  # the shell's convention: 128 + SIGINT

app = typer.Typer(
    name="spotsurfer",
    help="Long jobs on spot machines: the running program is frozen, moved, and goes on bit for bit.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings=CONTEXT,
)


@app.callback()
def options(
    config: Annotated[Path | None, typer.Option("--config", help="Configuration file.", show_default=False)] = None,
    debug: Annotated[bool, typer.Option("--debug", help="Show where an error comes from.")] = False,
) -> None:
    """Options before the command's name."""
    SESSION.config, SESSION.debug = config, debug


@app.command(epilog=examples("spotsurfer version", "spotsurfer version --json"))
def version(as_json: AsJson = False) -> None:
    """Say which version this is."""
    if as_json:
        put_json({"version": spotsurfer.__version__})
    else:
        put(f"spotsurfer {spotsurfer.__version__}")


for room in (submit, ask, usage, act, checkpoints, storework, files, hint, host, login, backtests, policies, extra):
    room.add(app)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; the exit code. Installed as `spotsurfer`."""
    arguments, SESSION.tail = _split(list(sys.argv[1:] if argv is None else argv))
    try:
        code = app(args=arguments, prog_name="spotsurfer", standalone_mode=False)
        sys.stdout.flush()
        if code == INTERRUPTED:  # by the library, which says nothing
            tell("Interrupted.")
    except BrokenPipeError:  # the reader has seen enough (`| head`)
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (KeyboardInterrupt, typer.Abort):
        tell("Interrupted.")
        return INTERRUPTED
    except Exception as error:
        return _report(error, "--debug" in arguments)
    finally:
        SESSION.close()
    return code if isinstance(code, int) else 0


def _report(error: Exception, debug: bool) -> int:
    """One sentence on stderr; the exit code."""
    if debug:
        traceback.print_exception(error)
    if isinstance(error, SpotsurferError):
        tell(str(error))
        return error.exit_code
    if hasattr(error, "format_message"):  # of the option parser
        tell(_usage(error))
        return UsageError.exit_code
    if isinstance(error, OSError) and error.errno in DISK_FULL:
        tell(f"{error.filename or 'A disk'} is full: make room and repeat the command.")
        return DiskFull.exit_code
    tell(f"spotsurfer failed inside: {type(error).__name__}: {error}. Repeat with `spotsurfer --debug …` to see where.")
    return SpotsurferError.exit_code


def _usage(error: Any) -> str:
    context = getattr(error, "ctx", None)
    name = context.command_path if context is not None else "spotsurfer"
    message = str(error.format_message()).rstrip(".")
    return f"{message[:1].upper()}{message[1:]}. `{name} --help` shows how." if message else f"`{name} --help` shows how."


def _split(arguments: list[str]) -> tuple[list[str], list[str]]:
    """`submit … -- prog args`, `ssh JOB -- prog args`: what comes after is the program's, whatever it looks like."""
    cut = arguments.index("--") if "--" in arguments else len(arguments)
    if not {"submit", "ssh"} & set(arguments[:cut]):
        return arguments, []
    return arguments[:cut], arguments[cut + 1 :]
