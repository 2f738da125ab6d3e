"""`--dependency` of Slurm in the controller's words. Pure."""

from __future__ import annotations

import re

from spotsurfer.slurm.options import Refused

KINDS = ("after", "afterok", "afterany", "afternotok", "aftercorr")
PROBLEM = "sbatch: error: Batch job submission failed: Job dependency problem"
ID = re.compile(r"\d+(?:_\d+|_\*)?")


def read_dependency(text: str) -> tuple[str, ...]:
    """What must come before the job: "afterok:12" and its likes; a number alone is "afterany".

    Raises Refused, for alternatives (`?`) and times (`after:12+5`), too.
    """
    found = list[str]()
    for part in filter(None, text.split(",")):
        kind, *ids = (f"afterany:{part}" if ID.match(part) else part).split(":")
        if kind == "singleton" and not ids:
            found.append(kind)
        elif kind in KINDS and ids and all(ID.fullmatch(one) for one in ids):
            found += [f"{kind}:{one.removesuffix('_*')}" for one in ids]
        else:
            raise Refused(PROBLEM)
    return tuple(found)
