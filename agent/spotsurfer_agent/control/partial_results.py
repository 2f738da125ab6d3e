"""Uploads results of a running job when its user asks: beside everything else, and never in the way of a save.

They are read from the job's folder as it was at one moment (a snapshot), if the disk can do that; else file by file.
"""

from __future__ import annotations

import dataclasses
import logging
import re
from collections.abc import Callable
from pathlib import Path

from spotsurfer_wire import clock, json_codec, object_keys
from spotsurfer_wire.messages import Partial, Spec
from spotsurfer_wire.store.port import FileStore, StoreError

from spotsurfer_agent.control.mailbox import Mailbox
from spotsurfer_agent.control.state_file import StateFile, runs_of
from spotsurfer_agent.files import staging
from spotsurfer_agent.files.staging import FilesError
from spotsurfer_agent.ports.engine import Engine, EngineError, WorkloadState
from spotsurfer_agent.store.layers import RetryingStore

log = logging.getLogger(__name__)

NUMBERED = re.compile(r"[0-9]+-")
HAS_SOMETHING = (WorkloadState.RUNNING, WorkloadState.EXITED)


@dataclasses.dataclass
class Partials:
    """Deals with the newest request. `look` is called now and then, from a thread of its own."""

    job: str
    attempt: int
    store: FileStore
    engine: Engine
    mailbox: Mailbox
    state: StateFile
    leaving: Callable[[], bool]  # the final save has the link to itself

    def look(self) -> None:
        """Upload what there is now, if somebody asked for it since the last time."""
        mail, memory = self.mailbox.mail, self.state.memory
        wanted = mail.desired.partial if mail.desired is not None else 0
        if wanted <= memory.partial or mail.spec is None or not memory.began or self.leaving():
            return
        error = ""
        try:
            if self.engine.status().state not in HAS_SOMETHING:
                return
            self._upload(wanted, mail.spec)
        except (StoreError, FilesError, EngineError, OSError) as e:
            error = f"what the outputs are now could not be uploaded: {e}"
            log.warning("%s", error)
        self.state.update(partial=wanted, partial_error=error)

    def _upload(self, number: int, spec: Spec) -> None:
        store = RetryingStore(self.store)
        prefix = object_keys.partial_prefix(self.job, number, self.attempt)
        with self.engine.still() as still:
            copies = None if still.is_still else Path(still.path).parent  # the agent's own folder
            sent = staging.publish(store, spec, prefix, still.path, copies, self._check)
        steps = runs_of(self.state.memory)
        told = Partial(number, self.attempt, steps[-1].name if steps else "", clock.utc_text(), sent.files, sent.missing)
        store.create(object_keys.partial_key(self.job, number, self.attempt), json_codec.encode(told))
        self._forget_older(store, number)

    def _check(self) -> None:
        if self.leaving():
            raise FilesError("output", "the job is leaving its machine, and its final save comes first")

    def _forget_older(self, store: RetryingStore, number: int) -> None:
        """Keep only the newest. Results without a list are not offered, so lists go first."""
        prefix = object_keys.partials_prefix(self.job)
        ours = [x.key for x in store.list(prefix) if NUMBERED.match(x.key.removeprefix(prefix))]
        old = [key for key in ours if int(key.removeprefix(prefix).partition("-")[0]) < number]
        store.delete(sorted(old, key=lambda key: not key.endswith("/LIST")))
