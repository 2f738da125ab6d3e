"""Partial outputs: the files that a running job has written so far, uploaded to the store by its machine on request.

Each request goes to one attempt only. If the job moves before the attempt has answered, the request is lost and the user is
asked to repeat it; the next machine does not upload files that may no longer be wanted.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from spotsurfer_wire import json_codec, object_keys
from spotsurfer_wire.head_log import HEAD_BYTES_MAX
from spotsurfer_wire.json_codec import ProtocolError
from spotsurfer_wire.messages import Partial
from spotsurfer_wire.store.port import FileStore, StoreError
from sqlalchemy import Engine

from spotsurfer.core.facts.attempt_view import holder_of
from spotsurfer.model.errors import Conflict, NotFound, StoreUnwritable
from spotsurfer.model.job import HOLDS, Job
from spotsurfer.ports.service import OutputFile, PartialSeen
from spotsurfer.state import jobs as rows
from spotsurfer.store.agent_reports import Reports
from spotsurfer.store.job_output import Output

LIST = re.compile(r"(\d+)-\d+/LIST")  # and not an output file of that name


class Partials:
    """The requests for partial outputs, and their results."""

    def __init__(self, engine: Engine, store: FileStore, reports: Reports) -> None:
        self._engine, self._store, self._output, self._reports = engine, store, Output(store), reports

    def seen(self, job: str, number: int) -> PartialSeen:
        """The state of a request. Raises NotFound, Conflict if it can't be answered any more, StoreUnwritable."""
        with self._engine.connect() as connection:
            row = rows.find_job(connection, job)
            attempts = rows.attempts(connection, [row.id])[row.id]
        if not 0 < number <= row.partials_asked:
            raise NotFound(f"job {row.id} has no request {number}; `spotsurfer outputs --partial {row.id}` makes one")
        holder = holder_of(attempts)
        asked = next((a for a in attempts if a.desired_partial >= number), holder)
        # Before the store: what a report names is there.
        heard = self._reports.heard(row.id, asked.number) if asked is not None else None
        report = heard.report if heard is not None else None
        found = self._list(row, number)
        if found is not None:
            files = [OutputFile(path, one.size, one.sha256) for path, one in sorted(found.files.items())]
            return PartialSeen(number, True, found.attempt, found.step, found.at, files, found.missing)
        again = f"`spotsurfer outputs --partial {row.id}` asks again"
        if asked is None or asked.state not in HOLDS:
            raise Conflict(f"job {row.id} left its machine before it uploaded what it had written; {again} when it runs")
        if report is not None and report.partial >= number:
            why = report.partial_error or "a newer request took the place of this one"
            raise Conflict(f"job {row.id}: {why}; {again}")
        return PartialSeen(number, False, asked.number, "", "", [], [])

    def _list(self, job: Job, number: int) -> Partial | None:
        prefix = object_keys.partials_prefix(job.id)
        try:
            names = [x.key.removeprefix(prefix) for x in self._store.list(prefix)]
            lists = sorted(name for name in names if (m := LIST.fullmatch(name)) and int(m[1]) == number)
            data = json_codec.read_bounded(self._store, prefix + lists[-1], HEAD_BYTES_MAX) if lists else None
            return json_codec.decode(Partial, data) if data is not None else None
        except (StoreError, ProtocolError) as e:
            raise StoreUnwritable(f"the outputs of {job.id} so far can't be read: {e}") from e

    def file(self, job: str, number: int, path: str) -> Iterator[bytes]:
        """One of these files, in pieces."""
        seen = self.seen(job, number)
        if path not in [f.path for f in seen.outputs]:
            raise NotFound(f"request {number} of {job} has no file {path!r}")
        with self._engine.connect() as connection:
            row = rows.find_job(connection, job)
        return self._output.fetched(object_keys.partial_prefix(row.id, number, seen.attempt) + path)
