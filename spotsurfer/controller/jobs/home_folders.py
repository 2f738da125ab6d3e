"""Folders of submit hosts that jobs work in: what their owners send, and what comes home of an ended job.

Files are kept by their SHA-256, apart for each owner and folder. So the next job of the same folder sends nothing again, and
nobody learns from a digest what another one has. The list of a folder is known from one listing of the store, and kept.
"""

from __future__ import annotations

import hashlib
import re
import threading
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path, PurePosixPath

import structlog
from spotsurfer_wire import json_codec, object_keys
from spotsurfer_wire.home_tree import FILE, HomeChanges, HomeTree, followed
from spotsurfer_wire.json_codec import ProtocolError
from spotsurfer_wire.messages import Head
from spotsurfer_wire.store.port import CopyingStore, StoreError
from sqlalchemy import Engine

from spotsurfer.controller.jobs.submission import spooled, store_trouble
from spotsurfer.model.errors import Conflict, InputMissing, JobFileError, NotFound, StoreUnwritable
from spotsurfer.model.job import ENDED, OVER, Job, Wish
from spotsurfer.state import jobs as rows

log = structlog.get_logger(room="homes")
SHA256 = re.compile(r"[0-9a-f]{64}")
SCOPES_KEPT = 1000
READERS = 16


@dataclass
class HomeFolders:
    """May be called from several threads."""

    engine: Engine
    store: CopyingStore
    spool_dir: Path
    shared: tuple[str, ...] = ()  # paths that submit hosts and machines have in common
    _known: OrderedDict[str, set[str]] = field(default_factory=OrderedDict)  # by scope: digests in the store
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def shares_home(self, home: str) -> bool:
        """Whether the folder lies on a file system that machines see, too: nothing of it is sent."""
        return any(PurePosixPath(home).is_relative_to(path) for path in self.shared)

    def home_lacks(self, home: str, digests: Iterable[str], owner: str = "") -> Sequence[str]:
        """Which of these files, or trees, of the owner's folder are not in the store yet."""
        known = self._of(object_keys.home_scope(owner, home))
        return sorted({d for d in digests if d not in known})

    def upload_home(self, home: str, sha256: str, data: Iterator[bytes], size: int, owner: str = "") -> None:
        """Store one file, or a tree after all its files. Raises InputMissing if the bytes are not those of the digest."""
        if not SHA256.fullmatch(sha256):
            raise JobFileError(f"{sha256[:100]!r} is no SHA-256")
        scope, digest = object_keys.home_scope(owner, home), hashlib.sha256()

        def passing() -> Iterator[bytes]:
            for piece in data:
                digest.update(piece)
                yield piece

        with spooled(self.spool_dir, f"a file of {home}", passing(), size) as spool:
            if digest.hexdigest() != sha256:
                raise InputMissing(f"a file of {home} changed while it was read: submit again when it is at rest")
            try:
                self.store.put_file(object_keys.home_file_key(scope, sha256), Path(spool.name))
            except StoreError as e:
                raise store_trouble(e) from e
        self._of(scope).add(sha256)

    def _of(self, scope: str) -> set[str]:
        with self._lock:
            if scope not in self._known:
                try:
                    found = self.store.list(object_keys.home_prefix(scope))
                except StoreError as e:
                    raise store_trouble(e) from e
                self._known[scope] = {x.key.rpartition("/")[2] for x in found}
            self._known.move_to_end(scope)
            while len(self._known) > SCOPES_KEPT:
                self._known.popitem(last=False)
            return self._known[scope]

    def changes(self, job: Job, entries: Sequence[Head]) -> HomeChanges:
        """What comes home of an ended job. Raises Conflict while it has not ended, or its last machine still sends."""
        attempt = _last(job, entries)
        try:
            data = self.store.get(object_keys.home_changes_key(job.id, attempt)) if attempt else None
            if data is not None:
                return json_codec.decode(HomeChanges, data)
        except (StoreError, ProtocolError) as e:
            raise StoreUnwritable(f"what comes home of {job.id} can't be read: {e}") from e
        with self.engine.connect() as connection:
            mine = [a for a in rows.attempts(connection, [job.id])[job.id] if a.number == attempt]
        if any(a.state not in OVER for a in mine):
            raise Conflict(f"the machine of {job.id} still sends what comes home: ask again")
        return HomeChanges()

    def tidy(self, now: datetime, kept: timedelta) -> None:
        """Remove what was sent of folders in which no job works, nor has for so long, and nobody sent anything for so long.

        What comes home is kept with the job. Raises StoreError.
        """
        with self.engine.connect() as connection:
            used = {object_keys.home_scope(owner, home) for owner, home in rows.homes_since(connection, now - kept)}
        for scope in self.store.folders(object_keys.homes_prefix()):
            found = self.store.list(object_keys.home_prefix(scope)) if scope not in used else []
            if found and all(x.modified is not None and x.modified < (now - kept).timestamp() for x in found):
                with self._lock:
                    self._known.pop(scope, None)
                self.store.delete(x.key for x in found)
                log.info("homes.removed", scope=scope, objects=len(found))

    def settle(self, job: Job, tree: str, *, began: bool) -> None:
        """Let a held job begin with another tree. Raises Conflict if it began or has one already, InputMissing."""
        if began or job.wish is not Wish.HOLD or not job.spec.home:
            raise Conflict(f"job {job.id} is not held before its first start in a folder: its folder is as it was sent")
        if tree not in self._of(object_keys.home_scope(job.owner, job.spec.home)):
            raise InputMissing(f"the list of the folder {job.spec.home} was not sent")
        key = object_keys.home_tree_key(job.id)
        try:
            if not self.store.create(key, tree.encode()) and self.store.get(key) != tree.encode():
                raise Conflict(f"the folder of job {job.id} was settled already")
        except StoreError as e:
            raise store_trouble(e) from e

    def follow(self, job: Job) -> None:
        """Before its first start: what jobs of the same folder made since it was submitted becomes part of its tree.

        For a job that had to wait for others: on a shared file system it would find what they wrote. Raises StoreError,
        ProtocolError.
        """
        spec, key = job.spec, object_keys.home_tree_key(job.id)
        if not (spec.home and spec.after) or self.store.get_range(key, 0, 1) is not None:
            return
        with self.engine.connect() as connection:
            others = rows.ended_in_home(connection, job)
            last = {o.id: max((a.number for a in rows.attempts(connection, [o.id])[o.id]), default=0) for o in others}
        scope = object_keys.home_scope(job.owner, spec.home)
        with ThreadPoolExecutor(READERS) as pool:
            lists = list(pool.map(lambda o: self.store.get(object_keys.home_changes_key(o.id, last[o.id])), others))
            tree = self._tree(scope, spec.home_tree)
            new: dict[str, str] = {}
            for other, data in zip(others, lists, strict=True):
                if data is not None:
                    changes = json_codec.decode(HomeChanges, data)
                    tree = followed(tree, changes)
                    results = {c.now.sha256 for c in changes.changes if c.now.kind == FILE}
                    new |= {d: object_keys.home_result_key(other.id, last[other.id], d) for d in results}
            lacks = {e.sha256 for e in tree.entries if e.kind == FILE} - self._of(scope)
            list(pool.map(lambda d: self.store.copy(new[d], object_keys.home_file_key(scope, d)), lacks))
        self._of(scope).update(lacks)
        data = json_codec.encode(tree)
        name = hashlib.sha256(data).hexdigest()
        self.store.put(object_keys.home_file_key(scope, name), data)
        self.store.create(key, name.encode())

    def _tree(self, scope: str, name: str) -> HomeTree:
        data = self.store.get(object_keys.home_file_key(scope, name)) if name else None
        return HomeTree() if data is None else json_codec.decode(HomeTree, data)

    def result_key(self, job: Job, entries: Sequence[Head], sha256: str) -> str:
        """Key of a file of that list. Raises NotFound, Conflict."""
        if not any(c.now.sha256 == sha256 for c in self.changes(job, entries).changes):
            raise NotFound(f"nothing with the SHA-256 {sha256[:100]!r} comes home of {job.id}")
        return object_keys.home_result_key(job.id, _last(job, entries), sha256)


def _last(job: Job, entries: Sequence[Head]) -> int:
    """The attempt that ended the job, or had it when it was ended; 0 = it never ran. Raises Conflict."""
    if not job.spec.home:
        raise Conflict(f"job {job.id} works in no folder of the submit host: nothing comes home")
    if job.state not in ENDED:
        raise Conflict(f"job {job.id} has not ended: what it made comes home when it does")
    return entries[-1].epoch if entries else 0
