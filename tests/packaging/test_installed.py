"""The wheel where nothing else of the project is: installed, asked, configured, and a job that moves once.

Two roots: an unpacked Debian that has never seen a checkout, and, sooner done, this host's own with the checkout hidden.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from support import package
from support.newroot import NewRoot, new_root, only_child
from support.roottree import debian_tree
from support.tree import ROOT

import spotsurfer

pytestmark = pytest.mark.real
# A chain of hashes that goes on until it was moved: the monotonic clock stands still on the way, the time of day does not.
PROGRAM = """\
import hashlib, time
h, began, i, more = b"begin", time.time() - time.monotonic(), 0, 20
while more:
    for _ in range(200): h = hashlib.sha256(h).digest()
    print(i, h.hex(), flush=True)
    i, more = i + 1, more - (time.time() - time.monotonic() > began + 0.05)
    time.sleep(0.1)
open("result.txt", "w").write(h.hex() + "\\n")
"""
JOB = """\
command = ["python3", "chain.py"]
inputs = ["chain.py"]
outputs = ["result.txt"]
"""
AWS = """\
[provider]
name = "aws"
[provider.aws]
region = "us-east-1"
subnets = { us-east-1a = "subnet-0a1b2c3d" }
job_role_arn = "arn:aws:iam::123456789012:role/spotsurfer-job"
instance_profile = "spotsurfer-machine"
image = "ami-0a1b2c3d"
endpoint_url = "http://127.0.0.1:9"
"""
HOME = "/opt/spotsurfer"
DATA = "/var/lib/spotsurfer-controller"


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of the source distribution, and what it needs."""
    folder = tmp_path_factory.mktemp("package")
    sources = package.unpacked(package.build("sdist", ROOT, folder / "sdist"), folder / "sources")
    return package.wheelhouse(package.build("wheel", sources, folder / "wheel"), folder / "wheels", "3.11", "aws")


@pytest.mark.always
@pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="its wheels are those of Debian 12's Python")
def test_on_this_host_without_the_checkout(wheels: Path, tmp_path: Path) -> None:
    with new_root(Path("/"), wheels, tmp_path) as root:
        assert not root.path(str(ROOT / "spotsurfer")).exists()
        tour(root, ("debs", "wheels", "base-*"))


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_on_a_debian_that_has_never_seen_a_checkout(wheels: Path, tmp_path: Path) -> None:
    """Its runtime is built there from its packages. What a user of Debian installs first is in the tree."""
    packages = "python3-venv,iproute2,nftables,btrfs-progs,mount,kmod,procps,tar,wget,ca-certificates"
    with new_root(debian_tree("operator", packages), wheels, tmp_path) as root:
        tour(root, ("debs", "wheels"))


def tour(root: NewRoot, runtime_has: tuple[str, ...]) -> None:
    """What the README tells a new user to do. There is no network: packages lie at /mnt, those of the runtime in its cache."""
    install(root)
    for pattern in runtime_has:
        for source in (ROOT / "build" / "runtime").glob(pattern):
            shutil.copytree(source, root.path(f"{DATA}/runtime") / source.name, symlinks=True)
    installed = files_of_packages(root)
    configuration(root)
    doctor_builds_the_runtime(root)
    with controller(root):
        a_job_moves_once(root)
    assert "Nothing was left over" in root.run("spotsurfer", "local", "clean").stdout
    an_extra_is_named_and_installed_as_told(root)
    assert files_of_packages(root) == installed, "nothing may be kept among the packages"


def install(root: NewRoot) -> None:
    root.run("python3", "-m", "venv", HOME)
    pip = [f"{HOME}/bin/pip", "install", "--quiet", "--disable-pip-version-check", "--no-index", "--find-links=/mnt"]
    root.run(*pip, f"/mnt/spotsurfer-{spotsurfer.__version__}-py3-none-any.whl")
    root.run("ln", "-s", f"{HOME}/bin/spotsurfer", "/usr/local/bin/spotsurfer")
    assert root.run("spotsurfer", "version").stdout == f"spotsurfer {spotsurfer.__version__}\n"


def files_of_packages(root: NewRoot) -> set[str]:
    """Of the four packages, without what Python compiles."""
    (site,) = root.path(f"{HOME}/lib").glob("python3*/site-packages")
    names = (p.relative_to(site) for top in site.glob("spotsurfer*") for p in top.rglob("*"))
    return {str(n) for n in names if "__pycache__" not in n.parts}


def configuration(root: NewRoot) -> None:
    wrote = root.json("spotsurfer", "init", "--systemd", "/etc/systemd/system/spotsurfer.service", "--json")["written"]
    assert wrote == ["/etc/spotsurfer/config.toml", "/etc/systemd/system/spotsurfer.service"]
    assert "is there already" in root.run("spotsurfer", "init", code=2).stderr
    unit = root.path("/etc/systemd/system/spotsurfer.service").read_text()
    assert f"ExecStart={HOME}/bin/spotsurfer serve --config /etc/spotsurfer/config.toml\n" in unit
    root.run("spotsurfer", "init", "--terraform", "infrastructure")
    assert root.path("/root/infrastructure/aws/examples/minimal/main.tf").is_file()


def doctor_builds_the_runtime(root: NewRoot) -> None:
    said = root.run("spotsurfer", "doctor")
    assert f"build the agent's runtime in {DATA}/runtime" in said.stderr
    assert "This machine is fit." in said.stdout
    again = root.run("spotsurfer", "doctor", "--json")
    assert "build" not in again.stderr
    assert root.path(f"{DATA}/runtime/latest.json").is_file()


@contextmanager
def controller(root: NewRoot) -> Iterator[None]:
    """Serves while the block runs; ends at SIGTERM with 0."""
    with root.path("/root/serve.log").open("wb") as log:
        process = subprocess.Popen(root.words("spotsurfer", "serve"), stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        wait(lambda: subprocess.run(root.words("spotsurfer", "list"), capture_output=True, check=False).returncode == 0, 30)
        yield
        os.kill(only_child(process.pid), signal.SIGTERM)
        assert process.wait(30) == 0
    except BaseException:
        print(root.path("/root/serve.log").read_text()[-3000:])
        raise
    finally:
        process.kill()
        process.wait()


def a_job_moves_once(root: NewRoot) -> None:
    root.path("/root/chain.py").write_text(PROGRAM)
    root.path("/root/chain.toml").write_text(JOB)
    job = root.json("spotsurfer", "submit", "chain.toml", "--json")["id"]

    def show() -> dict[str, Any]:
        found: dict[str, Any] = root.json("spotsurfer", "show", job, "--json")
        return found

    wait(lambda: show()["phase"] == "running", 90)
    root.run("spotsurfer", "move", job, "--wait")
    wait(lambda: show()["state"] in ("succeeded", "failed", "held"), 120)
    ended = show()
    assert (ended["state"], ended["moves"]) == ("succeeded", 1), ended
    root.run("spotsurfer", "outputs", job, "--to", "results")
    printed = root.run("spotsurfer", "logs", job).stdout.splitlines()
    h, expected = b"begin", []
    for i in range(len(printed)):
        for _ in range(200):
            h = hashlib.sha256(h).digest()
        expected.append(f"{i} {h.hex()}")
    assert printed == expected
    assert root.path("/root/results/result.txt").read_text() == h.hex() + "\n"
    wait(lambda: root.json("spotsurfer", "local", "list", "--json") == [] or _all_ended(root), 60)


def _all_ended(root: NewRoot) -> bool:
    return all(box["state"] == "ended" for box in root.json("spotsurfer", "local", "list", "--json"))


def an_extra_is_named_and_installed_as_told(root: NewRoot) -> None:
    root.path("/root/aws.toml").write_text(AWS)
    ask = ["spotsurfer", "doctor", "--config", "aws.toml", "--json"]
    told = next(f for f in root_findings(root, ask) if f["check"] == "provider")
    assert "needs the extra 'aws'" in told["text"]
    assert re.fullmatch(rf"{HOME}/bin/python3? -m pip install 'boto3>=\S+'", told["remedy"]), told
    root.run("sh", "-c", told["remedy"], environment={"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": "/mnt"})
    told = next(f for f in root_findings(root, ask) if f["check"] == "provider")
    assert "extra" not in told["text"], told


def root_findings(root: NewRoot, command: list[str]) -> list[dict[str, str]]:
    import json

    found: list[dict[str, str]] = json.loads(root.run(*command, code=7).stdout)["findings"]
    return found


def wait(good: Callable[[], bool], seconds: float) -> None:
    until = time.monotonic() + seconds
    while not good():
        assert time.monotonic() < until, f"waited {seconds:.0f} s in vain"
        time.sleep(0.5)
