"""Manual orders, for tests, demos and people: reclaim a box, shape its link, list, clean up."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from spotsurfer.model.errors import Conflict, Denied, NotFound
from spotsurfer.ports.clock import Clock, SystemClock
from spotsurfer_providers.local import cleanup
from spotsurfer_providers.local.box import supervisor_client
from spotsurfer_providers.local.box.records import BoxFolder, BoxState, Home
from spotsurfer_providers.local.host_checks import check_host


def reclaim(data_dir: Path, box: str, notice_seconds: float) -> dict[str, Any]:
    """Take a box as the cloud would: with a notice, or (0) without one. Raises NotFound, Conflict or Denied."""
    return _order(data_dir, box, {"order": "reclaim", "notice_seconds": notice_seconds})


def rebalance(data_dir: Path, box: str) -> dict[str, Any]:
    """Give a box the rebalance recommendation. Raises NotFound, Conflict or Denied."""
    return _order(data_dir, box, {"order": "rebalance"})


def set_metadata(data_dir: Path, box: str, entries: Mapping[str, str]) -> dict[str, Any]:
    """Change the content of a box's metadata service, by the paths of its dialect. Raises NotFound, Conflict or Denied."""
    return _order(data_dir, box, {"order": "metadata", "entries": dict(entries)})


def set_link_rate(data_dir: Path, box: str, bits_per_second: int | None) -> dict[str, Any]:
    """Limit a box's link in both directions; None lifts the limit. Raises NotFound, Conflict or Denied."""
    return _order(data_dir, box, {"order": "link", "bits_per_second": bits_per_second})


def set_link_up(data_dir: Path, box: str, up: bool) -> dict[str, Any]:
    """Cut or restore a box's link. The metadata service stays: it is inside. Raises NotFound, Conflict or Denied."""
    return _order(data_dir, box, {"order": "link", "up": up})


def box_status(data_dir: Path, box: str) -> dict[str, Any]:
    """The status from a living box's supervisor: `pid` of its process 1, `action_at`. Raises NotFound, Conflict or Denied."""
    return _order(data_dir, box, {"order": "status"})


def _order(data_dir: Path, box: str, order: dict[str, Any]) -> dict[str, Any]:
    folder = _folder(data_dir, box)
    try:
        return supervisor_client.ask(folder.path, order)
    except supervisor_client.NoAnswer as e:
        raise Conflict(f"{box} is not running: {e}") from e
    except ValueError as e:
        raise Conflict(f"{box} refused: {e}") from e


def _folder(data_dir: Path, box: str) -> BoxFolder:
    folder = Home(data_dir).boxes / box
    with _looking_into(data_dir):
        if "/" in box or box.startswith(".") or not (folder / "box.json").exists():
            raise NotFound(f"There is no box {box} in {data_dir}: `list` shows them")
    return BoxFolder(folder)


@contextmanager
def _looking_into(data_dir: Path) -> Iterator[None]:
    """Raises Denied if this user may not look: boxes are root's."""
    try:
        yield
    except PermissionError:
        raise Denied(f"You may not look at the boxes in {data_dir}: run as root (sudo).") from None


def list_boxes(data_dir: Path) -> list[dict[str, Any]]:
    """Record and status of every listed box; a torn record shows as its error. Raises Denied."""
    rows = []
    with _looking_into(data_dir):
        folders = Home(data_dir).folders()
    for folder in folders:
        try:
            record, status = asdict(folder.record()), asdict(folder.status())
            del record["user_data"]
            rows.append({**record, **status})
        except (OSError, ValueError, TypeError) as e:
            rows.append({"id": folder.id, "state": "torn", "reason": str(e)})
    return rows


def clean(data_dir: Path, end_living: bool = False, clock: Clock | None = None) -> list[str]:
    """Remove the remains of dead boxes in a data folder; with `end_living` end living ones, too. Returns descriptions of them.

    Raises NotRoot or HostUnfit.
    """
    trees, home = check_host(), Home(data_dir)
    if not home.boxes.exists():
        return []
    now = (clock or SystemClock()).now()
    removed = cleanup.sweep_half_made(home, now)
    for folder in home.folders():
        if end_living:
            removed += cleanup.end_now(folder)
        removed += cleanup.drop_torn(folder) or cleanup.settle(home, trees, folder, now)
    removed += cleanup.sweep_groups(home, trees)
    return removed + cleanup.sweep_loops(home)


def living(data_dir: Path) -> list[str]:
    """Ids of the boxes that have not ended."""
    return [f.id for f in Home(data_dir).folders() if f.status().state is not BoxState.ENDED]
