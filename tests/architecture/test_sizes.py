"""Files and functions stay small enough to be read in one go, in the tests as well."""

import ast
from pathlib import Path

import pytest
from support.tree import ROOT, python_files

FILE_LINES_MAX = 400
FUNCTION_LINES_MAX = 60


def _name(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("path", python_files(), ids=_name)
def test_file_is_small(path: Path) -> None:
    lines = len(path.read_text().splitlines())
    assert lines <= FILE_LINES_MAX, f"{path} has {lines} lines"


@pytest.mark.parametrize("path", python_files(), ids=_name)
def test_functions_are_small(path: Path) -> None:
    long = {}
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.end_lineno is not None:
            length = node.end_lineno - node.lineno + 1
            if length > FUNCTION_LINES_MAX:
                long[node.name] = length
    assert not long


def test_the_tree_is_really_looked_at() -> None:
    """The walk must not pass because it found nothing."""
    names = {_name(p) for p in python_files()}
    assert {"spotsurfer/model/job.py", "agent/spotsurfer_agent/protocol.py", "tests/architecture/test_sizes.py"} <= names
    assert not any(n.startswith((".venv", "build")) for n in names)
