"""The base of the agent's runtime: Debian packages and wheels, unpacked, trimmed and compiled, as one reproducible archive.

The base changes seldom. It is compressed once and kept, so a change of the agent does not compress everything again.
"""

from __future__ import annotations

import dataclasses
import gzip
import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import tarfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

from spotsurfer.agent_runtime import package_fetch, recipe
from spotsurfer.agent_runtime.recipe import Lock, Package
from spotsurfer.model.errors import RuntimeBuildError

# ---- Archive: a tar.gz whose bytes depend only on names, modes and contents.
# It consists of two gzip members, which every gzip reads as one file: the base, and the agent's own part.

_BLOCK_BYTES = 512
_END_BYTES = 2 * _BLOCK_BYTES
_LEVEL = 6


def member(tree: Path, *, last: bool) -> bytes:
    """The folder as one gzip member of a tar; only the last member carries the tar's end mark."""
    plain = io.BytesIO()
    with tarfile.open(fileobj=plain, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for path in sorted(_entries(tree)):
            _add(tar, path, path.relative_to(tree).as_posix())
        length = tar.offset
    data = plain.getvalue()[:length] + (bytes(_END_BYTES) if last else b"")
    return gzip.compress(data, compresslevel=_LEVEL, mtime=0)


def _entries(tree: Path) -> list[Path]:
    return [Path(at) / name for at, folders, names in os.walk(tree) for name in (*folders, *names)]


def _add(tar: tarfile.TarFile, path: Path, name: str) -> None:
    info = tar.gettarinfo(str(path), name)
    info.uid = info.gid = info.mtime = 0
    info.uname = info.gname = ""
    executable = info.isdir() or bool(info.mode & 0o100)
    info.mode = 0o777 if info.issym() else 0o755 if executable else 0o644
    if info.islnk():  # two names of one file: write it twice, the order of the walk must not matter
        info.type, info.linkname, info.size = tarfile.REGTYPE, "", path.stat().st_size
    if info.isreg():
        with path.open("rb") as f:
            tar.addfile(info, f)
    else:
        tar.addfile(info)


# ---- Starters: programs of the runtime run under their own loader, from any folder that holds the unpacked tarball.
# The starters need only a /bin/sh: no dirname, no readlink. `sitecustomize` removes the variables that Python needs to find
# itself from the environment, so that no job inherits them.

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
    """The fixed environment of that interpreter: compiled files come out the same each time."""
    return {
        "PYTHONHOME": str(root / "prefix/usr"),
        "PYTHONPATH": str(root / "site"),
        "PYTHONHASHSEED": "0",
        "LC_ALL": "C.UTF-8",
        "PATH": "/usr/bin:/bin",
    }


# ---- Trimming: keeps only the tools, the interpreter, and the libraries that these really load.

_ELF_MAGIC = b"\x7fELF"
_NEED_NOTHING = frozenset(Path(p).name for p in (recipe.LOADER, *recipe.STATIC_TOOLS.values()))


def trim(prefix: Path, site: Path, owners: dict[str, str]) -> set[str]:
    """Removes from the prefix everything that neither it nor the extension modules in `site` need.

    `owners` maps a path to its package; returns the packages that stay.

    Raises RuntimeBuildError if a wanted file or a library is missing: the suite has renamed something.
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
        raise RuntimeBuildError(f"the packages no longer hold {', '.join(missing)}: adapt spotsurfer/agent_runtime/recipe.py")
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
    """Paths in the prefix. If ours is missing, the loader would take the host's library: that is an error here."""
    libraries = f"{prefix / recipe.LIBRARIES}/"
    command = [*loader_command(prefix), "--list", str(program)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={"LC_ALL": "C"})
    found = re.findall(r"^\t(\S+) => (.+?)(?: \(0x[0-9a-f]+\))?$", done.stdout, re.MULTILINE)
    foreign = [soname for soname, path in found if not path.startswith((libraries, f"{program.parent}/"))]
    if done.returncode != 0 or foreign:
        raise RuntimeBuildError(
            f"{program.name} needs libraries that its packages do not bring ({', '.join(foreign) or done.stderr.strip()}): "
            "adapt spotsurfer/agent_runtime/recipe.py"
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


# ---- Build: resolves, fetches and assembles the base, and caches it by its ingredients.

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
    """Changes with the code of this package, which invalidates cached bases."""
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def cached(out: Path, ingredients: Lock) -> Base | None:
    """The base of these ingredients if it was built before."""
    base = Base(folder(out, ingredients), ingredients)
    return base if base.member.exists() else None


def folder(out: Path, ingredients: Lock) -> Path:
    """The folder of the base of these ingredients; another version of this package uses another one."""
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
    partial.write_bytes(member(base.tree, last=False))
    partial.rename(base.member)  # its existence says that the base is whole
    return base


def unpack(out: Path, ingredients: Lock, tree: Path) -> set[str]:
    """Lays prefix/ and site/ into `tree`; returns the names of the packages that contributed files."""
    prefix = tree / "prefix"
    prefix.mkdir(parents=True)
    owners: dict[str, str] = {}
    for package in ingredients.packages:
        names = package_fetch.unpack_deb(out / "debs" / package.file_name, prefix)
        owners.update(dict.fromkeys(names, package.name))
    package_fetch.unpack_wheels(ingredients.wheels, out / "wheels", tree / "site")
    used = trim(prefix, tree / "site", owners)
    (tree / "site" / "sitecustomize.py").write_text(SITECUSTOMIZE)
    return used


def resolve(out: Path, mirror: package_fetch.Source, say: Say) -> Lock:
    """Today's packages and this environment's wheels; lists only packages that contribute files."""
    say(f"read the index of Debian {recipe.SUITE}")
    packages = package_fetch.closure(mirror.index(), recipe.SEEDS, recipe.NOT_FOLLOWED)
    if missing := fetch(out, packages, mirror, say):
        raise RuntimeBuildError(
            f"the mirror does not give {missing[0].path}: try again, or set {package_fetch.MIRROR_VARIABLE}"
        )
    found = Lock(recipe.ARCHITECTURE, recipe.PYTHON, tuple(packages), package_fetch.resolve_wheels(out / "wheels"))
    scratch = out / "resolve"
    shutil.rmtree(scratch, ignore_errors=True)
    used = unpack(out, found, scratch)
    shutil.rmtree(scratch)
    return dataclasses.replace(found, packages=tuple(p for p in packages if p.name in used))


def fetch(out: Path, packages: Sequence[Package], mirror: package_fetch.Source, say: Say) -> list[Package]:
    """Fills the cache; returns the packages that could not be downloaded."""
    folder = out / "debs"
    todo = package_fetch.absent(packages, folder)
    if todo:
        say(f"fetch {len(todo)} packages")
        mirror.fetch(todo, folder)
    return package_fetch.absent(todo, folder)


def compile_python(root: Path, tree: Path) -> None:
    """Compiles below `tree` with the interpreter of `root`. Unchecked: the starter never compares dates of sources."""
    options = ["-q", "-f", "-j1", "--invalidation-mode", "unchecked-hash", "-s", str(tree), "-p", "/spotsurfer"]
    command = [*python_command(root), "-m", "compileall", *options, str(tree)]
    environment = python_environment(root)
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
    command = [*python_command(tree), "-c", _ASK]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=python_environment(tree))
    if done.returncode != 0:
        raise RuntimeBuildError(f"the runtime's Python does not start ({done.stderr.strip()[-300:]}): try --update-lock")
    facts: dict[str, str] = json.loads(done.stdout)
    facts["criu"] = _criu_version(tree / "prefix")
    return facts


def _criu_version(prefix: Path) -> str:
    command = [*loader_command(prefix), str(prefix / recipe.TOOLS["criu"]), "--version"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    found = re.search(r"^Version: (\d+)\.(\d+)(\S*)", done.stdout, re.MULTILINE)
    if not found or (int(found[1]), int(found[2])) < recipe.CRIU_VERSION_MIN:
        raise RuntimeBuildError(f"CRIU {recipe.CRIU_VERSION_MIN} or newer is needed, the packages gave {done.stdout.strip()!r}")
    return f"{found[1]}.{found[2]}{found[3]}"


def prepare(out: Path) -> None:
    """Makes the folders of the caches."""
    for name in ("debs", "wheels"):
        (out / name).mkdir(parents=True, exist_ok=True)
