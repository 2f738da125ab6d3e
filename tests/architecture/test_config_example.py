"""The example of the configuration loads, shows the defaults, and names every key there is."""

import dataclasses
import os
import tomllib
from pathlib import Path

import pytest
from pydantic import BaseModel
from spotsurfer_providers.local.settings import LocalSettings
from support.tree import ROOT

from spotsurfer.config.budgets_section import BudgetSection
from spotsurfer.config.licences_section import LicenceTable
from spotsurfer.config.settings import Settings, load_settings

EXAMPLE = ROOT / "config.example.toml"


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [n for n in os.environ if n.startswith("SPOTSURFER_")]:
        monkeypatch.delenv(name)


def test_example_loads_and_shows_the_defaults() -> None:
    assert load_settings(EXAMPLE) == Settings()


def test_example_still_loads_with_every_line_switched_on(tmp_path: Path) -> None:
    """What is commented out must be right, too: it is what people copy."""
    lines = EXAMPLE.read_text().splitlines()
    on = [line[2:] if line.startswith("# ") and " = " in line else line for line in lines]
    (tmp_path / "config.toml").write_text("\n".join(on))
    assert load_settings(tmp_path / "config.toml") != Settings()


def test_example_names_every_key_of_the_local_provider() -> None:
    lines = [line.removeprefix("##  ") for line in EXAMPLE.read_text().splitlines() if line.startswith("##  ")]
    found = tomllib.loads("\n".join(lines))["provider"]["local"]
    assert set(found) == {field.name for field in dataclasses.fields(LocalSettings)}


def test_example_names_every_key() -> None:
    text = EXAMPLE.read_text()
    for section, field in Settings.model_fields.items():
        assert f"[{section}]" in text
        kind = field.annotation
        if section == "licences":  # names are the operator's, and two forms
            assert "total: " in text
            assert all(f"{key} = " in text for key in LicenceTable.model_fields if key != "total")
            continue
        if section == "budgets":  # a list of tables, which stands in one line
            assert all(f"{key} = " in text for key in BudgetSection.model_fields)
            continue
        assert isinstance(kind, type)
        assert issubclass(kind, BaseModel)
        missing = [key for key in kind.model_fields if f"\n{key} = " not in text and f"\n# {key} = " not in text]
        assert not missing, f"[{section}] lacks {missing}"
