"""Short commands load no more than they need: what is loaded decides how long they take, on any machine."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
from cli.conftest import Call
from support.fake_service import FakeService

from spotsurfer.cli import command_table
from spotsurfer.cli.command_table import MODULES
from spotsurfer.cli.main import OTHER_WORDS

# Each takes tens of milliseconds, or brings what does.
HEAVY = {
    *("fastapi", "starlette", "uvicorn", "sqlalchemy", "alembic", "pydantic", "pydantic_settings", "httpx", "anyio", "asyncio"),
    *("numpy", "obstore", "structlog", "pygments", "cryptography", "paramiko", "boto3", "botocore"),
    *("spotsurfer_agent", "spotsurfer_wire"),
    *(
        "spotsurfer.config.settings",
        "spotsurfer.controller.wiring",
        "spotsurfer.controller",
        "spotsurfer_lab",
        "spotsurfer.jobspec.parse",
    ),
}
OFFLINE = HEAVY | {"rich", "http.client", "ssl", "spotsurfer.web.client", "spotsurfer.model.job"}
PROGRAM = """
import sys
from spotsurfer.cli.main import main
try:
    code = main({words!r})
except SystemExit as e:
    code = e.code
loaded = sorted({heavy!r} & set(sys.modules))
sys.exit(f"loaded {{loaded}}" if loaded else code)
"""


@pytest.mark.parametrize(
    ("words", "heavy"),
    [
        (["--help"], OFFLINE),
        (["--version"], OFFLINE),
        ([], OFFLINE),
        (["list", "--help"], HEAVY | {"rich"}),
        (["list"], HEAVY),
        (["list", "--json"], HEAVY | {"rich"}),
        (["show", "asm", "--json"], HEAVY | {"rich"}),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_nothing_heavy_is_loaded(job: str, words: list[str], heavy: set[str]) -> None:
    program = PROGRAM.format(words=words, heavy=heavy)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("module", sorted(command_table.TABLE))
def test_the_table_is_what_the_modules_register(module: str) -> None:
    loaded = command_table.load(module)
    assert {name: command.get_short_help_str(1000) for name, command in loaded.items()} == command_table.TABLE[module]


def test_a_plugin_that_breaks_breaks_no_other_command(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken:
        name = "local"

        def load(self) -> object:
            raise ImportError("it is broken")

    monkeypatch.setattr("importlib.metadata.entry_points", lambda **_: [Broken()])
    assert "Commands of the provider 'local'" in call("--help").out
    assert call("version").code == 0
    broken = call("local", "list")
    assert (broken.code, "it is broken" in broken.err) == (1, True)


def test_a_name_that_is_nearly_right(call: Call) -> None:
    assert call("lst").err == "No such command 'lst'. Did you mean 'list'? `spotsurfer --help` shows how.\n"


def test_a_bare_call_greets_with_commands_that_are_there(call: Call) -> None:
    bare = call()
    assert (bare.code, bare.err) == (0, "")
    named = re.findall(r"^  spotsurfer (\w+)", bare.out, re.MULTILINE)
    assert len(named) == 3 and set(named) <= set(MODULES)


@pytest.mark.parametrize("word", OTHER_WORDS)
def test_words_of_other_tools_lead_to_ours(call: Call, word: str) -> None:
    said = call(word)
    assert said.code == 2
    named = re.findall(r"`spotsurfer (\w+)[^`]*`", said.err)
    assert named and set(named) <= set(MODULES), said.err
    assert word not in MODULES


@pytest.mark.parametrize("words", [["store"], ["hint"], ["local"]], ids=" ".join)
def test_without_a_command_the_help_is_told_whole(call: Call, words: list[str]) -> None:
    bare = call(*words)
    assert (bare.code, bare.err) == (0, "")
    assert bare.out == call(*words, "--help").out


def test_the_version_as_an_option_and_as_a_command(call: Call) -> None:
    assert call("--version").out == call("version").out
    assert call("--version").code == 0


def test_values_that_need_no_conversion_are_still_checked(call: Call, controller: FakeService) -> None:
    assert call("why", "nobody", "--last", "zero").code == 2
    assert call("why", "nobody", "--last", "0").code == 2
    assert call("show").code == 2
