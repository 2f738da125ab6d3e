"""`make test-vm`: boots a guest for each group, runs the group's trials in it, writes docs/vms.md."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from support.tree import ROOT
from vm import checkout, image, page
from vm.guest import Guest, running
from vm.page import Row, Run
from vm.trial import GROUPS, Group


def say(text: str) -> None:
    """A line of progress."""
    print(text, flush=True)


def examine(group: Group, wanted: list[str], folder: Path, to: Path) -> list[Row]:
    """One guest for all trials of a group; each is on the page as soon as it has ended."""
    say(f"== {group.name}: an image of Debian {group.suite}")
    made = image.debian(group.suite)
    folder.mkdir(parents=True, exist_ok=True)
    disk = folder / "checkout.raw"
    checkout.disk(disk)
    rows: list[Row] = []
    began = time.monotonic()
    with running(Guest(group.name, made, folder, [disk], memory_mebibytes=group.memory_mebibytes)) as guest:
        say(f"   booted and answers after {time.monotonic() - began:.0f} s")
        code, said = guest.ask(
            f"mkdir -p {checkout.PLACE} && mount /dev/vdb {checkout.PLACE} && . /etc/os-release && echo $PRETTY_NAME", 300
        )
        if code:
            raise RuntimeError(said)
        about = f"{said.strip()}, kernel {made.version}, cgroup v2, ext4, {group.memory_mebibytes >> 10} GiB, two processors."
        for trial in (t for t in group.trials if any(text in t.what for text in wanted)):
            began = time.monotonic()
            code, said = guest.ask(trial.text, trial.seconds)
            rows.append(Row(trial, code == 0, time.monotonic() - began))
            say(f"   {trial.what}: {'good' if code == 0 else f'FAILED, {code}'}, {rows[-1].seconds:.0f} s")
            (folder / f"{group.trials.index(trial)}.log").write_text(said)
            if code:
                say(said[-4000:])
            page.write(to, Run(group, about, rows), GROUPS.values())
    disk.unlink()
    return rows


def main() -> int:
    """1 when a trial failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("groups", nargs="*", help=f"of {', '.join(GROUPS)}; default: all")
    parser.add_argument("--only", action="append", metavar="TEXT", help="trials whose title has this text; repeatable")
    parser.add_argument("--page", type=Path, default=ROOT / "docs" / "vms.md")
    parser.add_argument("--dir", type=Path, default=image.FOLDER / "run", help="consoles, and what each trial printed")
    options = parser.parse_args()
    if unknown := sorted(set(options.groups) - set(GROUPS)):
        parser.error(f"no such group: {', '.join(unknown)}; there are {', '.join(GROUPS)}")
    rows = [
        r for n in options.groups or GROUPS for r in examine(GROUPS[n], options.only or [""], options.dir / n, options.page)
    ]
    bad = [r.trial.what for r in rows if not r.good]
    say(f"{len(rows) - len(bad)} of {len(rows)} as they should be" + (f"; not: {', '.join(bad)}" if bad else ""))
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
