"""`--dependency` of Slurm in the controller's words. Pure."""

from __future__ import annotations

import re

from spotsurfer.slurm.options import Refused

KINDS = ("afterok", "afterany", "afternotok", "aftercorr")
PROBLEM = "sbatch: error: Batch job submission failed: Job dependency problem"
ID = re.compile(r"\d+(?:_\d+|_\*)?")


def read_dependency(text: str) -> tuple[str, ...]:
    """What must come before the job: "afterok:12" and its likes. Raises Refused, for alternatives (`?`) and `after:`, too."""
    found = list[str]()
    for part in filter(None, text.split(",")):
        kind, *ids = part.split(":")
        if kind == "singleton" and not ids:
            found.append(kind)
        elif kind in KINDS and ids and all(ID.fullmatch(one) for one in ids):
            found += [f"{kind}:{one.removesuffix('_*')}" for one in ids]
        else:
            raise Refused(PROBLEM)
    return tuple(found)
