"""Words that no file of the project may hold: where it was made, which registry served it, what is still to be done."""

import re
from pathlib import Path

import pytest
from support.tree import ROOT, own_files

# Written in pieces, so that this file does not hold them.
_REGISTRIES = [
    "pypi" + r"\.org",
    "python" + r"hosted\.org",
    "registry" + r"\.npmjs",
    "deb" + r"\.debian\.org",
    "snapshot" + r"\.debian",
]
_REGISTRIES += ["security" + r"\.debian\.org", "ftp" + r"\.debian\.org"]
FORBIDDEN = re.compile("|".join([*_REGISTRIES, "/" + r"work/(?:main|shared)\b", r"\b(?:TO" + r"DO|FIX" + r"ME|XX" + r"X)\b"]))


def _text(path: Path) -> str | None:
    try:
        return path.read_text()
    except UnicodeDecodeError:
        return None  # an image, a trace: nothing that a person wrote


def test_no_file_holds_a_forbidden_word() -> None:
    found = {str(p.relative_to(ROOT)): words for p in own_files() if (words := FORBIDDEN.findall(_text(p) or ""))}
    assert found == {}


def test_the_files_are_really_looked_at() -> None:
    """The walk must not pass because it found nothing."""
    names = {str(p.relative_to(ROOT)) for p in own_files()}
    assert {"spotsurfer/model/job.py", "wire/spotsurfer_wire/messages.py", "README.md", ".ci/run"} <= names
    assert not any(n.startswith((".venv", "build")) for n in names)


@pytest.mark.parametrize("text", ["index = https://" + "pypi" + ".org/simple", "cd /" + "work/main", "# " + "TO" + "DO: later"])
def test_the_pattern_catches(text: str) -> None:
    assert FORBIDDEN.search(text)


@pytest.mark.parametrize("text", ["network/mainland", "mastodon", "files.example.org", "/home/a/work/mainly"])
def test_the_pattern_is_not_too_wide(text: str) -> None:
    assert not FORBIDDEN.search(text)
