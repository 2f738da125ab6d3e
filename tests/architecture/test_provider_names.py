"""What machines are, a provider says by its abilities and entry points: nothing of the core asks for one by its name."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import pytest
from support.tree import ROOT

CORE = ("spotsurfer", "agent/spotsurfer_agent", "wire/spotsurfer_wire", "policies/spotsurfer_policies", "lab/spotsurfer_lab")
FOLDERS = ROOT / "providers" / "spotsurfer_providers"
NAMES = frozenset({*(path.parent.name for path in FOLDERS.glob("*/provider.py")), "azure"})  # and the next one
# Where a name stands for something else, or must be one.
MAY_STAND = {
    "spotsurfer/config/settings.py": {"local": "a configuration that names no provider means this one"},
    "spotsurfer/demo/environment.py": {"local": "the demonstration is one of boxes, and `spotsurfer local` cleans up after it"},
    "spotsurfer/cli/commands/init.py": {name: "the folder of a Terraform module" for name in ("aws", "gcp")},
    "agent/spotsurfer_agent/control/notices.py": {
        name: "a dialect of metadata services, which is the agent's; boxes speak one of them"
        for name in ("aws", "azure", "gcp")
    },
    "lab/spotsurfer_lab/cli/backtest.py": {"aws-us-east-1": "the only catalogue there is, as the default of an option"},
    "wire/spotsurfer_wire/messages.py": {"aws": "the dialect that user-data of earlier releases did not have to name"},
}


def names_in(source: str) -> Iterator[tuple[int, str]]:
    """Line and text of each literal that is a provider's name, or begins with one as names of its things do."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and re.split("[-:]", node.value)[0] in NAMES:
            yield node.lineno, node.value


def found(folder: str) -> dict[str, dict[str, int]]:
    return {
        str(path.relative_to(ROOT)): names
        for path in sorted((ROOT / folder).rglob("*.py"))
        if (names := {text: line for line, text in names_in(path.read_text())})
    }


def test_the_names_are_those_of_the_folders() -> None:
    assert {"aws", "gcp", "local"} < NAMES


@pytest.mark.parametrize("folder", CORE)
def test_nothing_of_the_core_names_a_provider(folder: str) -> None:
    wrong = {
        f"{path}:{line}: {text}"
        for path, names in found(folder).items()
        for text, line in names.items()
        if text not in MAY_STAND.get(path, {})
    }
    assert wrong == set(), "ask for an ability (ports/provider.py) or an entry point (common/plugins.py) instead"


def test_each_exception_is_still_one() -> None:
    assert {path: set(names) for path, names in MAY_STAND.items()} == {
        path: set(names) for folder in CORE for path, names in found(folder).items()
    }


@pytest.mark.parametrize(
    "line",
    [
        'if name == "aws": pass',
        'HERE = "local"',
        'match name:\n    case "gcp": pass',
        'SECRETS = ("aws-secretsmanager",)',
        'x = {"azure": 1}',
    ],
)
def test_it_sees(line: str) -> None:
    assert list(names_in(line))


@pytest.mark.parametrize("line", ['x = "locally"', 'x = "amazonaws.com"', 'def f():\n    """Of aws and local."""', "aws = 1"])
def test_it_lets_pass(line: str) -> None:
    assert not list(names_in(line))
