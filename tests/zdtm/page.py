"""docs/zdtm.md. Pure but for the writing."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from zdtm.verdict import Seen, Verdict, reason, verdict

HEAD = """\
# CRIU's own test suite, as jobs

CRIU comes with some hundred small programs, ZDTM: each makes one thing (a pipe that is half full, a timer, a lock, a socket
in an odd state), waits, and checks afterwards that it is still there. `make test-zdtm` builds them from the source of the
Debian package whose CRIU the agent brings along, and runs each as a job of the engine, in small boxes with a btrfs disk:

- started, saved live twice, and saved for the last time;
- restored in another box from the final save, lazily: it runs while its memory follows. The job has 16 MiB of its own, so that
  there is some; where most memory is shared, as with {whole} of those that passed, all of it comes first. Then it is stopped
  as the suite stops it;
- restored there from the second live save, and stopped so, too.

*Passed* means: both times the program itself said `PASS`. *Refused*: no save said success, each said why, and the program
passed unharmed. *Failed*: anything else. *Not counted*: a program for which this host lacks something, or that no job can be,
whatever saves it: jobs have no right to mount, to set up networks or to change the kernel's settings
([threat-model.md](threat-model.md)), and the suite leaves some out by itself. Programs that the suite wants to be root, or that
don't start as `nobody`, run as jobs of root. What failed was tried once more, with no other beside
it, live saves and final save each with a start of its own, and that try counts. So was plain CRIU with what failed then.

`make test-zdtm` makes this page; `ONLY="pty00 pipe*" make test-zdtm` tries some and leaves it as it is.

"""


@dataclass(frozen=True)
class Run:
    """Of what the page tells."""

    criu: str
    kernel: str
    seen: Sequence[Seen]
    left: Sequence[str] = ()  # programs that the run did not come to


def page(run: Run) -> str:
    """All of it."""
    by: dict[Verdict, list[Seen]] = defaultdict(list)
    for seen in sorted(run.seen, key=lambda x: x.name):
        by[verdict(seen)].append(seen)
    parts = [
        HEAD.format(whole=sum(not x.lazy for x in by[Verdict.PASSED])),
        f"CRIU {run.criu}, Linux {run.kernel}.\n\n",
        _counts(by),
        _unfinished(run),
        "\n## Failed\n\n",
        _failed(by[Verdict.FAILED]),
        "\n## Refused\n\n",
        _grouped("what the save says", by[Verdict.REFUSED]),
        "\n## Passed\n\n",
        _words(by[Verdict.PASSED]),
        "\n## Not counted\n\n",
        _grouped("why, in the program's words where it has some", by[Verdict.NOT_COUNTED]),
    ]
    if run.left:
        parts += ["\n## Not tried yet\n\n", ", ".join(f"`{x}`" for x in sorted(run.left)) + ".\n"]
    return "".join(parts)


def _counts(by: Mapping[Verdict, Sequence[Seen]]) -> str:
    passed, refused, failed, out = (len(by[x]) for x in Verdict)
    return (
        "| programs | counted | passed | refused | failed | not counted |\n|---|---|---|---|---|---|\n"
        f"| {passed + refused + failed + out} | {passed + refused + failed} | {passed} | {refused} | {failed} | {out} |\n"
    )


def _unfinished(run: Run) -> str:
    if not run.left:
        return ""
    return (
        f"\nThe run was ended before {len(run.left)} other programs were tried. The order is that of a hash of their names.\n"
    )


def _failed(seen: Sequence[Seen]) -> str:
    if not seen:
        return "None.\n"
    rows = [f"| {_cell(_name(x))} | {_cell(reason(x))} | {_cell(x.alone or 'not tried')} |\n" for x in seen]
    return "| program | as a job | CRIU alone |\n|---|---|---|\n" + "".join(rows)


def _grouped(title: str, seen: Sequence[Seen]) -> str:
    if not seen:
        return "None.\n"
    groups: dict[str, list[Seen]] = defaultdict(list)
    for x in seen:
        groups[reason(x)].append(x)
    ordered = sorted(groups.items(), key=lambda item: (-len(item[1]), item[0]))
    rows = [f"| {_cell(why)} | {', '.join(map(_name, who))} |\n" for why, who in ordered]
    return f"| {title} | programs |\n|---|---|\n" + "".join(rows)


def _words(seen: Iterable[Seen]) -> str:
    return (", ".join(map(_name, seen)) or "None") + ".\n"


def _name(seen: Seen) -> str:
    return f"`{seen.name}`"


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())
