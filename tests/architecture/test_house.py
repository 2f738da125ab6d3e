"""`make` on hosts that are not ready."""

import subprocess
from pathlib import Path

from support.tree import ROOT

HOST = ROOT / "scripts" / "host.sh"


def _host(folder: Path, **programs: str) -> subprocess.CompletedProcess[str]:
    """Runs the script where only these programs exist; every call of apt-get is written down."""
    for name, body in programs.items():
        path = folder / name.replace("_", "-")
        path.write_text(f"#!/bin/sh\n{body}\n")
        path.chmod(0o755)
    environment = {"PATH": str(folder)}
    if "python3" in programs:
        environment["SYSTEM_PYTHON"] = str(folder / "python3")
    return subprocess.run(["/bin/sh", HOST], env=environment, capture_output=True, text=True, check=False)


def test_other_systems_are_told_what_is_missing(tmp_path: Path) -> None:
    done = _host(tmp_path, ip="", nft="")
    assert done.returncode == 1
    assert "not Debian" in done.stderr
    assert "unshare" in done.stderr
    assert " nft" not in done.stderr


def test_packages_are_named_to_who_is_not_root(tmp_path: Path) -> None:
    done = _host(tmp_path, apt_get="echo called >>$0.log", dpkg_query='[ "$4" = tini ] || echo installed', id="echo 1000")
    assert done.returncode == 1
    assert "apt-get install tini" in done.stderr
    assert not (tmp_path / "apt-get.log").exists()


def test_ready_host_is_left_alone(tmp_path: Path) -> None:
    done = _host(
        tmp_path,
        apt_get="echo called >>$0.log",
        dpkg_query="echo installed",
        id="echo 1000",
        python3="",
        docker_registry="",
        sshd="",
    )
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "apt-get.log").exists()


def test_old_python_is_refused(tmp_path: Path) -> None:
    done = _host(tmp_path, apt_get="", dpkg_query="echo installed", python3="[ $1 = --version ] && echo Python 3.9.2")
    assert done.returncode == 1
    assert "is Python 3.9.2, and Python 3.11 or newer is needed" in done.stderr
