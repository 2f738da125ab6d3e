"""All that a job needs on its machine beside root and command: shared file systems, then fetched inputs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from spotsurfer_agent import files, objectkeys
from spotsurfer_agent.inputs import shares
from spotsurfer_agent.inputs.cache import Cache
from spotsurfer_agent.inputs.delivery import Delivery
from spotsurfer_agent.inputs.ownstore import OwnStore
from spotsurfer_agent.inputs.shares import Shares
from spotsurfer_agent.inputs.sources import Sources
from spotsurfer_agent.protocol import AgentConfig, Spec
from spotsurfer_agent.storeport import FileStore, Rights, StoreUnreachable

FOLDER = "inputs-cache"  # in the agent's folder


@dataclass
class Goods:
    """Of one agent's folder."""

    delivery: Delivery
    shares: Shares

    @staticmethod
    def of(base: Path, config: AgentConfig, rights: Rights | None = None) -> Goods:
        """As the agent's configuration says; `rights` are those that were handed out."""
        folder = Path(config.input_cache) if config.input_cache else base / FOLDER
        cache = Cache(folder, config.input_cache_bytes)
        own = OwnStore.of(config.store_url, config.store_options)
        return Goods(Delivery(base, cache, Sources(_usual(config) | config.input_options, rights, own)), Shares(base))

    def ready(self, spec: Spec, store: FileStore, scratch: str, halt: Callable[[], None], tell: Callable[[str], None]) -> None:
        """Everything is here, as it was at the job's first start; nothing of it runs yet.

        Raises FilesError, and StoreError where somebody does not answer; what `halt` raises.
        """
        self.shares.ready(spec, scratch)
        self.delivery.ready(spec, store, halt, tell)

    def ahead(self, spec: Spec, store: FileStore, scratch: str, halt: Callable[[], None]) -> None:
        """Bring what a job needs, before it comes; of inputs of a job that never ran, only whether they can be had.

        Raises FilesError, StoreError where somebody does not answer, and what `halt` raises.
        """
        pinned = bool(spec.fetches) and store.get(objectkeys.inputs_key(spec.job)) is not None
        try:
            self.shares.ready(spec, scratch)
            if pinned or not spec.fetches:
                self.delivery.ready(spec, store, halt)
            else:
                self.delivery.look(spec)  # whoever starts it says what its inputs are
        except files.FilesError as e:
            if e.kind == shares.PASSING:
                raise StoreUnreachable(str(e)) from e
            raise

    def drop(self) -> None:
        """Nothing of the job runs here any more."""
        self.shares.drop()
        self.delivery.drop()


def _usual(config: AgentConfig) -> dict[str, dict[str, str]]:
    """Where nothing is said, buckets lie where the store does."""
    region = config.store_options.get("region", "")
    own = "endpoint" in config.store_options  # a service of somebody's own: its region says nothing of others
    return {"s3:": {"region": region}} if region and not own and config.store_url.startswith("s3://") else {}
