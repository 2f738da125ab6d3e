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
from dataclasses import dataclass, field
from pathlib import Path

from spotsurfer_wire import json_codec, object_keys
from spotsurfer_wire.home_tree import HomeChanges
from spotsurfer_wire.json_codec import ProtocolError
from spotsurfer_wire.messages import Head
from spotsurfer_wire.store.port import FileStore, StoreError
from sqlalchemy import Engine

from spotsurfer.controller.jobs.submission import spooled, store_trouble
from spotsurfer.model.errors import Conflict, InputMissing, JobFileError, NotFound, StoreUnwritable
from spotsurfer.model.job import ENDED, OVER, Job
from spotsurfer.state import jobs as rows

SHA256 = re.compile(r"[0-9a-f]{64}")
SCOPES_KEPT = 1000


@dataclass
class HomeFolders:
    """May be called from several threads."""

    engine: Engine
    store: FileStore
    spool_dir: Path
    _known: OrderedDict[str, set[str]] = field(default_factory=OrderedDict)  # by scope: digests in the store
    _lock: threading.Lock = field(default_factory=threading.Lock)

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
