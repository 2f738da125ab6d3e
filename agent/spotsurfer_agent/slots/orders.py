"""The agent of a free slot waits for its order: the configuration for one more job on this machine."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path

from spotsurfer_wire import json_codec, object_keys
from spotsurfer_wire.json_codec import ProtocolError
from spotsurfer_wire.messages import AgentConfig
from spotsurfer_wire.sealed_objects import BadHandout, unseal_order
from spotsurfer_wire.store.obstore import open_store
from spotsurfer_wire.store.port import ObjectStore, StoreError

from spotsurfer_agent.store.credentials import write_durably

log = logging.getLogger(__name__)
PATIENCE_SECONDS = 1.0  # between looks if the controller does not hurry


def wait_for(machine: AgentConfig, slot: int, path: Path, beat: Callable[[], None]) -> AgentConfig | None:
    """The configuration of this slot, which is then at `path` for later agents of it; None if nothing comes in this slot."""
    store = open_store(machine.store_url, machine.store_options)
    while True:
        beat()
        try:
            found, config = _look(store, machine, slot)
        except (StoreError, BadHandout, ProtocolError) as e:
            log.warning("the order for slot %d can't be had: %s", slot, e)
            found, config = False, None
        if config is not None:
            write_durably(path, json_codec.encode(config))
        if found:
            return config
        time.sleep(min(machine.hurry_seconds, PATIENCE_SECONDS))


def _look(store: ObjectStore, machine: AgentConfig, slot: int) -> tuple[bool, AgentConfig | None]:
    data = store.get(object_keys.order_slot_key(machine.machine, slot))
    if data is None:
        return False, None
    text = unseal_order(data, bytes.fromhex(machine.machine_secret), machine.machine, slot)
    return True, json_codec.decode(AgentConfig, text) if text else None
