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
}
AGENT = "agent/spotsurfer_agent/"


class Foreign(Exception):
    """A copy would run code that is not its own."""


def copy_checkout(checkout: Path, root: Path) -> None:
    """The checkout as it stands, uncommitted changes and new files included, with what was built in it."""
    words = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(words, cwd=checkout, capture_output=True, text=True, check=True).stdout.split("\0")
    for name in listed:
        if name and (checkout / name).is_file():  # one that was deleted is listed still
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(checkout / name, root / name, follow_symlinks=False)
    (root / "build").mkdir()
    for name in ("runtime", "tools"):
        if (checkout / "build" / name).exists():
            (root / "build" / name).symlink_to((checkout / "build" / name).resolve())
    _make_environment(root)


def copy_copy(master: Path, root: Path) -> None:
    """The same for another root; what Python compiled in the first one is of use here, too."""
    shutil.copytree(master, root, symlinks=True, ignore=shutil.ignore_patterns(".venv", ".hypothesis"))
    _make_environment(root)


def _make_environment(root: Path) -> None:
    """`.venv` with the copy's packages and the libraries and programs that are installed for us."""
    environment, ours = root / ".venv", Path(sysconfig.get_path("scripts"))
    venv.EnvBuilder(symlinks=True).create(environment)
    lines = [*(str((root / folder).resolve()) for folder in PACKAGES.values()), sysconfig.get_path("purelib")]
    where = sysconfig.get_path("purelib", "venv", {"base": str(environment), "platbase": str(environment)})
    Path(where, "copy.pth").write_text("\n".join(lines) + "\n")
    for program in ours.iterdir():
        mine = environment / "bin" / program.name
        if mine.exists() or program.is_symlink() or not program.is_file():
            continue
        with program.open("rb") as f:
            is_script = f.read(2) == b"#!"
        if is_script:
            mine.write_text(program.read_text().replace(str(ours), str(mine.parent)))
            mine.chmod(0o755)
        else:
            mine.symlink_to(program)


def python(root: Path) -> Path:
    """The interpreter of a copy."""
    return root / ".venv" / "bin" / "python"


def build_runtime(root: Path) -> None:
    """The agent's runtime anew, from the copy's agent; what it is made of is shared with the checkout."""
    out = root / "build" / "runtime"
    built = out.resolve()
    out.unlink()
    shutil.copytree(built, out, symlinks=True, copy_function=os.link)
    words = ["-m", "spotsurfer.runtime", "--out", str(out), "build", "--unpack", "--quiet"]
    subprocess.run([python(root), *words], cwd=root, check=True, stdout=subprocess.DEVNULL)


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
        inside = root / "build" / "runtime" / "current" / "site" / agent_file.removeprefix("agent/")
        if inside.read_bytes() != (root / agent_file).read_bytes():
            raise Foreign(f"the runtime of {root} does not have the copy's {agent_file}")
