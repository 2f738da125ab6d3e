"""A controller and machines for folders of submit hosts, played in memory: the real agent's and controller's parts between a
user's folder and a job's scratch, and a client that can be cut off.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast
from urllib.parse import parse_qs, urlsplit

from spotsurfer_agent.files import home_folder
from spotsurfer_wire import object_keys
from spotsurfer_wire.home_tree import HomeChanges
from spotsurfer_wire.json_codec import decode, plain
from spotsurfer_wire.messages import Spec
from support.dict_store import DictStore

from spotsurfer.controller.jobs.home_folders import HomeFolders
from spotsurfer.home import bring, expect
from spotsurfer.home.book import Book
from spotsurfer.model.errors import Conflict, NotFound
from spotsurfer.model.job import Job, JobId, JobSpec, JobState, Wish
from spotsurfer.web.client import Client

OWNER = "ada"
Json = dict[str, Any]
Work = Callable[[Path], None]  # what a job does in its folder


@dataclass
class HomeWorld:
    """`path`: for everything. Call `before` to fail requests; it hears of each one."""

    path: Path
    store: DictStore = field(default_factory=DictStore)
    jobs: dict[str, Json] = field(default_factory=dict)
    logs: dict[str, list[tuple[str, bytes]]] = field(default_factory=dict)
    before: Callable[[str], None] = lambda _: None
    place: str = "played"
    config: Path | None = None

    def __post_init__(self) -> None:
        self.home = self.path / "wf"
        self.home.mkdir()
        (self.path / "state").mkdir()
        self.homes = HomeFolders(cast(Any, None), self.store, self.path / "spool")
        self.sent: list[str] = []
        self.settled: set[str] = set()

    @property
    def client(self) -> Client:
        return cast(Client, self)

    def book(self) -> Book:
        return Book(self.path / "state")

    # ---- jobs

    def submit(self, job: str, **given: Any) -> JobSpec:
        """A job in the folder, as a client submits it."""
        own = JobSpec(job, ("work",), home=str(self.home), **given)
        spec = bring(self.client, own, book=self.book())
        self.jobs[job] = {"id": job, "state": "active", "spec": spec, "attempts": [{"granted_at": "then"}]}
        expect(self.client, [(spec, {"id": job, "number": 7})], book=self.book(), start=False)
        return spec

    def run(self, job: str, work: Work) -> None:
        """Its machine: the folder is laid out, the work is done, and what changed is sent home."""
        spec = self.wire(job)
        scratch = self.path / f"scratch-{job}"
        home_folder.place(self.store, spec, str(scratch))
        work(scratch / "work")
        home_folder.publish(self.store, spec, 1, str(scratch))
        self.jobs[job]["state"] = "succeeded"

    def wire(self, job: str) -> Spec:
        own: JobSpec = self.jobs[job]["spec"]
        scope = object_keys.home_scope(OWNER, own.home)
        inputs = dict.fromkeys(own.inputs, 1)
        return Spec(
            job,
            ["work"],
            folder=own.folder,
            inputs=inputs,
            home=own.home,
            home_scope=scope,
            home_tree=own.home_tree,
            home_exclude=list(own.home_exclude),
        )

    def print(self, job: str, stream: str, text: str) -> None:
        self.logs.setdefault(job, []).append((stream, text.encode()))

    # ---- the client

    def get(self, path: str, **_: object) -> Json:
        self.before(f"GET {path}")
        if path == "/v1/brief":
            return {"jobs": [{"id": j, "state": v["state"]} for j, v in self.jobs.items()]}
        job, *rest = path.split("/")[3:]
        if job not in self.jobs:
            raise NotFound(f"no job {job}")
        if rest == ["home"]:
            data = self.store.get(object_keys.home_changes_key(job, 1))
            if data is None:
                raise Conflict("its machine still sends")
            return plain(decode(HomeChanges, data))
        return self.jobs[job]

    def post(self, path: str, body: Json) -> Json:
        self.before(f"POST {path}")
        if path.endswith("/settle"):
            job = path.split("/")[3]
            held = Job(
                JobId(job),
                self.jobs[job]["spec"],
                JobState.QUEUED,
                1,
                datetime(2026, 1, 1, tzinfo=UTC),
                wish=Wish.HOLD,
                owner=OWNER,
            )
            self.homes.settle(held, body["tree"], began=False)
            self.settled.add(job)
            return {"job": job}
        lacks = self.homes.home_lacks(body["home"], body["digests"], OWNER)
        return {"lacks": lacks, "shared": self.homes.shares_home(body["home"])}

    def upload(self, path: str, pieces: Iterator[bytes], size: int) -> None:
        self.before(f"PUT {path}")
        query = parse_qs(urlsplit(path).query)
        self.homes.upload_home(query["home"][0], query["sha256"][0], pieces, size, OWNER)
        self.sent.append(path)

    def framed(self, path: str, **place: int) -> tuple[list[tuple[Json, bytes]], Json]:
        self.before(f"GET {path}")
        at = {"out": 0, "err": 0, "times": 0, **place}
        parts = []
        for stream, data in self.logs.get(path.split("/")[3], [])[at["times"] :]:
            at = {**at, stream: at[stream] + len(data), "times": at["times"] + 1}
            parts.append(({"stream": stream}, data))
        return parts, {"next": at, "ended": False}

    def download(self, path: str) -> Iterator[bytes]:
        self.before(f"GET {path}")
        _, _, _, job, _, sha256 = path.split("/")
        data = self.store.get(object_keys.home_result_key(job, 1, sha256))
        assert data is not None
        yield data[: len(data) // 2]
        self.before(f"half of {path}")
        yield data[len(data) // 2 :]


def shown(folder: Path) -> dict[str, object]:
    """What a folder holds: text of files, targets of links, None for folders; modes beside them."""
    found: dict[str, object] = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.is_symlink():
            found[name] = f"-> {os.readlink(path)}"  # noqa: PTH115
        else:
            file = path.is_file()
            found[name] = (path.read_bytes().decode("latin1"), path.stat().st_mode & 0o777) if file else None
    return found


def retold(world: HomeWorld, job: str, **given: Any) -> None:
    """Change what the controller says of a job."""
    world.jobs[job] = {**world.jobs[job], **given}


__all__ = ["OWNER", "HomeWorld", "replace", "retold", "shown"]
