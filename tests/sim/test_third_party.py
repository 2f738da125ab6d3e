"""The package of docs/policies.md, built and installed into an environment of its own."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import venv
from pathlib import Path

import pytest
from support.tree import ROOT

PAGE = (ROOT / "docs" / "policies.md").read_text()


def _block(marker: str) -> str:
    found = re.search(rf"<!-- {marker} -->\n```\w+\n(.*?)```\n<!-- /{marker} -->", PAGE, re.DOTALL)
    assert found, marker
    return found[1]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The command of an environment that has the package, and all else from this one."""
    folder = tmp_path_factory.mktemp("patient")
    (folder / "pyproject.toml").write_text(_block("own-project"))
    (folder / "patient.py").write_text(_block("own-policy"))
    home = folder / "env"
    venv.create(home, with_pip=False)
    site = next(home.glob("lib/python*/site-packages"))
    here = [p for p in sys.path if "site-packages" in p]
    (site / "beside.pth").write_text("\n".join([f"import site; site.addsitedir({p!r})" for p in here]) + "\n")
    options = ["--quiet", "--no-deps", "--no-build-isolation", "--target", str(site)]
    subprocess.run([sys.executable, "-m", "pip", "install", *options, str(folder)], check=True, capture_output=True)
    return home / "bin" / "python"


def _call(python: Path, *words: str) -> str:
    done = subprocess.run([python, "-m", "spotsurfer", *words], capture_output=True, text=True, check=False, cwd="/")
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_policy_is_short() -> None:
    assert len([line for line in _block("own-policy").splitlines() if line.strip()]) <= 30


def test_it_is_listed_with_its_parameters(installed: Path) -> None:
    found = {(p["kind"], p["name"]): p for p in json.loads(_call(installed, "policies", "--json"))["policies"]}
    patient = found["purchase", "patient"]
    assert patient["parameters"] == [{"name": "share", "default": 0.5, "text": "of the time to spare that must be left"}]
    assert patient["about"].startswith("Spot; without it wait")
    assert ("purchase", "surf") in found


def test_it_can_be_tried(installed: Path) -> None:
    data = ROOT / "bench" / "markets"
    files = ["--availability", str(data / "pools-2022.csv.gz"), "--windows", str(data / "pools-2022-windows.csv")]
    hours = ["--job-hours", "48", "--deadline-hours", "52", "--restart-hours", "0.2", "--on-demand", "3.06", "--spot", "0.9731"]
    words = ["--policy", "patient,optimum", "--set", "patient.share=0.3", "--every", "150", "--json"]
    found = json.loads(_call(installed, "backtest", "deadline", *files, *hours, *words))["policies"]
    assert found["patient"]["deadline_misses"] == 0
    assert found["patient"]["mean_usd"] > found["optimum"]["mean_usd"]


def test_it_is_not_here() -> None:
    here = json.loads(_call(Path(sys.executable), "policies", "--json"))["policies"]
    assert "patient" not in {p["name"] for p in here}
