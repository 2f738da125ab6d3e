"""CRIU's own test suite, from the source of the Debian package whose CRIU the runtime holds; nothing of it is committed."""

from __future__ import annotations

import dataclasses
import json
import re
import shlex
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path

from support.tree import ROOT
from zdtm.program import Program, desc

from spotsurfer.agent_runtime import package_fetch

CURRENT = ROOT / "build" / "zdtm" / "current"  # a link to the suite that was built last
GROUPS = ("static", "transition")
PROGRAM = re.compile(r"^\./(\S+) --pidfile=")
BUILT = "built"
CALL = ("make", "--keep-going", "USERCFLAGS=-Wno-error")  # an older compiler warns of other things


class NoSuite(Exception):
    """The suite can't be had here; one sentence."""


def version(runtime: Path) -> str:
    """Debian's version of the CRIU in an unpacked runtime; that of its source, so without the number of a rebuild."""
    packages = json.loads((runtime / "RUNTIME.json").read_text())["packages"]
    found = next(p["version"] for p in packages if p["name"] == "criu")
    return re.sub(r"\+b\d+$", "", found)


def build(wanted: str, folder: Path, say: Callable[[str], None]) -> Path:
    """The suite's folder, `…/test/zdtm`, with its programs compiled. Raises NoSuite."""
    here = folder / f"criu-{wanted}"
    suite = here / "test" / "zdtm"
    if not (here / BUILT).exists():
        shutil.rmtree(here, ignore_errors=True)
        say(f"== fetch the source of criu {wanted}")
        _unpack(_fetched(wanted, folder), here)
        say("== compile the suite")
        with (here / "build.log").open("wb") as log:
            for part in ("lib", *GROUPS):
                subprocess.run([*CALL, "-j2", "-C", str(suite / part)], stdout=log, stderr=log, check=False)
        if not (suite / "static" / "busyloop00").exists():
            raise NoSuite(f"the suite could not be compiled: see {here / 'build.log'}")
        (here / BUILT).touch()
    return suite


def _fetched(wanted: str, folder: Path) -> Path:
    """The archive of upstream's source, checked by apt against the signed index of the suite that the runtime is made from."""
    mirror = package_fetch.source()
    if not isinstance(mirror, package_fetch.AptSource):
        raise NoSuite("the source of a Debian package is fetched by apt, and this host has none")
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="spotsurfer-apt-") as at:
        options = mirror.options(Path(at), "deb-src")
        for words in (["update", "-qq"], ["source", "-qq", "--download-only", "--tar-only", f"criu={wanted}"]):
            done = subprocess.run(["apt-get", *options, *words], cwd=folder, capture_output=True, text=True, check=False)
            if done.returncode:
                raise NoSuite(
                    f"the source of criu {wanted} could not be had ({done.stderr.strip()}): if the mirror has a newer version, "
                    "call make runtime-lock"
                )
    return next(folder.glob(f"criu_{wanted.rpartition('-')[0]}.orig.tar.*"))


def _unpack(archive: Path, target: Path) -> None:
    with tempfile.TemporaryDirectory(dir=archive.parent) as at, tarfile.open(archive) as tar:
        tar.extractall(at)  # from an index that is signed
        next(Path(at).iterdir()).rename(target)


def programs(suite: Path) -> list[Program]:
    """All of them, in the order of the suite's Makefiles, which say how each is called."""
    found = []
    for group in GROUPS:
        dry = ["make", "--dry-run", "--keep-going", "-C", str(suite / group), "start"]
        told = subprocess.run(dry, capture_output=True, text=True, check=False)
        found += [
            dataclasses.replace(program, **desc(suite / group / f"{program.name}.desc"))
            for program in commands(group, told.stdout.splitlines())
        ]
    return found


def commands(group: str, lines: Iterable[str]) -> list[Program]:
    """The programs of a dry run of `make start`. Pure."""
    return [Program(found[1], group, tuple(shlex.split(line))) for line in lines if (found := PROGRAM.match(line))]
