"""`python -m spotsurfer_providers.local`: orders to boxes by hand."""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from spotsurfer.model.errors import SpotsurferError, UsageError
from spotsurfer_providers.local import manual_control

_UNITS = {"": 1, "k": 1_000, "m": 1_000_000, "g": 1_000_000_000}


def bits_per_second(text: str) -> int:
    """A rate such as 100mbit or 1gbit. Raises UsageError."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([kmg]?)(?:bit)?", text.lower())
    if match is None:
        raise UsageError(f"{text!r} is no rate; write 100mbit or 1gbit")
    return int(float(match[1]) * _UNITS[match[2]])


def _reclaim(a: argparse.Namespace) -> Any:
    return manual_control.reclaim(a.data_dir, a.box, a.notice)


def _rebalance(a: argparse.Namespace) -> Any:
    return manual_control.rebalance(a.data_dir, a.box)


def _link(a: argparse.Namespace) -> Any:
    if a.cut or a.up:
        return manual_control.set_link_up(a.data_dir, a.box, a.up)
    return manual_control.set_link_rate(a.data_dir, a.box, None if a.rate == "none" else bits_per_second(a.rate))


def _list(a: argparse.Namespace) -> Any:
    return manual_control.list_boxes(a.data_dir)


def _clean(a: argparse.Namespace) -> Any:
    return manual_control.clean(a.data_dir, end_living=a.all)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m spotsurfer_providers.local", description=__doc__)
    commands = parser.add_subparsers(required=True)

    def add(name: str, do: Callable[[argparse.Namespace], Any], help: str, box: bool = True) -> argparse.ArgumentParser:
        made = commands.add_parser(name, help=help)
        made.add_argument("--data-dir", "-D", type=Path, required=True, help="the controller's data folder")
        made.add_argument("--json", action="store_true", help="print JSON")
        if box:
            made.add_argument("box")
        made.set_defaults(do=do)
        return made

    add("reclaim", _reclaim, "take a box").add_argument("--notice", type=float, default=120.0, help="seconds; 0 = none")
    add("rebalance", _rebalance, "give a box the rebalance recommendation")
    link = add("link", _link, "shape, cut or mend a box's link").add_mutually_exclusive_group(required=True)
    link.add_argument("--rate", help="as 1gbit; none lifts the limit")
    link.add_argument("--cut", action="store_true")
    link.add_argument("--up", action="store_true")
    add("list", _list, "the boxes", box=False)
    clean = add("clean", _clean, "remove what dead boxes left", box=False)
    clean.add_argument("--all", action="store_true", help="end living boxes too")
    return parser


def _print(result: Any, as_json: bool) -> None:
    if as_json:
        print(json.dumps(result, indent=1))
    elif isinstance(result, list):
        for row in result:
            print(
                row if isinstance(row, str) else "  ".join(str(row.get(k)) for k in ("id", "state", "market", "zone", "reason"))
            )
    else:
        print("ok")


def main(arguments: list[str] | None = None) -> int:
    """Do one command; the exit code."""
    try:
        a = _parser().parse_args(arguments)
        _print(a.do(a), a.json)
    except SpotsurferError as e:
        print(e, file=sys.stderr)
        return e.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
