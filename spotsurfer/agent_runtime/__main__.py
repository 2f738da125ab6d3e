"""`spotsurfer agent-runtime`: build, list and unpack the agent's runtime."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from spotsurfer.agent_runtime.builder import Runtime, build, find, unpack
from spotsurfer.agent_runtime.package_pins import Pins
from spotsurfer.model.errors import RuntimeBuildError, SpotsurferError

EXAMPLES = (
    "Examples: spotsurfer agent-runtime build; spotsurfer agent-runtime build --locked; spotsurfer agent-runtime list --json; "
    "`spotsurfer agent-runtime push` uploads it to the store, as a controller does by itself when it starts"
)


def main(arguments: list[str] | None = None) -> int:
    """Runs one command; returns the exit code."""
    args = _parser().parse_args(arguments)
    try:
        args.action(args)
    except SpotsurferError as e:
        print(f"spotsurfer.runtime: {e}", file=sys.stderr)
        return e.exit_code
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="spotsurfer agent-runtime", description=__doc__, epilog=EXAMPLES)
    parser.add_argument(
        "--out", type=Path, required=True, help="build folder; `spotsurfer agent-runtime` names that of the configuration"
    )
    commands = parser.add_subparsers(required=True)
    make = commands.add_parser("build", help="build the tarball, fetch what is missing")
    pins = make.add_mutually_exclusive_group()
    make.set_defaults(pins=Pins.PREFER)
    pins.add_argument("--locked", dest="pins", action="store_const", const=Pins.REQUIRE, help="only the tested versions")
    pins.add_argument(
        "--update-lock", dest="pins", action="store_const", const=Pins.RENEW, help="take today's versions and pin them"
    )
    make.add_argument("--mirror", help="address of a Debian mirror (default: as the environment or this host's apt says)")
    make.set_defaults(action=_build)
    make.add_argument("--quiet", action="store_true", help="say nothing where nothing was to do")
    show = commands.add_parser("list", help="show what was built (`spotsurfer agent-runtime list`: and what is in the store)")
    show.set_defaults(action=_list)
    lay = commands.add_parser("unpack", help="unpack the newest tarball into a new folder")
    lay.add_argument("folder", type=Path)
    lay.set_defaults(action=lambda args: unpack(_found(args.out), args.folder))
    for command in (make, show):
        command.add_argument("--json", action="store_true", help="one JSON object instead of text")
    return parser


def _build(args: argparse.Namespace) -> None:
    def say(line: str) -> None:
        print(f"  runtime: {line}", file=sys.stderr, flush=True)

    before = find(args.out)
    runtime = build(args.out, pins=args.pins, mirror=args.mirror, say=say)
    if not args.quiet or runtime != before:
        _print(runtime, args.json)


def _list(args: argparse.Namespace) -> None:
    _print(_found(args.out), args.json)


def _found(out: Path) -> Runtime:
    runtime = find(out)
    if runtime is None:
        raise RuntimeBuildError(f"no runtime in {out}: build it with `spotsurfer agent-runtime build`")
    return runtime


def _print(runtime: Runtime, as_json: bool) -> None:
    size_bytes = runtime.path.stat().st_size
    if as_json:
        value = {"path": str(runtime.path), "sha256": runtime.sha256, "agent_version": runtime.agent_version}
        print(json.dumps({**value, "size_bytes": size_bytes}))
    else:
        print(f"{runtime.path}  {size_bytes / 1e6:.1f} MB  agent {runtime.agent_version}")


if __name__ == "__main__":
    raise SystemExit(main())
