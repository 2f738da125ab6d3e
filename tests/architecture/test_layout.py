"""The layout stays one that a stranger can read: small folders, no cycles between them, pages that name files that exist."""

from __future__ import annotations

import ast
import re
import subprocess
from pathlib import Path

import pytest
from support.tree import ROOT

TOPS = ("spotsurfer", "wire", "agent", "policies", "providers", "lab")
FILES_MAX = 20
PAGES = sorted([ROOT / "ARCHITECTURE.md", *(ROOT / "docs").glob("*.md"), *(ROOT / "docs" / "design").glob("*.md")])
QUOTED_FILE = re.compile(r"`((?:[\w.-]+/)*[\w-]+\.(?:py|sh|tf|toml))(?::[^`]*)?`")
LINK = re.compile(r"\]\((?!https?:|#)([^)#]+)(?:#[^)]*)?\)")


def tracked() -> list[str]:
    done = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return [name for name in done.stdout.splitlines() if (ROOT / name).is_file()]


def modules() -> dict[str, Path]:
    """Dotted name -> file, packages' own `__init__` left out."""
    found = {}
    for name in tracked():
        top, _, rest = name.partition("/")
        if top in TOPS and name.endswith(".py") and not name.endswith("__init__.py"):
            found[(name if top == "spotsurfer" else rest).removesuffix(".py").replace("/", ".")] = ROOT / name
    return found


def imported(path: Path, known: dict[str, Path]) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            found |= {n for a in node.names for n in (f"{node.module}.{a.name}", node.module) if n in known}
    return found


MIGRATIONS = "spotsurfer/state/migrations/versions"  # a database of any time needs all of them


def test_no_folder_is_large() -> None:
    sizes: dict[str, int] = {}
    for name in tracked():
        folder = name.rpartition("/")[0]
        if name.split("/")[0] in TOPS and folder != MIGRATIONS:
            sizes[folder] = sizes.get(folder, 0) + 1
    assert len(sizes) > 40
    assert {folder: count for folder, count in sizes.items() if count > FILES_MAX} == {}


def test_folders_import_each_other_one_way() -> None:
    known = modules()
    edges: dict[Path, set[Path]] = {}
    for path in known.values():
        edges.setdefault(path.parent, set()).update(known[m].parent for m in imported(path, known))
    on_the_way: list[Path] = []
    done: set[Path] = set()

    def walk(folder: Path) -> None:
        assert folder not in on_the_way, [str(f.relative_to(ROOT)) for f in (*on_the_way[on_the_way.index(folder) :], folder)]
        if folder not in done:
            on_the_way.append(folder)
            for below in sorted(edges[folder] - {folder}):
                walk(below)
            done.add(on_the_way.pop())

    for folder in sorted(edges):
        walk(folder)
    assert len(done) > 40


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_files_that_a_page_names_exist(page: Path) -> None:
    names = tracked()
    ends = {"/".join(name.split("/")[at:]) for name in names for at in range(name.count("/") + 1)}
    text = page.read_text()
    assert [name for name in QUOTED_FILE.findall(text) if name not in ends and "/" in name] == []
    assert [to for to in LINK.findall(text) if not (page.parent / to).exists()] == []
