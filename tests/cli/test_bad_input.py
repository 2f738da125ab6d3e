"""Each mistake: its own exit code, one sentence that names the culprit, nothing half-made."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest
from cli.conftest import Call
from support.api import api
from support.closed import close
from support.fake_service import FakeService

from spotsurfer.model import errors as e
from spotsurfer.web.server import tcp_socket

GOOD = 'command = ["prog"]\n'


@pytest.mark.parametrize(
    ("text", "code", "parts"),
    [
        ("name = 'x'\n", 3, ["command is missing"]),
        (GOOD + "memmory = 1\n", 3, ["line 2", "'resources.memory'", "memmory"]),
        (GOOD + "[resources]\nmemory = 4\n", 3, ["line 3", "resources.memory", "without a unit", "4G"]),
        (GOOD + "[resources]\nmemory = '4 parsecs'\n", 3, ["line 3", "parsecs", "no unit of size"]),
        (GOOD + "[resources]\ncpus = 4\n", 3, ["line 3", "resources.cpus", "'resources.cpu'"]),
        (GOOD + "checkpoint_interval = '10 min'\n", 3, ["line 2", "'min'", "no unit of time"]),
        (GOOD + "market = 'sport'\n", 3, ["line 2", "market", "'spot'"]),
        (GOOD + "retries = 'twice'\n", 3, ["line 2", "retries", "whole number"]),
        (GOOD + "budget_usd = '$3'\n", 3, ["line 2", "budget_usd", "US dollars"]),
        (GOOD + "outputs = ['../x']\n", 3, ["line 2", "outputs", "leaves the job's folder"]),
        (GOOD + "outputs = ['out/**.fa']\n", 3, ["line 2", "outputs", "'**' stands for whole folders"]),
        ("command = [\n", 3, ["not valid TOML"]),
        ('command = "sh -c \'oops"\n', 3, ["line 1", "command", "list of words"]),
        ('command = "sleep 1 | wc"\n', 3, ["line 1", "command", "no shell sees it", '["sh", "-c", "sleep 1 | wc"]']),
        ('command = "prog 2> log"\n', 3, ["line 1", "command", "no shell sees it, and 2> would be an argument"]),
        (GOOD + 'on_end = "mail me && rm x"\n', 3, ["line 2", "on_end", "no shell sees it", "&&"]),
        (
            GOOD + "[resources]\noutputs = ['x']\n",
            3,
            ["line 3", "resources.outputs", "'outputs' belongs above the first [table]"],
        ),
        (GOOD + "[resources.outputs]\nx = 1\n", 3, ["line 2", "resources.outputs"]),
        ("command = []\n", 3, ["line 1", "command is empty"]),
        (GOOD + "inputs = ['absent.fq']\n", 4, ["line 2", "absent.fq", "not there"]),
        (GOOD + "\n\ninputs = ['*.fq']\n", 4, ["line 4", "*.fq", "matches"]),
    ],
)
def test_a_wrong_job_file(controller: FakeService, call: Call, folder: Path, text: str, code: int, parts: list[str]) -> None:
    (folder / "job.toml").write_text(text)
    result = call("submit", "job.toml")
    assert result.code == code, result.err
    for part in ["job.toml", *parts]:
        assert part in result.err
    assert len(result.err.strip().splitlines()) == 1
    assert result.out == ""
    assert controller.statuses == controller.uploads == {}


@pytest.mark.parametrize(
    ("arguments", "code", "parts"),
    [
        (["submit"], 2, ["job file", "-- prog"]),
        (["submit", "absent.toml"], 3, ["absent.toml", "not there"]),
        (["submit", "--mem", "4", "--", "prog"], 3, ["resources.memory", "without a unit"]),
        (["submit", "--cpu", "two", "--", "prog"], 2, ["--cpu", "whole number"]),
        (["submit", "--env", "A", "--", "prog"], 2, ["--env", "NAME=value"]),
        (["submit", "--secret", "A=env:HOME", "--secret", "A=env:PATH", "--", "prog"], 2, ["--secret", "A twice"]),
        (["submit", "--in", "absent", "--", "prog"], 4, ["absent", "not there"]),
        (["submit", "--fast", "--", "prog"], 2, ["--fast", "--help"]),
        (["lst"], 2, ["lst"]),
        (["show"], 2, ["JOB"]),
        (["show", "nobody"], 13, ["nobody", "spotsurfer list"]),
        (["logs", "nobody"], 13, ["nobody"]),
        (["cancel", "nobody"], 13, ["nobody"]),
        (["outputs", "nobody"], 13, ["nobody"]),
        (["move", "nobody", "--market", "sport"], 2, ["--market", "sport"]),
        (["checkpoint", "nobody", "--timeout", "soon"], 2, ["--timeout", "soon"]),
        (["--config", "absent.toml", "list"], 5, ["absent.toml", "not there"]),
    ],
)
def test_a_wrong_command_line(controller: FakeService, call: Call, arguments: list[str], code: int, parts: list[str]) -> None:
    result = call(*arguments)
    assert result.code == code, result.err
    for part in parts:
        assert part in result.err
    assert len(result.err.strip().splitlines()) == 1
    assert result.out == ""
    assert controller.statuses == controller.uploads == {}


@pytest.mark.parametrize(
    "command", ["\"awk '$1 > 2' x\"", "\"grep '|' x\"", '"curl http://h/x?a=1&b=2"', '["expr", "1", "<", "2"]']
)
def test_signs_of_a_shell_that_are_meant_as_they_are(controller: FakeService, call: Call, folder: Path, command: str) -> None:
    (folder / "job.toml").write_text(f"command = {command}\n")
    assert call("submit", "job.toml").code == 0


def test_the_configuration_that_was_read_is_named(call: Call, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPOTSURFER_CONTROLLER__DATA_DIR", raising=False)
    (folder / "spotsurfer.toml").write_text(f'[controller]\ndata_dir = "{folder}/data"\n')
    result = call("list")
    assert result.code == 11
    assert f"No controller answers at {folder}/data/api.sock ({folder}/spotsurfer.toml was read):" in result.err
    (folder / "spotsurfer.toml").write_text("[limits]\nlease_seconds = 1\n")
    assert (
        f"{folder}/spotsurfer.toml: [limits] lease_seconds is 1, but"
        in call("--config", f"{folder}/spotsurfer.toml", "doctor").err
    )


def test_no_controller(call: Call, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPOTSURFER_CONTROLLER__DATA_DIR", str(folder))
    result = call("list")
    assert result.code == 11
    assert str(folder / "api.sock") in result.err
    assert "spotsurfer serve" in result.err


def test_a_controller_that_died(call: Call, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPOTSURFER_CONTROLLER__DATA_DIR", str(folder))
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(folder / "api.sock"))
    assert call("list").code == 11


@pytest.mark.parametrize(
    "words",
    [["list"], ["show", "j"], ["logs", "j"], ["watch"], ["submit", "--", "prog"], ["suspend", "j"], ["cancel", "j"]],
)
def test_a_controller_of_another_user(call: Call, folder: Path, monkeypatch: pytest.MonkeyPatch, words: list[str]) -> None:
    """Its data folder may not be entered: the client failed inside."""
    (folder / "data").mkdir()
    monkeypatch.setenv("SPOTSURFER_CONTROLLER__DATA_DIR", str(folder / "data"))
    close(folder / "data", monkeypatch)
    result = call(*words)
    assert (result.code, result.out) == (12, "")
    assert result.err == (
        f"You may not use {folder}/data/api.sock: run as its owner (sudo), or set SPOTSURFER_URL and SPOTSURFER_TOKEN. "
        "See docs/access.md.\n"
    )


def test_errors_of_the_controller_keep_their_code(controller: FakeService, call: Call) -> None:
    for error in (
        e.StoreUnwritable("The store is gone."),
        e.DiskFull("Full."),
        e.StoreOwned("Not yours."),
        e.NoCapacity("None."),
    ):
        controller.fail = error
        result = call("list")
        assert result.code == error.exit_code
        assert result.err.strip() == f"{error} See {error.page}."


def test_debug_shows_the_place(controller: FakeService, call: Call) -> None:
    assert "Traceback" not in call("show", "nobody").err
    result = call("--debug", "show", "nobody")
    assert result.code == 13
    assert "Traceback" in result.err


def test_over_tcp_a_token_is_needed(service: FakeService, folder: Path, call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    listener = tcp_socket("127.0.0.1:0")
    with api(service, folder / "api.sock", (listener, "the-right-token-it-is")):
        monkeypatch.setenv("SPOTSURFER_URL", f"http://127.0.0.1:{listener.getsockname()[1]}")
        denied = call("list")
        assert denied.code == 12
        assert "SPOTSURFER_TOKEN" in denied.err
        monkeypatch.setenv("SPOTSURFER_TOKEN", "the-right-token-it-is\n")
        assert call("submit", "--", "prog").code == 0
        (folder / "job.toml").write_text(GOOD + "on_end = ['id']\n")
        assert call("submit", "job.toml").code == 12


def test_a_controller_is_reached_by_the_path_of_its_socket(
    service: FakeService, folder: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    with api(service, folder / "elsewhere.sock"):
        monkeypatch.setenv("SPOTSURFER_URL", str(folder / "elsewhere.sock"))
        assert call("list").code == 0
    gone = call("list")
    assert gone.code == 11
    assert str(folder / "elsewhere.sock") in gone.err


@pytest.mark.parametrize("url", ["localhost:1", "http://localhost:abc", "http://[::1", "ftp://localhost"])
def test_an_address_that_is_none(call: Call, monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    monkeypatch.setenv("SPOTSURFER_URL", url)
    result = call("list")
    assert result.code == 2
    assert "expected a URL like" in result.err


def test_ctrl_c_is_130(controller: FakeService, call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("spotsurfer.cli.common.Session.client", interrupted)
    result = call("list")
    assert (result.code, result.out, result.err) == (130, "", "Interrupted.\n")


def test_a_secret_goes_from_the_variable_to_the_controller_and_its_user_is_told(
    call: Call, controller: FakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_TOKEN", "canary-5d1b8c")
    result = call("submit", "--secret", "TOKEN=env:MY_TOKEN", "--", "prog")
    assert result.code == 0
    assert list(controller.secrets.values()) == [{"TOKEN": b"canary-5d1b8c"}]
    assert "hold the job's memory and with it its secrets, so they are encrypted" in result.err
    job = next(iter(controller.statuses))
    assert "TOKEN (env:MY_TOKEN); checkpoints are encrypted" in call("show", job).out
    shown = [call(*words) for words in (("list",), ("list", "--json"), ("show", job), ("show", job, "--json"))]
    assert not any("canary" in x.out + x.err for x in (result, *shown))


def test_a_secret_that_is_not_there_costs_nothing(call: Call, controller: FakeService) -> None:
    result = call("submit", "--secret", "TOKEN=env:NOT_SET_ANYWHERE", "--", "prog")
    assert (result.code, controller.statuses) == (4, {})
    assert "NOT_SET_ANYWHERE, which is not set here" in result.err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["show", ""], "There is no job ''"),
        (["show", "\udcff"], "There is no job '\\udcff'"),
        (["cancel", "."], "There is no job '.'"),
        (["cancel", ".."], "There is no job '..'"),
        (["submit", "--market", "spt", "--", "true"], "Did you mean 'spot'?"),
        (["submit", "--cpu", "two", "--", "true"], "Invalid value for '--cpu': expected a whole number."),
        (["submit", "--market", "", "--", "true"], "market is ''"),
        (["submit", "--env", "=x", "--", "true"], "--env '=x' has no name: write --env NAME=value."),
        (["submit", "--env", "A", "--", "true"], "--env 'A' has no value: write --env NAME=value."),
        (["submit", "sleep"], "Job file sleep is not there: check the path, or write the job as options before `-- prog`."),
        (["list", "--limit", "0"], "Invalid value for '--limit': expected at least 1."),
        (["budget", "asm", "abc"], "The budget is 'abc', expected an amount in US dollars without a sign"),
        (["budget", "asm", "-1"], "The budget is '-1', expected an amount in US dollars without a sign"),
        (["report", "--since", "1e9d"], "--since is '1e9d', expected so long ago"),
        (["submit", "--timeout", "1h", "--", "true"], "--timeout says how long --wait waits: give both."),
        (["submit", "--priority", "9" * 5000, "--", "true"], "expected low, normal, high or a whole number."),
        (["submit", "--cpu", "9" * 5000, "--", "true"], "Invalid value for '--cpu': expected a whole number."),
        (["submit", "--in", "~nosuchuser/x", "--", "true"], "inputs names '~nosuchuser/x', and there is no such user."),
        (["submit", "--secret", "A=file:~nosuchuser/x", "--", "true"], "which can't be read (no such user)"),
        (["submit", "--secret", "A=file:/dev/zero", "--", "true"], "/dev/zero, which is larger than 1 MiB"),
        (["submit", "/dev/zero"], "/dev/zero is larger than 1 MiB: that is no job file."),
        (["submit", "."], "Job file . can't be read: Is a directory."),
        (["--config", ".", "list"], "Configuration file . is a folder: name a file in it."),
        (["show", "a/b"], "There is no job 'a/b'"),
        (["show", "a" * 101], "There is no job 'aaa"),
        (["report", ""], "There is no job ''"),
        (["watch", ""], "There is no job ''"),
        (["report", "\udcff"], "There is no job '\\udcff'"),
        (["cancel", "--tag", "\udcff"], "There is no such job."),
        (["fork", "asm", "--name", "\udcff"], "'\\udcff' in what was given is no UTF-8 text."),
        (["protect", "asm", "\udcff"], "asm has no checkpoint '\\udcff'"),
        (["protect", "asm", ".."], "asm has no checkpoint '..'"),
        (["submit", "a", "b"], "extra argument b: what is to run comes after --, as in `spotsurfer submit -- sleep 10`."),
        (["submitt"], "No such command 'submitt'. Did you mean 'submit'? `spotsurfer --help` shows how."),
    ],
)
def test_what_is_wrong_is_said_in_words_of_ours(controller: FakeService, call: Call, words: list[str], said: str) -> None:
    result = call(*words)
    assert result.code in (2, 3, 4, 5, 13) or words[:2] == ["cancel", "--tag"]
    assert said in result.err + result.out
    assert len(result.err.splitlines()) <= 1


@pytest.mark.parametrize(("name", "why"), [(b"i\xffn", "no UTF-8 text"), (b"e\x1b[31m", "holds a control character")])
def test_a_file_of_a_name_that_no_store_takes(controller: FakeService, call: Call, folder: Path, name: bytes, why: str) -> None:
    (folder / "in").mkdir()
    Path(folder, "in", os.fsdecode(name)).write_text("x")
    result = call("submit", "--in", "in", "--", "prog")
    assert (result.code, why in result.err, controller.uploads) == (4, True, {})
