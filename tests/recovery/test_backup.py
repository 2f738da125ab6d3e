"""A backup holds what a controller can't make again, as it was at one moment; a restore brings it back, whole or not at all."""

from __future__ import annotations

import errno
import os
import signal
import sqlite3
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from recovery.conftest import FILES, SECRET, Host, Killed, killed_after
from sqlalchemy import text
from support.builders import NOW, a_job

from spotsurfer.controller import wiring
from spotsurfer.model import errors as e
from spotsurfer.recovery import adopt as adopting
from spotsurfer.recovery import restore as restoring
from spotsurfer.recovery.adopt import Least, adopt
from spotsurfer.recovery.backup import Reader
from spotsurfer.recovery.restore import finish
from spotsurfer.state import db
from spotsurfer.state import jobs as rows
from spotsurfer.state.db import lock_state, open_database
from spotsurfer.store import master_key

Hosts = Callable[..., Host]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "backup"


def modes(*paths: Path) -> set[int]:
    return {stat.S_IMODE(path.stat().st_mode) for path in paths}


def test_what_was_lost_comes_back_for_its_owner_alone(host: Hosts, file: Path) -> None:
    old = host("old").lived()
    about = old.back_up(file)
    assert (about.jobs, [m.name for m in about.members]) == (1, ["store.key", "token", "state.db"])
    new = host("new")
    assert new.restore(file).about == about
    assert set(new.files()) == set(FILES)
    for name in ("store.key", "token"):
        assert new.files()[name] == old.files()[name]
    assert db.look_read_only(new.data / "state.db") == db.look_read_only(old.data / "state.db")
    assert modes(file, *(new.data / name for name in FILES)) == {0o600}
    assert modes(new.data) == {0o700}
    assert not [p for p in (*old.data.iterdir(), *new.data.iterdir(), *file.parent.iterdir()) if p.name.startswith(".")]


def test_a_controller_goes_on_with_it(host: Hosts, file: Path) -> None:
    old = host("old").lived()
    about = old.back_up(file)
    new = host("new")
    new.restore(file)
    controller = wiring.build(new.settings)
    try:
        assert controller.service.info().family == about.family
        assert controller.service.job("job").job.id == "job"
    finally:
        controller.stop()


def test_it_is_one_moment_of_a_database_that_is_being_written(host: Hosts, file: Path) -> None:
    """What was committed is in it although it is in the write-ahead log still; what is half written is not."""
    old = host("old").lived()
    engine = open_database(old.data / "state.db")
    with engine.begin() as c:
        rows.add_job(c, a_job(id="committed"))
    with engine.begin() as c:
        rows.add_job(c, a_job(id="under-way"))
        old.back_up(file)
    engine.dispose()
    new = host("new")
    new.restore(file)
    with open_database(new.data / "state.db").connect() as c:
        assert {j.id for j in rows.all_jobs(c)} == {"job", "committed"}


def test_nothing_is_readable_without_the_passphrase(host: Hosts, file: Path) -> None:
    old = host("old").lived()
    old.back_up(file)
    for secret in (old.files()["store.key"].strip(), old.files()["token"].strip(), b"submitted"):
        assert secret not in file.read_bytes()
    with pytest.raises(e.Denied, match="does not open"):
        host("new").restore(file, "wrong horse battery")


# ---------------------------------------------------------------- refusals of backup


def test_a_file_that_is_there_stays_unless_told(host: Hosts, file: Path) -> None:
    old = host("old").lived()
    file.write_text("mine")
    with pytest.raises(e.UsageError, match="is there already: name another file, or overwrite it with --force"):
        old.back_up(file)
    assert file.read_text() == "mine"
    old.back_up(file, force=True)
    host("new").restore(file)


def test_a_folder_without_a_controller_has_nothing_to_back_up(host: Hosts, file: Path) -> None:
    with pytest.raises(e.ConfigError, match=r"state\.db is not there: name the controller's own configuration"):
        host("new").back_up(file)


def test_a_key_is_never_made_for_a_backup(host: Hosts, file: Path) -> None:
    old = host("old").lived()
    old.settings.key_path.unlink()
    with pytest.raises(e.ConfigError, match=r"store's key .* is not there yet"):
        old.back_up(file)
    assert not old.settings.key_path.exists() and not file.exists()


def test_a_damaged_database_is_no_backup(host: Hosts, file: Path) -> None:
    old = host("old").lived()
    database = old.data / "state.db"
    with database.open("r+b") as opened:
        opened.seek(4096)
        opened.write(b"\xff" * 8192)
    with pytest.raises(e.SpotsurferError, match=r"The database .* (is damaged|can't be copied|can't be read)"):
        old.back_up(file)
    assert not file.exists()


def test_two_backups_at_once(host: Hosts, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = host("old").lived()
    copy, second = db.copy_database, file.with_name("second")

    def meanwhile(*arguments: Any) -> None:
        with pytest.raises(e.Conflict, match="Another backup"):
            old.back_up(second)
        copy(*arguments)

    monkeypatch.setattr(db, "copy_database", meanwhile)
    old.back_up(file)
    host("new").restore(file)


def test_a_place_that_can_not_be_written(host: Hosts, file: Path) -> None:
    old = host("old").lived()
    with pytest.raises(e.UsageError, match=r"can't be written \(No such file or directory\): name another file after --to"):
        old.back_up(file / "nowhere" / "backup")


@pytest.mark.parametrize("make", [os.mkfifo, lambda p: p.symlink_to("elsewhere"), lambda p: p.mkdir()])
def test_only_a_plain_file_is_written_over(host: Hosts, file: Path, make: Callable[[Path], None]) -> None:
    """`--force --to /dev/stdout` as root replaced the device for all programs of the host."""
    old = host("old").lived()
    make(file)
    before = file.lstat()
    with pytest.raises(e.UsageError, match="is there already and is no plain file: name another file after --to"):
        old.back_up(file, force=True)
    assert file.lstat() == before


def test_whom_the_system_refuses_is_told_who_to_be(host: Hosts, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Root, who runs these tests, is refused nothing."""
    old = host("old").lived()
    remedy = r"Permission denied.*: call it as the user that the controller runs as, or as root\."

    def refused(path: Path, *_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    with monkeypatch.context() as m, pytest.raises(e.ConfigError, match=remedy):
        m.setattr(Path, "is_file", refused)
        old.back_up(file)
    with monkeypatch.context() as m, pytest.raises(e.UsageError, match=r"Permission denied.*: name another file after --to"):
        m.setattr(Path, "lstat", refused)
        old.back_up(file)
    with monkeypatch.context() as m, pytest.raises(e.ConfigError, match=remedy):
        m.setattr(Path, "exists", refused)
        adopt(old.settings, Least(), NOW, lambda *_: None)


def test_a_read_only_file_system_is_told(host: Hosts, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = host("old").lived()
    old.back_up(file)

    def read_only(folder: Path) -> int:
        raise OSError(errno.EROFS, "Read-only file system", str(folder))

    monkeypatch.setattr(restoring, "lock_state", read_only)
    monkeypatch.setattr(adopting, "lock_state", read_only)
    for act in (lambda: old.restore(file), lambda: adopt(old.settings, Least(), NOW, lambda *_: None)):
        with pytest.raises(e.ConfigError, match=r"can't be used \(Read-only file system\)"):
            act()


def test_ctrl_c_ends_the_copy_of_the_database(host: Hosts, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(db, "TICK_STEPS", 1)
    old = host("old").lived()
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # whoever runs many tests at once may ignore it
    try:
        with pytest.raises(KeyboardInterrupt):
            db.copy_database(old.data / "state.db", file, lambda: signal.raise_signal(signal.SIGINT))
    finally:
        signal.signal(signal.SIGINT, before)


# ---------------------------------------------------------------- refusals of restore


def test_a_folder_in_use_is_refused(host: Hosts, file: Path) -> None:
    host("old").lived().back_up(file)
    new = host("new")
    lock = lock_state(new.data)
    with pytest.raises(e.ControllerRunning):
        new.restore(file)
    os.close(lock)
    assert new.files() == {}


def test_a_database_with_jobs_is_never_written_over(host: Hosts, file: Path) -> None:
    old = host("old").lived()
    old.back_up(file)
    with open_database(old.data / "state.db").begin() as c:
        rows.add_job(c, a_job(id="newer"))
    with pytest.raises(e.Conflict, match=r"state\.db is there already, with 2 jobs, the last change at 2026-01-01T12"):
        old.restore(file)
    with open_database(old.data / "state.db").connect() as c:
        assert len(rows.all_jobs(c)) == 2


def test_what_is_damaged_is_moved_away_not_written_over(host: Hosts, file: Path) -> None:
    """Its message said to restore a backup, and `restore` was who said it."""
    old = host("old").lived()
    old.back_up(file)
    database = old.data / "state.db"
    with database.open("r+b") as opened:
        opened.seek(4096)
        opened.write(b"\xff" * 8192)
    with pytest.raises(e.SpotsurferError, match="move that file, and those that begin with its name, elsewhere, then restore"):
        old.restore(file)
    for path in old.data.glob("state.db*"):
        path.rename(file.with_name(path.name))
    old.restore(file)
    assert db.look_read_only(database).jobs == 1


def test_another_key_is_never_written_over(host: Hosts, file: Path) -> None:
    host("old").lived().back_up(file)
    new = host("new")
    new.data.mkdir()
    mine = master_key.load(new.settings.key_path)
    with pytest.raises(e.Conflict, match="holds another key than the backup: move it elsewhere"):
        new.restore(file)
    assert master_key.load(new.settings.key_path) == mine
    assert set(new.files()) == {"store.key"}


def test_what_a_refused_start_left_is_in_nobodys_way(host: Hosts, file: Path) -> None:
    """As a user did: the old key in a new folder, `serve` is refused by the store, then the backup is found."""
    old = host("old").lived()
    about = old.back_up(file)
    new = host("new")
    new.data.mkdir()
    new.settings.key_path.write_bytes(old.files()["store.key"])
    new.settings.key_path.chmod(0o600)
    with pytest.raises(e.StoreOwned, match=f"belongs to the controller family {about.family}.*`spotsurfer restore`"):
        wiring.build(new.settings)
    assert (new.data / "state.db").exists()
    sqlite3.connect(new.data / "state.db").close()
    new.restore(file)
    assert db.look_read_only(new.data / "state.db").family == about.family


def test_an_old_log_is_not_played_into_the_new_database(host: Hosts, file: Path) -> None:
    old = host("old").lived()
    about = old.back_up(file)
    new = host("new")
    open_database(new.data / "state.db").dispose()
    writer = sqlite3.connect(new.data / "state.db")
    writer.execute("INSERT INTO meta VALUES ('family', 'another')")
    writer.commit()
    saved = {p: p.read_bytes() for p in new.data.iterdir()}  # never closed properly, as after a power cut
    writer.close()
    for path, content in saved.items():
        path.write_bytes(content)
    assert (new.data / "state.db-wal").stat().st_size
    new.restore(file)
    assert db.look_read_only(new.data / "state.db").family == about.family


def test_a_token_that_clients_have_stays(host: Hosts, file: Path) -> None:
    host("old").lived().back_up(file)
    new = host("new", {"token_file": str(file.with_name("token"))})
    file.with_name("token").write_text("handed out by others\n")
    assert new.restore(file).kept_token
    assert file.with_name("token").read_text() == "handed out by others\n"
    assert set(new.files()) == {"state.db", "store.key"}


def test_keys_belong_where_the_configuration_says(host: Hosts, file: Path) -> None:
    old = host("old").lived()
    old.back_up(file)
    elsewhere = file.with_name("etc")
    new = host("new", {"token_file": str(elsewhere / "token")}, key_file=str(elsewhere / "store.key"))
    new.restore(file)
    assert set(new.files()) == {"state.db"}
    assert {p.name: p.read_bytes() for p in elsewhere.iterdir()} == {n: old.files()[n] for n in ("store.key", "token")}
    assert modes(*elsewhere.iterdir()) == {0o600}


def test_a_newer_database_is_refused(host: Hosts, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = host("old").lived()
    with open_database(old.data / "state.db").begin() as c:
        c.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    old.back_up(file)
    new = host("new")
    with pytest.raises(e.InputMissing, match=r"with a newer database than this version knows \(schema 9999, here \d+\)"):
        new.restore(file)
    assert not new.data.exists()


def test_an_older_database_is_migrated_at_the_start(host: Hosts, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    host("old").lived().back_up(file)
    monkeypatch.setattr(db, "newest_version", lambda: "9999")
    host("new").restore(file)


@pytest.mark.parametrize(
    "spoil", [lambda b: b[:-1], lambda b: b[: len(b) // 2], lambda b: b[:-9] + b"x" + b[-8:], lambda b: b"hello"]
)
def test_a_spoilt_file_leaves_nothing(host: Hosts, file: Path, spoil: Callable[[bytes], bytes]) -> None:
    host("old").lived().back_up(file)
    file.write_bytes(spoil(file.read_bytes()))
    new = host("new")
    with pytest.raises(e.InputMissing, match=f"{file} is (damaged|no backup of spotsurfer)"):
        new.restore(file)
    assert not new.data.exists() or (new.files() == {} and [p.name for p in new.data.iterdir()] == ["controller.lock"])


def test_files_that_do_not_fit_together_are_refused(host: Hosts, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = host("old").lived()
    with monkeypatch.context() as m:
        m.setattr(db, "look_read_only", lambda path: db.Seen("another", "0001", 1, ""))
        old.back_up(file)
    new = host("new")
    with pytest.raises(e.SpotsurferError, match="is not the one that the backup's header names"):
        new.restore(file)
    assert new.files() == {}


# ---------------------------------------------------------------- kills


def whole(path: Path) -> bool:
    with path.open("rb") as opened:
        reader = Reader(opened, str(path), SECRET)
        return len(reader.read(reader.size)) == reader.size


def test_a_backup_that_is_killed_anywhere_leaves_no_half_of_one(host: Hosts, file: Path) -> None:
    old, restored = host("old").lived(), host("new")
    (folder := file.parent / "media").mkdir()
    to, writes = folder / "backup", 0
    while True:
        try:
            with killed_after(writes):
                old.back_up(to, force=True)
        except Killed:
            assert not to.exists() or whole(to), f"after {writes} writes"
            writes += 1
            continue
        break
    assert writes > 8
    restored.restore(to)
    old.back_up(to, force=True)
    assert not (old.data / ".backup").exists(), "what killed ones left in plain is gone with the next"


def test_a_restore_that_is_killed_anywhere_is_nothing_or_all(host: Hosts, file: Path) -> None:
    """Before the next `serve` opens anything it does what is left to do; a second `restore` does all."""
    host("old").lived().back_up(file)
    seen, writes = set[frozenset[str]](), 0
    while True:
        new = host(f"new{writes}")
        try:
            with killed_after(writes):
                new.restore(file)
        except Killed:
            if new.data.exists():
                finish(new.settings)
            left = frozenset(new.files()) if new.data.exists() else frozenset()
            seen.add(left)
            assert left in (frozenset(), frozenset(FILES)), f"after {writes} writes"
            new.restore(file)
            assert set(new.files()) == set(FILES)
            writes += 1
            continue
        break
    assert writes > 8
    assert seen == {frozenset(), frozenset(FILES)}


def test_serve_completes_a_restore(host: Hosts, file: Path) -> None:
    about = host("old").lived().back_up(file)
    new, writes = host("new"), 0
    while not (new.data / ".restored").exists():
        with pytest.raises(Killed), killed_after(writes):
            new.restore(file)
        writes += 1
    assert new.files() == {}
    controller = wiring.build(new.settings)
    controller.stop()
    assert controller.service.info().family == about.family
