"""As whom a job runs. Users of an image are from its own /etc/passwd and /etc/group, not from the machine's."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Account:
    """As whom the job runs."""

    uid: int
    gid: int
    groups: list[int] = field(default_factory=list)
    name: str = "root"


class UnknownUser(OSError):
    """A user or group that is not there: no other machine with the same image would fare better."""

    def __init__(self, sentence: str) -> None:
        super().__init__(0, sentence)


NOBODY = Account(65534, 65534, [65534], "nobody")  # numbers that own nothing on any machine, whether it has a name for them
ROOT = Account(0, 0)


def unprivileged(account: Account) -> Account:
    """Of a job whose user did not say who it is: whom its image names, unless that is root."""
    return NOBODY if account.uid == 0 else account


def find(root: Path, user: str) -> Account:
    """The account that `user` ("", "name", "1000", "name:group", "1000:1000") means below `root`.

    Raises UnknownUser for one that is not there.
    """
    name, _, group = user.partition(":")
    if not name:
        return ROOT
    passwd, groups = _table(root / "etc/passwd", 7), _table(root / "etc/group", 4)
    line = next((x for x in passwd if x[0] == name or (name.isdigit() and x[2] == name)), None)
    if user == ROOT.name and line is None:  # an image needs no accounts
        return ROOT
    if line is None and not name.isdigit():
        raise UnknownUser(f"the user {name!r} does not exist in the image: name one of its /etc/passwd, or a number")
    uid, gid = (int(line[2]), int(line[3])) if line is not None else (int(name), 0)
    named = line[0] if line is not None else name
    if group:
        return Account(uid, _group(groups, group), [], named)
    return Account(uid, gid, sorted({gid, *(int(g[2]) for g in groups if named in g[3].split(","))}), named)


def _group(groups: list[list[str]], group: str) -> int:
    if group.isdigit():
        return int(group)
    for line in groups:
        if line[0] == group:
            return int(line[2])
    raise UnknownUser(f"the group {group!r} does not exist in the image: name one of its /etc/group, or a number")


def _table(path: Path, columns: int) -> list[list[str]]:
    """Lines with enough columns and numbers where numbers belong; a link is not followed: it would lead out of the image."""
    if path.is_symlink() or path.parent.is_symlink() or not path.is_file():
        return []
    lines = [line.split(":") for line in path.read_text(errors="replace").splitlines()]
    numbers = (2, 3) if columns == 7 else (2,)
    return [x for x in lines if len(x) >= columns and all(x[i].isdigit() for i in numbers)]
