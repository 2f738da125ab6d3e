"""The plug-in is a distribution of its own: what its wheel holds, and that Snakemake would find it."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

from clients.bench import PLUGIN
from snakemake_interface_executor_plugins.registry import ExecutorPluginRegistry

NAME = "snakemake_executor_plugin_spotsurfer"


def test_its_wheel_holds_the_plug_in_alone(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(tmp_path)]
    subprocess.run(words, cwd=PLUGIN, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert {n.split("/")[0].split("-")[0] for n in names} == {NAME}
    assert {f"{NAME}/{p.name}" for p in (PLUGIN / NAME).glob("*.py")} <= set(names)


def test_snakemake_finds_it() -> None:
    registry = ExecutorPluginRegistry()
    assert "spotsurfer" in registry.plugins
    plugin = registry.get_plugin("spotsurfer")
    assert {field["name"] for field in plugin.get_settings_info()} == {"python", "image", "project", "market"}
