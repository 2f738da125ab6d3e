"""`backup`, `restore` and `adopt` as an operator or cron calls them."""

from __future__ import annotations

import getpass
import json
import sys
from pathlib import Path

import pytest
from cli.conftest import Call
from spotsurfer_wire import json_codec, object_keys
from spotsurfer_wire.messages import Spec
from spotsurfer_wire.store.obstore import open_store

from spotsurfer.recovery import backup
from spotsurfer.state.db import new_family, open_database
from spotsurfer.store import master_key
from spotsurfer.store.leadership import claim_store

SECRET = "correct horse battery"


@pytest.fixture
def data(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The data folder of a controller that has lived."""
    monkeypatch.setattr(backup, "SCRYPT_LOG_N", 1)
    data = folder / "data"
    use(data, monkeypatch)
    engine = open_database(data / "state.db")
    new_family(engine)
    engine.dispose()
    master_key.load(data / "store.key")
    return data


def use(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPOTSURFER_CONTROLLER__DATA_DIR", str(data))


@pytest.fixture
def passphrase(folder: Path) -> str:
    path = folder / "passphrase"
    path.write_text(SECRET + "\n")
    path.chmod(0o600)
    return str(path)


def test_as_cron_calls_it_and_back(call: Call, data: Path, passphrase: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made = call("backup", "--to", "b", "--passphrase-file", passphrase)
    assert (made.code, made.err) == (0, "")
    assert "holds store.key, state.db of the controller family" in made.out
    assert f"The store {(data / 'store').as_uri()} is on this host and no part of it: copy it as well" in made.out
    use(data.parent / "new", monkeypatch)
    back = call("restore", "b", "--passphrase-file", passphrase)
    assert (back.code, back.err) == (0, "")
    assert "with 0 jobs" in back.out
    assert f"Its store was {(data / 'store').as_uri()}, and this configuration's is" in back.out
    assert "Next: stop the old controller for good" in back.out
    assert (data.parent / "new" / "store.key").read_text() == (data / "store.key").read_text()


def test_json_beside_it(call: Call, data: Path, passphrase: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPOTSURFER_BACKUP_PASSPHRASE", SECRET)
    made = json.loads(call("backup", "--to", "b", "--json").out)
    assert made["file"] == "b" and made["bytes"] == (data.parent / "b").stat().st_size
    assert [m["name"] for m in made["members"]] == ["store.key", "state.db"]
    use(data.parent / "new", monkeypatch)
    back = json.loads(call("restore", "b", "--json", "--passphrase-file", passphrase).out)
    assert back["data_dir"] == str(data.parent / "new") and back["family"] == made["family"]


@pytest.mark.parametrize(
    ("arguments", "code", "part"),
    [
        (["backup"], 2, "--to"),
        (["backup", "--to", "b"], 2, "There is no passphrase: write it to a file and name that with --passphrase-file, or set"),
        (["backup", "--to", "b", "--passphrase-file", "nowhere"], 2, "can't be read from nowhere: No such file"),
        (["backup", "--to", "b", "--passphrase-file", "open"], 2, "open can be read by others: chmod 600 open."),
        (["backup", "--to", "b", "--passphrase-file", "short"], 2, "fewer than 8 characters"),
        (["backup", "--to", ".", "--passphrase-file", "passphrase"], 2, ". is there already"),
        (["restore", "nowhere", "--passphrase-file", "passphrase"], 4, "nowhere is not there: name a file that"),
        (["restore", "passphrase", "--passphrase-file", "passphrase"], 4, "passphrase is no backup of spotsurfer"),
    ],
)
def test_mistakes(call: Call, data: Path, passphrase: str, arguments: list[str], code: int, part: str) -> None:
    for name, mode, text in (("open", 0o644, SECRET), ("short", 0o600, "1234567")):
        (data.parent / name).write_text(text)
        (data.parent / name).chmod(mode)
    result = call(*arguments)
    assert (result.code, result.out) == (code, "")
    assert part in result.err and result.err.count("\n") == 1
    assert not (data.parent / "b").exists()


def test_at_a_terminal_it_asks_twice(call: Call, data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    typed = iter([SECRET, SECRET + " mistyped", SECRET, SECRET])
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True)
    monkeypatch.setattr(getpass, "getpass", lambda _: next(typed))
    assert "The two passphrases differ" in call("backup", "--to", "b").err
    assert call("backup", "--to", "b").code == 0
    assert next(typed, None) is None


def test_a_long_one_says_how_far_it_is(call: Call, data: Path, passphrase: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from spotsurfer.cli import follow

    monkeypatch.setattr(follow, "QUIET_SECONDS", 0.0)
    monkeypatch.setattr(follow, "STEP_SECONDS", 0.0)
    err = call("backup", "--to", "b", "--passphrase-file", passphrase).err
    assert "backup: encrypting" in err and " KiB of " in err


def test_a_store_is_adopted(call: Call, data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPOTSURFER_STORE__URL", (data / "store").as_uri())
    store = open_store((data / "store").as_uri())
    claim_store(store, "fam", "here", master_key.load(data / "store.key").fingerprint)
    store.create(object_keys.spec_key("asm-0a1b2c"), json_codec.encode(Spec("asm-0a1b2c", ["work"])))
    store.create(object_keys.spec_key("bad-0a1b2c"), b"{")
    done = call("adopt", "--cpu", "4", "--mem", "16G")
    assert (done.code, done.err) == (0, "")
    assert "asm-0a1b2c  held" in done.out and "at least 4 processors and 16.0 GiB" in done.out
    assert "bad-0a1b2c can't be read and is left alone: Spec is not JSON" in done.out
    assert f"{data} is that of the controller family fam, with 1 job more.\nNext: `spotsurfer serve`.\n" in done.out
    again = json.loads(call("adopt", "--json").out)
    assert (again["family"], again["jobs"], list(again["unread"])) == ("fam", [], ["bad-0a1b2c"])


def test_a_size_without_a_unit_is_no_size(call: Call, data: Path) -> None:
    result = call("adopt", "--mem", "16")
    assert (result.code, "--mem is" in result.err) == (2, True), result.err
