"""Reduces unpacked packages to what the instance uses: the tools, the interpreter, and the libraries that these really load."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterable
from fnmatch import fnmatch
from pathlib import Path

from spotsurfer.model.errors import RuntimeBuildError
from spotsurfer.runtime import launch, recipe

_ELF_MAGIC = b"\x7fELF"
_NEED_NOTHING = frozenset(Path(p).name for p in (recipe.LOADER, *recipe.STATIC_TOOLS.values()))


def trim(prefix: Path, site: Path, owners: dict[str, str]) -> set[str]:
    """Removes all from the prefix that is not needed by itself or by the extension modules in `site`.

    `owners` maps a path to its package; returns the packages that stay.

    Raises RuntimeBuildError where a wanted file or a library is missing: the suite has renamed something.
    """
    kept = _wanted(prefix)
    kept |= _libraries(prefix, [*(prefix / k for k in sorted(kept)), *site.rglob("*.so*")])
    packages = {owners[p] for p in kept if p in owners}
    kept |= _licences(prefix, packages)
    _remove_all_but(prefix, kept)
    return packages


def _wanted(prefix: Path) -> set[str]:
    named = {*recipe.TOOLS.values(), *recipe.STATIC_TOOLS.values(), recipe.INTERPRETER, recipe.LOADER}
    named.update(recipe.OPENED_AT_RUN_TIME)
    if missing := sorted(p for p in named if not (prefix / p).is_file()):
        raise RuntimeBuildError(f"the packages no longer hold {', '.join(missing)}: adapt spotsurfer/runtime/recipe.py")
    for folder in recipe.KEPT_FOLDERS:
        named.update(path.relative_to(prefix).as_posix() for path in _files(prefix / folder))
    standard = prefix / recipe.STANDARD_LIBRARY
    for path in _files(standard):
        relative = path.relative_to(standard).as_posix()
        if not any(fnmatch(relative, pattern) for pattern in recipe.LEFT_OUT):
            named.add(path.relative_to(prefix).as_posix())
    return named


def _libraries(prefix: Path, files: Iterable[Path]) -> set[str]:
    """What the loader would map for these files, links and their targets."""
    out: set[str] = set()
    for path in files:
        if path.is_file() and _is_dynamic(path):
            for library in _needed(prefix, path):
                out.add(library)
                out.add((prefix / library).resolve().relative_to(prefix.resolve()).as_posix())
    return out


def _is_dynamic(path: Path) -> bool:
    with path.open("rb") as f:
        return f.read(len(_ELF_MAGIC)) == _ELF_MAGIC and path.name not in _NEED_NOTHING


def _needed(prefix: Path, program: Path) -> list[str]:
    """Paths in the prefix. The loader would take the host's library where ours is missing: that is an error here."""
    libraries = f"{prefix / recipe.LIBRARIES}/"
    command = [*launch.loader_command(prefix), "--list", str(program)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={"LC_ALL": "C"})
    found = re.findall(r"^\t(\S+) => (.+?)(?: \(0x[0-9a-f]+\))?$", done.stdout, re.MULTILINE)
    foreign = [soname for soname, path in found if not path.startswith((libraries, f"{program.parent}/"))]
    if done.returncode != 0 or foreign:
        raise RuntimeBuildError(
            f"{program.name} needs libraries that its packages do not bring ({', '.join(foreign) or done.stderr.strip()}): "
            "adapt spotsurfer/runtime/recipe.py"
        )
    return [Path(path).relative_to(prefix).as_posix() for _, path in found if path.startswith(libraries)]


def _licences(prefix: Path, packages: set[str]) -> set[str]:
    paths = (f"usr/share/doc/{package}/copyright" for package in packages)
    return {p for p in paths if (prefix / p).is_file() and not (prefix / p).is_symlink()}


def _files(folder: Path) -> list[Path]:
    return [Path(at) / name for at, _, names in os.walk(folder) for name in names]


def _remove_all_but(prefix: Path, kept: set[str]) -> None:
    for at, folders, names in os.walk(prefix, topdown=False):
        for name in [*names, *(f for f in folders if (Path(at) / f).is_symlink())]:
            path = Path(at) / name
            if path.relative_to(prefix).as_posix() not in kept or not path.exists():
                path.unlink()
        if not os.listdir(at) and Path(at) != prefix:  # noqa: PTH208 - emptiness only
            Path(at).rmdir()
