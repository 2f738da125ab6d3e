"""What a machine must know and its user-data must not say: fetched once, kept on its own disk, gone from the store then.

Whoever may describe machines in an account may read their user-data, for as long as they run. So user-data carries a voucher
alone: a key of this one attempt, for one object in the store, which the controller removes as soon as the agent has reported.
From then on the voucher opens nothing.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from spotsurfer_agent import objectkeys, protocol
from spotsurfer_agent.access.handout import Handout, seal, unseal
from spotsurfer_agent.access.opening import role_options
from spotsurfer_agent.protocol import AgentConfig, ProtocolError
from spotsurfer_agent.store import StoreError, open_store

CONFIG, HOST_KEY = "agent.json", "host_key"  # in the agent's folder
REPORTED = "reported"  # likewise: its existence keeps the machine from ending itself (the controller's boot.sh)


def split(config: AgentConfig, voucher: bytes) -> tuple[AgentConfig, dict[str, str]]:
    """A configuration that says no secret, and what it leaves out."""
    kept = {"key": config.key, "access_secret": config.access_secret, "input_options": json.dumps(config.input_options)}
    return replace(config, key="", access_secret="", input_options={}, voucher=voucher.hex()), kept


def sealed(kept: Mapping[str, str], voucher: bytes, job: str, attempt: int) -> bytes:
    """The object that holds what was left out, and opens by the voucher of this attempt alone."""
    return seal(Handout(dict(kept), 0.0, ""), voucher, job, attempt)


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
    _write(folder / CONFIG, protocol.encode(whole))


def _is_here(config: AgentConfig, folder: Path) -> bool:
    try:
        there = protocol.decode(AgentConfig, (folder / CONFIG).read_bytes())
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
