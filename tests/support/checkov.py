"""checkov on Terraform modules: static rules about what clouds are asked for."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from support.tree import ROOT


def _program() -> str:
    found = shutil.which("checkov") or shutil.which(str(ROOT / "build/checkov/bin/checkov"))
    if found is None:
        pytest.skip("no checkov: make checkov gets it")
    return found


def failed(folder: Path) -> set[tuple[str, str]]:
    """(check, resource) of all findings in a module and its examples."""
    options = ["--framework", "terraform", "--quiet", "--compact", "--skip-download", "--download-external-modules", "false"]
    command = [_program(), "-d", str(folder), *options, "-o", "json"]
    done = subprocess.run(command, env={**os.environ, "LOG_LEVEL": "ERROR"}, capture_output=True, text=True, check=False)
    report = json.loads(done.stdout)
    assert report["summary"]["passed"] > 0 and report["summary"]["parsing_errors"] == 0
    checks = report["results"]["failed_checks"]
    return {(c["check_id"], str(c["resource"]).removeprefix("module.spotsurfer.")) for c in checks}
