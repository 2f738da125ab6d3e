"""The part of the runtime that changes seldom: Debian packages and wheels, unpacked, trimmed and compiled."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from spotsurfer.model.errors import RuntimeBuildError
from spotsurfer.runtime import debfile, debian, launch, recipe, tarball, trim, wheels
from spotsurfer.runtime.lock import Lock, Package

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Base:
    """A finished base: `tree` unpacked (prefix/, site/), `member` compressed."""

    folder: Path
    lock: Lock

    @property
    def tree(self) -> Path:
        """The unpacked files."""
        return self.folder / "tree"

    @property
    def member(self) -> Path:
        """The same as the first member of the tarball."""
        return self.folder / "base.tar.gz"

    @property
    def facts(self) -> dict[str, str]:
        """Versions as the programs themselves give them."""
        facts: dict[str, str] = json.loads((self.folder / "facts.json").read_text())
        return facts


def builder_digest() -> str:
    """Changes when this package's code does: then a cached base no longer counts."""
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def cached(out: Path, ingredients: Lock) -> Base | None:
    """The base of these ingredients where it was built before."""
    base = Base(folder(out, ingredients), ingredients)
    return base if base.member.exists() else None


def folder(out: Path, ingredients: Lock) -> Path:
    """Where the base of these ingredients lies; another version of this package makes another one."""
    key = hashlib.sha256((ingredients.digest + builder_digest()).encode()).hexdigest()
    return out / f"base-{key[:16]}"


def build(out: Path, ingredients: Lock, say: Say) -> Base:
    """Builds the base from packages and wheels that lie in the caches."""
    base = Base(folder(out, ingredients), ingredients)
    shutil.rmtree(base.folder, ignore_errors=True)
    say(f"unpack {len(ingredients.packages)} packages and {len(ingredients.wheels)} wheels")
    unpack(out, ingredients, base.tree)
    say("compile the Python files")
    compile_python(base.tree, base.tree)
    (base.folder / "facts.json").write_text(json.dumps(_facts(base.tree), indent=1))
    say("compress")
    partial = base.folder / "partial"
    partial.write_bytes(tarball.member(base.tree, last=False))
    partial.rename(base.member)  # its existence says that the base is whole
    return base


def unpack(out: Path, ingredients: Lock, tree: Path) -> set[str]:
    """Lays prefix/ and site/ into `tree`; returns the names of the packages that something was kept of."""
    prefix = tree / "prefix"
    prefix.mkdir(parents=True)
    owners: dict[str, str] = {}
    for package in ingredients.packages:
        names = debfile.unpack(out / "debs" / package.file_name, prefix)
        owners.update(dict.fromkeys(names, package.name))
    wheels.unpack(ingredients.wheels, out / "wheels", tree / "site")
    used = trim.trim(prefix, tree / "site", owners)
    (tree / "site" / "sitecustomize.py").write_text(launch.SITECUSTOMIZE)
    return used


def resolve(out: Path, mirror: debian.Source, say: Say) -> Lock:
    """Today's packages and this environment's wheels; only packages that something is kept of are listed."""
    say(f"read the index of Debian {recipe.SUITE}")
    packages = debian.closure(mirror.index(), recipe.SEEDS, recipe.NOT_FOLLOWED)
    say(f"fetch {len(packages)} packages")
    if missing := fetch(out, packages, mirror):
        raise RuntimeBuildError(f"the mirror does not give {missing[0].path}: try again, or set {debian.MIRROR_VARIABLE}")
    found = Lock(recipe.ARCHITECTURE, recipe.PYTHON, tuple(packages), wheels.resolve(out / "wheels"))
    scratch = out / "resolve"
    shutil.rmtree(scratch, ignore_errors=True)
    used = unpack(out, found, scratch)
    shutil.rmtree(scratch)
    return dataclasses.replace(found, packages=tuple(p for p in packages if p.name in used))


def fetch(out: Path, packages: list[Package], mirror: debian.Source) -> list[Package]:
    """Fills the cache; returns those that could not be had."""
    folder = out / "debs"
    mirror.fetch(debian.absent(packages, folder), folder)
    return debian.absent(packages, folder)


def compile_python(root: Path, tree: Path) -> None:
    """Compiles below `tree` with the interpreter of `root`. Unchecked: the starter never looks whether a source is newer."""
    options = ["-q", "-f", "-j1", "--invalidation-mode", "unchecked-hash", "-s", str(tree), "-p", "/spotsurfer"]
    command = [*launch.python_command(root), "-m", "compileall", *options, str(tree)]
    environment = launch.python_environment(root)
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if done.returncode != 0:
        raise RuntimeBuildError(
            f"the runtime's Python could not compile its files ({(done.stdout + done.stderr).strip()[-300:]})"
        )


_ASK = """
import json, platform, obstore, blake3, zstandard, ssl
print(json.dumps({"python": platform.python_version(), "obstore": obstore.__version__, "openssl": ssl.OPENSSL_VERSION}))
"""


def _facts(tree: Path) -> dict[str, str]:
    """Starts what was built: a runtime that can't load its parts is no runtime."""
    command = [*launch.python_command(tree), "-c", _ASK]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=launch.python_environment(tree))
    if done.returncode != 0:
        raise RuntimeBuildError(f"the runtime's Python does not start ({done.stderr.strip()[-300:]}): try --update-lock")
    facts: dict[str, str] = json.loads(done.stdout)
    facts["criu"] = _criu_version(tree / "prefix")
    return facts


def _criu_version(prefix: Path) -> str:
    command = [*launch.loader_command(prefix), str(prefix / recipe.TOOLS["criu"]), "--version"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    found = re.search(r"^Version: (\d+)\.(\d+)(\S*)", done.stdout, re.MULTILINE)
    if not found or (int(found[1]), int(found[2])) < recipe.CRIU_VERSION_MIN:
        raise RuntimeBuildError(f"CRIU {recipe.CRIU_VERSION_MIN} or newer is needed, the packages gave {done.stdout.strip()!r}")
    return f"{found[1]}.{found[2]}{found[3]}"


def prepare(out: Path) -> None:
    """Makes the folders of the caches."""
    for name in ("debs", "wheels"):
        (out / name).mkdir(parents=True, exist_ok=True)


def ingredients_here(out: Path, wanted: Lock, mirror: debian.Source, say: Say) -> bool:
    """Fetches what the lock names; False where the mirror no longer has a package of it."""
    missing = debian.absent(list(wanted.packages), out / "debs")
    if missing:
        say(f"fetch {len(missing)} packages")
        if gone := fetch(out, missing, mirror):
            say(f"the mirror no longer has {gone[0].name} {gone[0].version} and {len(gone) - 1} others of the lock")
            return False
    wheels.fetch(wanted.wheels, out / "wheels")
    return True
