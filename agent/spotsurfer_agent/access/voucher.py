"""What a machine must know and its user-data must not say: fetched once, kept on its own disk, gone from the store then.

Whoever may describe machines in an account may read their user-data, for as long as they run. So user-data carries a voucher
alone: a key of this one attempt, for one object in the store, which the controller removes as soon as the agent has reported.
From then on the voucher opens nothing.
"""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

from spotsurfer_agent import coding, objectkeys
from spotsurfer_agent.access.handout import unseal
from spotsurfer_agent.access.opening import role_options
from spotsurfer_agent.access.withheld import CONFIG, HOST_KEY
from spotsurfer_agent.coding import ProtocolError
from spotsurfer_agent.protocol import AgentConfig
from spotsurfer_agent.store import open_store
from spotsurfer_agent.storeport import StoreError

REPORTED = "reported"  # likewise: its existence keeps the machine from ending itself (the controller's boot.sh)


def redeem(config: AgentConfig, folder: Path) -> None:
    """Fetch what user-data left out, with the machine's own role, and write it below `folder`, for root alone and durably.

    The configuration is written last: where that of this attempt is, everything is, and nothing is fetched. One of another
    attempt is of the machine whose disk this one's was made from: it goes first, with what else that machine left. Raises
    StoreError where the object can't be had (yet), BadHandout for one of another machine, OSError.
    """
    if _is_here(config, folder):
        return
    for name in (CONFIG, HOST_KEY, REPORTED):
        (folder / name).unlink(missing_ok=True)
    key = objectkeys.voucher_key(config.job, config.attempt)
    data = open_store(config.store_url, role_options(config.store_options, config.metadata_url)).get(key)
    if data is None:
        raise StoreError(f"{key} is not there (yet)")
    kept = unseal(data, bytes.fromhex(config.voucher), config.job, config.attempt).values
    options = json.loads(kept["input_options"])
    whole = replace(config, key=kept["key"], access_secret=kept["access_secret"], input_options=options, voucher="")
    if kept.get(HOST_KEY):
        _write(folder / HOST_KEY, kept[HOST_KEY].encode())
    _write(folder / CONFIG, coding.encode(whole))


def _is_here(config: AgentConfig, folder: Path) -> bool:
    try:
        there = coding.decode(AgentConfig, (folder / CONFIG).read_bytes())
    except (FileNotFoundError, ProtocolError):
        return False
    return (there.job, there.attempt) == (config.job, config.attempt)


def _write(path: Path, data: bytes) -> None:
    fresh = path.with_name(f"{path.name}.fresh")
    fresh.unlink(missing_ok=True)
    fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(fd, "wb") as f:
        f.write(data)
        f.flush()
        os.fsync(f.fileno())
    fresh.replace(path)
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
