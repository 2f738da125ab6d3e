"""What user-data must not say, sealed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace

from spotsurfer_agent.access.handout import Handout, seal
from spotsurfer_agent.protocol import AgentConfig

CONFIG, HOST_KEY = "agent.json", "host_key"  # in the agent's folder


def split(config: AgentConfig, voucher: bytes) -> tuple[AgentConfig, dict[str, str]]:
    """A configuration that says no secret, and what it leaves out."""
    kept = {"key": config.key, "access_secret": config.access_secret, "input_options": json.dumps(config.input_options)}
    return replace(config, key="", access_secret="", input_options={}, voucher=voucher.hex()), kept


def sealed(kept: Mapping[str, str], voucher: bytes, job: str, attempt: int) -> bytes:
    """The object that holds what was left out, and opens by the voucher of this attempt alone."""
    return seal(Handout(dict(kept), 0.0, ""), voucher, job, attempt)
