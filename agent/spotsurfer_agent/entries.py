"""Head entries that an agent writes, each made of the newest one before it. Number, nonce and time are set as it is written."""

from __future__ import annotations

import dataclasses

from spotsurfer_agent.manifest import Manifest
from spotsurfer_agent.protocol import Done, Head, HeadKind


def committed(base: Head, image: Manifest, final: bool) -> Head:
    """A checkpoint is the job's newest; `final`: nothing of this attempt runs after it."""
    return Head(
        number=0,
        kind=HeadKind.COMMIT,
        epoch=image.epoch,
        checkpoint=image.id,
        sequence=max(base.sequence, image.sequence),
        final=final,
        done=None,
        cpu_seconds=image.cpu_seconds,
        nonce="",
        at="",
    )


def renewed(base: Head) -> Head:
    """Nothing changes but that decisions made before can't land any more."""
    return dataclasses.replace(base, kind=HeadKind.RENEW)


def unsaved(base: Head) -> Head:
    """This attempt is over, and nothing was saved."""
    return Head(0, HeadKind.COMMIT, base.epoch, base.checkpoint, base.sequence, True, None, base.cpu_seconds, "", "")


def closed(base: Head, done: Done, cpu_seconds: float) -> Head:
    """The job has ended."""
    return Head(0, HeadKind.DONE, base.epoch, base.checkpoint, base.sequence, base.final, done, cpu_seconds, "", "")
