"""Records of boxes on disk, from which any process can tell the fate of a box after any crash.

    <data_dir>/local/epoch                  when the scenario began
    <data_dir>/local/gateway.secret         makes the keys with which jobs that share a box reach the store
    <data_dir>/local/launch.lock            held while a launch is decided
    <data_dir>/local/spot_launches          the number of spot launches
    <data_dir>/local/reclaims/<box>         seconds since the epoch at which its reclaim was announced
    <data_dir>/local/boxes/<box>/           a box: box.json (never changes), state.json, alive (locked while a supervisor
                                            lives), terminate (an order), control (socket), console.log, supervisor.log
    <data_dir>/local/ended/<box>/           the same, an hour after its end: no longer listed, still found by its token

A box's folder appears complete, by rename, with its lock already held by the launcher, who passes the lock on to the
supervisor. So no process cares for a folder with a free lock any more, whatever died and when.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from pathlib import Path

from spotsurfer.model.market import Market, Pool
from spotsurfer.ports.provider import KEPT_TAG
from spotsurfer_providers.local.box.scenario import BoxFacts


class BoxState(StrEnum):
    """The state of a box."""

    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    ENDED = "ended"


@dataclass(frozen=True, slots=True)
class BoxRecord:
    """The parameters of a box, which never change. Sizes in bytes, rates in bits per second."""

    id: str
    token: str
    family: str
    region: str
    zone: str
    instance_type: str
    market: str
    tags: dict[str, str]
    user_data: str
    launched_at: str
    launched_seconds: float  # since the scenario's epoch
    spot_launch: int | None
    cpus: float
    memory_bytes: int
    disk_bytes: int
    link_bits_per_second: int | None
    notice_seconds: float
    store_root: str | None  # the folder behind the gateway
    scenario: str | None
    disk_kind: str = ""  # its file system; "" = a usual one
    clock_offset_seconds: int = 0  # its monotonic clock against the host's
    sockets: dict[str, str] = field(default_factory=dict)  # ports of the cloud's side that lead to Unix sockets of the host
    buckets: dict[str, str] = field(default_factory=dict)  # folders of the host that its gateway serves read-only
    metadata: dict[str, str] = field(default_factory=dict)  # additions to and replacements of its metadata service's content
    metadata_dialect: str = "aws"  # of its metadata service: "aws"; a test cloud may want another
    root: str = ""  # the tree that is its root; "" = the host's
    folders: dict[str, str] = field(default_factory=dict)  # folders of the host that it may write to, by name
    runtimes: str = ""  # folder of runtimes that it finds in place; "" = it fetches them

    @property
    def pool(self) -> Pool:
        """Its pool."""
        return Pool("local", self.region, self.zone, self.instance_type)

    @property
    def facts(self) -> BoxFacts:
        """The facts that its fate depends on."""
        return BoxFacts(self.pool, Market(self.market), self.launched_seconds, self.spot_launch)


@dataclass(frozen=True, slots=True)
class BoxStatus:
    """The fate of a box. `reason` is for people; `reclaimed`: the scenario or an order took it."""

    state: BoxState
    reason: str = ""
    reclaimed: bool = False
    ended_at: str | None = None
    pid: int | None = None  # of the box's process 1, seen from the host


class BoxFolder:
    """The files of one box."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.id = path.name

    def record(self) -> BoxRecord:
        """Its parameters. Raises OSError or ValueError."""
        raw = json.loads((self.path / "box.json").read_text(encoding="utf-8"))
        return BoxRecord(**raw)

    def status(self) -> BoxStatus:
        """Its last written status; a box without one is starting."""
        try:
            raw = json.loads((self.path / "state.json").read_text(encoding="utf-8"))
        except FileNotFoundError:
            return BoxStatus(BoxState.STARTING)
        return BoxStatus(**{**raw, "state": BoxState(raw["state"])})

    def write_status(self, status: BoxStatus) -> None:
        """Replace the status, at once and durably."""
        write_atomically(self.path / "state.json", json.dumps(dataclasses.asdict(status)))

    def ordered_to_end(self) -> bool:
        """Whether its end was ordered."""
        return (self.path / "terminate").exists()

    def order_end(self) -> None:
        """Leave the order where the supervisor, or the cleanup after it, finds it."""
        with contextlib.suppress(FileNotFoundError):
            (self.path / "terminate").touch()

    @contextmanager
    def if_abandoned(self) -> Iterator[bool]:
        """True inside the block if neither launcher nor supervisor lives; no other process cleans it up at the same time."""
        try:
            fd = os.open(self.path / "alive", os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            yield self.path.exists()  # half-made or half-removed
            return
        try:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield False
                return
            yield True
        finally:
            os.close(fd)


class Home:
    """The provider's part of a data folder."""

    def __init__(self, data_dir: Path) -> None:
        self.path = data_dir.resolve() / "local"
        self.boxes = self.path / "boxes"
        self.ended = self.path / "ended"
        self.reclaims = self.path / "reclaims"

    @property
    def mark(self) -> str:
        """Eight characters that tell the control groups of this data folder from those of others on the same host."""
        return hashlib.sha256(os.fsencode(self.path)).hexdigest()[:8]

    def group_name(self, box: str) -> str:
        """Name of a box's control group."""
        return f"{box}-{self.mark}"

    def make(self) -> None:
        """Make the folders; only root may look inside. Raises OSError."""
        for folder in (self.path, self.boxes, self.ended, self.reclaims):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    def folders(self) -> list[BoxFolder]:
        """All listed boxes. Raises OSError."""
        if not self.boxes.exists():
            return []
        return [BoxFolder(p) for p in sorted(self.boxes.iterdir()) if not p.name.startswith(".")]

    def folder(self, box: str) -> BoxFolder:
        """The folder of a box, listed or older; it may not exist."""
        old = self.ended / box
        return BoxFolder(old if old.exists() else self.boxes / box)

    def epoch(self, now: datetime) -> datetime:
        """The beginning of the scenario: the first time that any process asks."""
        file = self.path / "epoch"
        try:
            return datetime.fromisoformat(file.read_text().strip())
        except FileNotFoundError:
            fresh = self.path / f".epoch-{os.getpid()}"
            fresh.write_text(now.isoformat())
            with contextlib.suppress(FileExistsError):
                os.link(fresh, file)
            fresh.unlink()
            return datetime.fromisoformat(file.read_text().strip())

    def gateway_secret(self) -> bytes:
        """What the keys of boxes that are kept are made with: made by the first process that asks."""
        file = self.path / "gateway.secret"
        if not file.exists():
            self.make()
            fresh = self.path / f".gateway-{os.getpid()}"
            fresh.touch(0o600)
            fresh.write_bytes(os.urandom(32))
            with contextlib.suppress(FileExistsError):
                os.link(fresh, file)
            fresh.unlink()
        return file.read_bytes()

    @contextmanager
    def launching(self) -> Iterator[None]:
        """One launch at a time, in all processes."""
        with (self.path / "launch.lock").open("a") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def next_spot_launch(self) -> int:
        """The number of this spot launch, from 1; only while `launching`."""
        file = self.path / "spot_launches"
        number = 1 + (int(file.read_text()) if file.exists() else 0)
        write_atomically(file, str(number))
        return number

    def note_reclaim(self, box: str, seconds: float) -> None:
        """Record when a box's reclaim was announced; the first time counts."""
        self.reclaims.mkdir(exist_ok=True)
        file = self.reclaims / box
        if not file.exists():
            write_atomically(file, repr(seconds))

    def reclaim_seconds(self) -> list[float]:
        """The announcement times of all reclaims so far."""
        if not self.reclaims.exists():
            return []
        return sorted(float(p.read_text()) for p in self.reclaims.iterdir() if not p.name.startswith("."))


def write_atomically(path: Path, text: str) -> None:
    """Replace a small file at once and durably."""
    fresh = path.with_name(f".{path.name}-{os.getpid()}")
    with fresh.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path)


def job_and_attempt(tags: Mapping[str, str]) -> tuple[str, int] | None:
    """The job and attempt that a box works for, from its tags; None for a box without a job."""
    job, attempt = tags.get("spotsurfer:job", ""), tags.get("spotsurfer:attempt", "")
    return (job, int(attempt)) if job and attempt.isdigit() else None


def is_kept(tags: Mapping[str, str]) -> bool:
    """Whether a box may get other jobs after its first one."""
    return tags.get(KEPT_TAG, "") == "yes"
