"""`python -m spotsurfer.home [--config FILE]`: the courier's process."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from spotsurfer.home import courier
from spotsurfer.home.book import Book
from spotsurfer.home.deliver import Pass
from spotsurfer.model.errors import SpotsurferError
from spotsurfer.web.client import connect

said: dict[str, str] = {}


def _tell(done: Pass) -> None:
    for one in done.home:
        for line in one.told:
            print(f"{one.job}: {line}", flush=True)
    for job, why in done.troubles.items():
        if said.get(job) != why:
            print(f"{job}: {why} It is tried again.", flush=True)
    said.update(done.troubles)


named = sys.argv[2] if sys.argv[1:2] == ["--config"] else None
try:
    courier.run(connect(Path(named) if named else None), Book(), time.sleep, _tell)
except SpotsurferError as e:
    sys.exit(str(e))
