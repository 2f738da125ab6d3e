"""A controller's data folder to be lost, and kills at any moment."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from support.builders import NOW, a_job

from spotsurfer.config.settings import Settings
from spotsurfer.ports.service import Moment
from spotsurfer.recovery import backup
from spotsurfer.recovery.backup import About, back_up
from spotsurfer.recovery.restore import Restored, restore
from spotsurfer.state import jobs as rows
from spotsurfer.state import timeline
from spotsurfer.state.db import new_family, open_database
from spotsurfer.store import master_key
from spotsurfer.store.leadership import claim_store
from spotsurfer.store.open_store import open_for
from spotsurfer.web.app import load_token

SECRET = "correct horse battery"
FILES = ("state.db", "store.key", "token")


@dataclass(frozen=True)
class Host:
    """A host's configuration. All hosts of a test have the same store."""

    path: Path
    store: Path
    controller: dict[str, str]
    more: dict[str, Any]

    @property
    def data(self) -> Path:
        return self.path / "data"

    @property
    def settings(self) -> Settings:
        controller = {"data_dir": str(self.data), **self.controller}
        return Settings(controller=controller, store={"url": self.store.as_uri(), **self.more})  # type: ignore[arg-type]

    def lived(self) -> Host:
        """A controller ran here, with one job; the store is its family's."""
        engine = open_database(self.data / "state.db")
        family = new_family(engine)
        with engine.begin() as c:
            rows.add_job(c, a_job())
            timeline.add(c, Moment(NOW, a_job().id, None, "submitted", "job: work"))
        engine.dispose()
        load_token(self.settings.token_path)
        key = master_key.load(self.settings.key_path)
        claim_store(open_for(self.settings), family, "here", key.fingerprint)
        return self

    def back_up(self, to: Path, force: bool = False) -> About:
        return back_up(self.settings, to, SECRET, NOW, between, force)

    def restore(self, file: Path, secret: str = SECRET) -> Restored:
        return restore(self.settings, file, secret, between)

    def files(self) -> dict[str, bytes]:
        """What is in the data folder, but for the lock."""
        return {p.name: p.read_bytes() for p in self.data.iterdir() if p.is_file() and p.name != "controller.lock"}


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Host]:
    """Makes hosts by name."""
    monkeypatch.setattr(backup, "SCRYPT_LOG_N", 1)  # what makes guesses dear would make these tests slow
    (tmp_path / "store").mkdir()

    def make(name: str, controller: dict[str, str] | None = None, **store: Any) -> Host:
        (tmp_path / name).mkdir()
        return Host(tmp_path / name, tmp_path / "store", controller or {}, store)

    return make


# ---------------------------------------------------------------- kills

WRITES = {
    "progress",
    "os.rename",
    "os.remove",
    "os.mkdir",
    "os.rmdir",
    "os.link",
    "os.chmod",
    "shutil.rmtree",
    "sqlite3.connect",
}


class Killed(BaseException):
    """The process is dead: nothing that it would still do happens."""


class _Killer:
    """Counts what changes files; from a chosen one on nothing of it happens any more, as after a kill."""

    def __init__(self) -> None:
        self.left: int | None = None  # None = nobody is killed
        self.seen = 0
        self._installed = False

    def hook(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self.left is None or not (event in WRITES or (event == "open" and _writes(arguments))):
            return
        self.seen += 1
        if self.seen > self.left:
            raise Killed

    def install(self) -> None:
        if not self._installed:  # it can't be taken away again
            sys.addaudithook(self.hook)
            self._installed = True


def _writes(arguments: tuple[Any, ...]) -> bool:
    flags = arguments[2]
    return isinstance(flags, int) and bool(flags & 0o3)


_KILLER = _Killer()


def between(what: str, at: int, of: int) -> None:
    """Progress is told while files are half written."""
    _KILLER.hook("progress", ())


@contextmanager
def killed_after(writes: int) -> Iterator[_Killer]:
    """Whoever runs inside is killed before the next write."""
    _KILLER.install()
    _KILLER.left, _KILLER.seen = writes, 0
    try:
        yield _KILLER
    finally:
        _KILLER.left = None
