"""Which GPUs a job's checkpoint was made on, as its manifest says."""

from __future__ import annotations

from collections.abc import Callable, Collection

from spotsurfer_agent import manifest
from spotsurfer_agent.chunks.keys import Keys
from spotsurfer_agent.coding import ProtocolError
from spotsurfer_agent.engines import gpufacts
from spotsurfer_agent.storeport import ObjectStore, StoreError

from spotsurfer.model.gpus import Gpus


class ImageGpus:
    """One manifest is read for each machine that a job was saved on: all its checkpoints of one machine say the same."""

    def __init__(self, store: ObjectStore, keys_of: Callable[[str], Keys]) -> None:
        """`keys_of`: the keys of a job's lineage."""
        self._store, self._keys_of = store, keys_of
        self._known: dict[tuple[str, str], Gpus | None] = {}

    def of(self, job: str, lineage: str, checkpoint: str | None) -> Gpus | None:
        """None: it was made without one, there is no checkpoint, or nobody can say now."""
        if checkpoint is None:
            return None
        key = job, checkpoint.partition("-")[0]
        if key not in self._known:
            try:
                data = manifest.stored(self._store, job, checkpoint) or b""
                facts = manifest.decode(data, self._keys_of(lineage or job), job, checkpoint).facts
            except (StoreError, ProtocolError):
                return None
            self._known[key] = _gpus(facts)
        return self._known[key]

    def keep(self, jobs: Collection[str]) -> None:
        """Forget all other jobs."""
        self._known = {key: gpus for key, gpus in self._known.items() if key[0] in jobs}


def _gpus(facts: dict[str, str]) -> Gpus | None:
    """Of an image that holds GPU memory."""
    if not gpufacts.processes_of(facts):
        return None
    count = facts.get(gpufacts.COUNT, "")
    return Gpus(facts.get(gpufacts.CHIP, ""), int(count) if count.isdecimal() else 0, driver=facts.get(gpufacts.DRIVER, ""))
