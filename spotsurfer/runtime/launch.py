"""How programs of the runtime are started: by their own loader, from wherever the tarball was unpacked.

The starters need nothing but a /bin/sh: no dirname, no readlink. The variables that Python needs to find itself are
taken out of the environment again by `sitecustomize`, so that no job inherits them.
"""

from __future__ import annotations

from pathlib import Path

from spotsurfer.runtime import recipe

_HEAD = """#!/bin/sh
case $0 in */*) here=${0%/*} ;; *) here=. ;; esac
root=$(CDPATH= cd -- "$here/.." && pwd -P) || exit 127
unset LD_PRELOAD LD_AUDIT
"""
_LOADER = f'"$root/prefix/{recipe.LOADER}" --inhibit-cache --library-path "$root/prefix/{recipe.LIBRARIES}"'
# No user site, no byte code written, no current folder on the path; sys.executable is the starter, so that children find it.
_PYTHON = f"""export PYTHONHOME="$root/prefix/usr" PYTHONPATH="$root/site"
exec {_LOADER} --argv0 "$root/bin/spotsurfer-python" "$root/prefix/{recipe.INTERPRETER}" -B -s -P """

SITECUSTOMIZE = '''"""Takes the starter's variables out of the environment: its children have no use for them."""

import os

for name in ("PYTHONHOME", "PYTHONPATH"):
    os.environ.pop(name, None)
'''


def starters() -> dict[str, str]:
    """File name in bin/ -> text."""
    out = {
        "spotsurfer-python": f'{_HEAD}{_PYTHON}"$@"\n',
        "spotsurfer-agent": f'{_HEAD}{_PYTHON}-m spotsurfer_agent "$@"\n',
    }
    for tool, path in recipe.TOOLS.items():
        out[tool] = f'{_HEAD}exec {_LOADER} "$root/prefix/{path}" "$@"\n'
    return out


def python_command(root: Path) -> list[str]:
    """The runtime's interpreter, called from here while it is being built: as the starter would."""
    prefix = root / "prefix"
    return [*loader_command(prefix), str(prefix / recipe.INTERPRETER), "-B", "-s", "-P"]


def loader_command(prefix: Path) -> list[str]:
    """The runtime's own loader; the path of a program of the prefix is to follow."""
    return [str(prefix / recipe.LOADER), "--inhibit-cache", "--library-path", str(prefix / recipe.LIBRARIES)]


def python_environment(root: Path) -> dict[str, str]:
    """Its environment: fixed, so that compiled files are the same each time."""
    return {
        "PYTHONHOME": str(root / "prefix/usr"),
        "PYTHONPATH": str(root / "site"),
        "PYTHONHASHSEED": "0",
        "LC_ALL": "C.UTF-8",
        "PATH": "/usr/bin:/bin",
    }
