"""What a backup holds of a controller: the files that nobody can make again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spotsurfer.model.errors import DISK_FULL, ConfigError
from spotsurfer.settings import Settings

DATABASE, KEY, TOKEN = "state.db", "store.key", "token"
READ_BYTES = 1 << 20


def places(settings: Settings) -> dict[str, Path]:
    """Where this configuration has each file of a backup. In this order they are put there: with the last one all is done."""
    return {KEY: settings.key_path, TOKEN: settings.token_path, DATABASE: settings.controller.data_dir / DATABASE}


@contextmanager
def refusals_told() -> Iterator[None]:
    """ConfigError, with the remedy, if the system refuses what is done inside with one of the controller's files."""
    try:
        yield
    except OSError as e:
        if e.filename is None or e.errno in DISK_FULL:  # without a name it is about no file: of a pipe, say
            raise
        why = f"{e.filename} can't be used ({e.strerror})"
        raise ConfigError(f"{why}: call it as the user that the controller runs as, or as root.") from e


@dataclass(frozen=True, slots=True)
class Member:
    """One file of a backup."""

    name: str
    size: int  # bytes
    sha256: str


@dataclass(frozen=True, slots=True)
class About:
    """What a backup's header tells: it can be read without the passphrase, so no secret is in it."""

    made_at: str  # ISO time
    spotsurfer: str  # version that made it
    schema: str  # last migration of the database
    family: str  # of the controllers
    key: str  # fingerprint of store.key
    store_url: str
    jobs: int
    members: tuple[Member, ...]  # in the order of the content

    @classmethod
    def of(cls, raw: dict[str, Any]) -> About:
        """From the header, which is authentic. What a newer version of the same form adds is passed over."""
        members = tuple(Member(m["name"], m["size"], m["sha256"]) for m in raw["members"])
        return cls(**{k: raw[k] for k in cls.__dataclass_fields__ if k != "members"}, members=members)
