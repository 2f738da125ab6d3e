"""Writes requirements.lock: every Python package of the whole tree with version and hashes, from pyproject.toml.

`make lock` calls it with a Python that has pip-tools. Versions in the present lock stay unless --upgrade is given.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
LOCK = ROOT / "requirements.lock"
HEADER = """# Every package of the environment that `make setup` makes, with version and hashes. Made by `make lock`.
"""
# No index is named: pip's own configuration decides where from, the hashes decide what.
OPTIONS = ["--generate-hashes", "--allow-unsafe", "--no-header", "--no-emit-index-url", "--no-emit-find-links"]
OPTIONS += ["--no-emit-trusted-host", "--no-emit-options", "--strip-extras", "--annotation-style=line", "--quiet"]


def main() -> None:
    """Resolves and writes."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    groups = project["dependency-groups"]
    wanted = sorted({*project["project"]["dependencies"], *_group(groups, "dev"), *project["build-system"]["requires"]})
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder) / "requirements.in", Path(folder) / "requirements.txt"
        source.write_text("\n".join(wanted) + "\n")
        if LOCK.exists():
            target.write_text(LOCK.read_text())
        arguments = [*OPTIONS, *sys.argv[1:], "--output-file", str(target), str(source)]
        subprocess.run([sys.executable, "-m", "piptools", "compile", *arguments], check=True)
        lines = (line.split("  # via")[0].rstrip() for line in target.read_text().splitlines() if not line.startswith("#"))
        kept = [line for line in lines if line]
    LOCK.write_text(HEADER + "\n".join(kept) + "\n")


def _group(groups: dict[str, list[Any]], name: str) -> set[str]:
    out: set[str] = set()
    for entry in groups[name]:
        out |= {entry} if isinstance(entry, str) else _group(groups, entry["include-group"])
    return out


if __name__ == "__main__":
    main()
