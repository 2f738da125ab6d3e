"""How many times longer than elsewhere tests wait: a guest of `make test-vm` emulates its processor."""

from __future__ import annotations

import os
import re

FACTOR = float(os.environ.get("SPOTSURFER_TESTS_PATIENCE", "1"))
# What a controller and its agents are given for one thing, and how often they look, by the names of their settings.
TIMES = ("boot_limit_seconds", "lease_seconds", "lease_margin_seconds", "last_report_seconds", "drain_margin_seconds")
LOOKS = ("tick_seconds", "offers_seconds", "poll_seconds", "report_seconds", "notice_seconds")


def patient(config: str, factor: float = FACTOR) -> str:
    """A configuration for a host that is so many times slower: looks at the usual rate would take a whole processor of it."""
    names = "|".join(TIMES + LOOKS)
    return re.sub(rf"(?m)^({names}) = ([\d.]+)$", lambda m: f"{m[1]} = {float(m[2]) * factor:g}", config)
