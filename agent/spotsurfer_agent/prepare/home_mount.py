"""The job's working folder under the path that it has on the submit host: a part of the scratch, mounted a second time.

A user's home folder is closed to other users on many machines, and the job is another user. So the folder that holds it is
covered by an empty one that anybody may enter; nothing of the machine's is missed there, because the job could not see it.
"""

from __future__ import annotations

from pathlib import Path, PurePosixPath

from spotsurfer_wire.messages import Spec

from spotsurfer_agent.files.home_folder import lies_on_share
from spotsurfer_agent.files.staging import WORK
from spotsurfer_agent.host import root_fs
from spotsurfer_agent.host.root_fs import Mount
from spotsurfer_agent.ports.engine import EngineError

COVER = "above-home"  # in the agent's folder of the job
# Folders whose part in the job is its scratch's: the mount point is made there.
OWN = {"/tmp": "tmp", "/var/tmp": "tmp"}  # noqa: S108


def mounts(spec: Spec, base: str) -> list[Mount]:
    """They depend only on the specification: every machine has the same."""
    if not spec.home or lies_on_share(spec):
        return []
    covered = _covered(spec.home)
    cover = [Mount(COVER, f"{base}/job/{COVER}", covered, True)] if covered else []
    return [*cover, Mount("home", f"{base}/job/scratch/{WORK}", spec.home)]


def make_points(spec: Spec, base: Path) -> None:
    """Make the mount points that are not in the scratch. Idempotent. Raises EngineError("refused")."""
    if not spec.home or lies_on_share(spec):
        return
    covered = _covered(spec.home)
    try:
        if covered:
            root_fs.make_folder(base / "job" / COVER)
            (base / "job" / COVER).chmod(0o755)
            root_fs.make_folder(base / "job" / COVER / PurePosixPath(spec.home).relative_to(covered))
        if not spec.image and _of_scratch(spec.home) is None:
            root_fs.make_folder(Path(covered or spec.home))
    except OSError as e:
        raise EngineError("refused", f"this machine can't have the folder {spec.home} ({e.strerror})") from e


def make_inner_point(spec: Spec, scratch: Path) -> None:
    """Make the mount point that lies in the scratch, before a start; a checkpoint brings it along. Raises OSError."""
    if spec.home and not lies_on_share(spec) and (inside := _of_scratch(spec.home)) is not None:
        root_fs.make_folder(scratch / inside)


def _covered(home: str) -> str:
    """The user's home folder that a path lies in, "" = in none."""
    parts = PurePosixPath(home).parts
    depth = {"home": 3, "root": 2}.get(parts[1], 0)
    return str(PurePosixPath(*parts[:depth])) if depth and len(parts) > depth else ""


def _of_scratch(home: str) -> PurePosixPath | None:
    for folder, name in OWN.items():
        if home.startswith(f"{folder}/"):
            return PurePosixPath(name) / home.removeprefix(f"{folder}/")
    return None
