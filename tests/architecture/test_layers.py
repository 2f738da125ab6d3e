"""Who may import whom: `make layers` checks the contracts of pyproject.toml; here they are seen to bite."""

import subprocess
import sys
from pathlib import Path

from support.tree import ROOT

PACKAGES = ("spotsurfer", *(f"{name}/spotsurfer_{name}" for name in ("wire", "agent", "policies", "providers", "lab")))
LINT_IMPORTS = Path(sys.executable).with_name("lint-imports")


def _lint(*arguments: str, folder: Path = ROOT) -> subprocess.CompletedProcess[str]:
    return subprocess.run([LINT_IMPORTS, "--no-cache", *arguments], cwd=folder, capture_output=True, text=True, check=False)


def test_contracts_bite(tmp_path: Path) -> None:
    """A copy of the core's folder with one import of the clock must fail."""
    config = (ROOT / "pyproject.toml").read_text()
    (tmp_path / "pyproject.toml").write_text(config[config.index("[tool.importlinter]") :])
    for package in PACKAGES:
        source = ROOT / package
        for path in source.rglob("*.py"):
            target = tmp_path / source.name / path.relative_to(source)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(path.read_bytes())
    with (tmp_path / "spotsurfer" / "model" / "money.py").open("a") as f:
        f.write("\nimport time\n")
    done = _lint(folder=tmp_path)
    assert done.returncode != 0
    assert "spotsurfer.model.money -> time" in done.stdout
