"""Copies of the project in which a fault can be planted.

A copy has an environment of its own: its interpreter finds the copy's packages and the installed libraries of the checkout, but
not the checkout's packages. So what a test starts by that interpreter runs the copy's code, whichever environment variables it
gets. `prove` looks.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sysconfig
import venv
from pathlib import Path

PACKAGES = {
    "spotsurfer": ".",
    "spotsurfer_providers": "providers",
    "spotsurfer_policies": "policies",
    "spotsurfer_agent": "agent",
    "spotsurfer_wire": "wire",
    "spotsurfer_lab": "lab",
}
IN_RUNTIME = ("agent/", "wire/")  # folders with the packages of the agent's runtime


class Foreign(Exception):
    """A copy would run code that is not its own."""


def copy_checkout(checkout: Path, root: Path, *, whole: bool) -> None:
    """The checkout as it stands, uncommitted changes and new files included, with what was built in it.

    `whole`: nothing of the copy lies elsewhere. Boxes need that, for they may not see the checkout; it takes some seconds.
    """
    words = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(words, cwd=checkout, capture_output=True, text=True, check=True).stdout.split("\0")
    for name in listed:
        if name and (checkout / name).is_file():  # one that was deleted is listed still
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(checkout / name, root / name, follow_symlinks=False)
    _bring(checkout / "build", root, whole)


def copy_copy(master: Path, root: Path, *, whole: bool) -> None:
    """The same from an earlier copy; what Python compiled there is of use here, too."""
    shutil.copytree(master, root, symlinks=True, ignore=shutil.ignore_patterns(".venv", ".hypothesis", "build"))
    _bring(master / "build", root, whole)


def _bring(built: Path, root: Path, whole: bool) -> None:
    """What was built and what is installed, by links: it is large, and nobody writes into it."""
    for name in ("runtime", "tools"):
        if (built / name).exists():
            _link((built / name).resolve(), root / "build" / name, whole)
    (root / "build").mkdir(exist_ok=True)
    _make_environment(root, whole)


def _link(source: Path, target: Path, whole: bool) -> None:
    """A folder with the files of another one, or just a name for it."""
    if whole:
        ignored = shutil.ignore_patterns("*.pth")  # they lead to the checkout
        shutil.copytree(source, target, symlinks=True, copy_function=os.link, ignore=ignored, dirs_exist_ok=True)
    else:
        target.parent.mkdir(parents=True, exist_ok=True)
        target.symlink_to(source)


def _make_environment(root: Path, whole: bool) -> None:
    """`.venv` with the copy's packages and the libraries and programs that are installed for us."""
    environment, scripts, libraries = root / ".venv", Path(sysconfig.get_path("scripts")), sysconfig.get_path("purelib")
    venv.EnvBuilder(symlinks=True).create(environment)
    lines = [str((root / folder).resolve()) for folder in PACKAGES.values()]
    where = Path(sysconfig.get_path("purelib", "venv", {"base": str(environment), "platbase": str(environment)}))
    if whole:
        _link(Path(libraries), where, whole)
    else:
        lines.append(libraries)
    (where / "copy.pth").write_text("\n".join(lines) + "\n")
    for program in scripts.iterdir():
        mine = environment / "bin" / program.name
        if mine.exists() or program.is_symlink() or not program.is_file():
            continue
        with program.open("rb") as f:
            is_script = f.read(2) == b"#!"
        if is_script:
            mine.write_text(program.read_text().replace(str(scripts), str(mine.parent)))
            mine.chmod(0o755)
        elif whole:
            os.link(program, mine)
        else:
            mine.symlink_to(program)


def python(root: Path) -> Path:
    """The interpreter of a copy."""
    return root / ".venv" / "bin" / "python"


def build_runtime(root: Path) -> None:
    """The agent's runtime anew in a whole copy, from the copy's agent. Raises Foreign where that fails."""
    words = ["-m", "spotsurfer.agent_runtime", "--out", str(root / "build" / "runtime"), "build", "--quiet"]
    done = subprocess.run([python(root), *words], cwd=root, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise Foreign(f"the runtime of {root} can't be built:\n{done.stderr}")


def prove(root: Path, agent_file: str = "") -> None:
    """Raises Foreign where the copy's interpreter or its command does not run the copy's packages.

    `agent_file`: a file of the agent that must be in the runtime as it is in the copy.
    """
    code = f"import {', '.join(PACKAGES)}; print(*({', '.join(f'{p}.__file__' for p in PACKAGES)},), sep='\\n')"
    told = subprocess.run([python(root), "-c", code], cwd="/", env={}, capture_output=True, text=True, check=True).stdout
    wanted = [str((root / folder / package / "__init__.py").resolve()) for package, folder in PACKAGES.items()]
    if told.splitlines() != wanted:
        raise Foreign(f"the copy {root} runs other code than its own:\n{told}")
    command = root / ".venv" / "bin" / "spotsurfer"
    if command.read_text().splitlines()[0] != f"#!{python(root)}":
        raise Foreign(f"{command} is not run by the copy's interpreter")
    if agent_file:
        inside = root / "build" / "runtime" / "current" / "site" / agent_file.partition("/")[2]
        if inside.read_bytes() != (root / agent_file).read_bytes():
            raise Foreign(f"the runtime of {root} does not have the copy's {agent_file}")
