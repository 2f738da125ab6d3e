"""What one job's processes get of its secrets: variables of their environment, and files in a memory of their own.

The files lie in a tmpfs of the job's own mount namespace, made anew at each start and before each restore and gone with its
last process: never on a disk, never in an image (a mount that is not the job's own is not dumped), the same everywhere.
"""

from __future__ import annotations

import base64
import os
from dataclasses import dataclass, field

from spotsurfer_agent import sealed
from spotsurfer_agent.chunks.keys import Keys
from spotsurfer_agent.protocol import Spec
from spotsurfer_agent.storeport import ObjectStore


@dataclass(frozen=True, slots=True)
class Bag:
    """The secrets of one job, opened. Never printed."""

    environment: dict[str, str] = field(default_factory=dict, repr=False)
    files: dict[str, str] = field(default_factory=dict, repr=False)  # name -> value in base64, as a launch plan has it


def fetch(store: ObjectStore, keys: Keys, spec: Spec) -> Bag:
    """Those that the specification names. Raises sealed.SecretsLost where one is missing, StoreError."""
    bag = Bag()
    found = sealed.fetch(store, keys, spec.job) if spec.secrets else {}
    for name, form in spec.secrets.items():
        if name not in found:
            raise sealed.SecretsLost(f"the secret {name} of {spec.job} is not in the store: submit the job again")
        if form == sealed.FILE:
            bag.files[name] = base64.b64encode(found[name]).decode()
        else:
            bag.environment[name] = os.fsdecode(found[name])
    return bag
