"""Boxes as the machines of a test cloud: user-data runs, a metadata service answers, ends are told."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Mapping
from pathlib import Path

from spotsurfer_providers.local import cleanup, manual_control
from spotsurfer_providers.local.box import network
from spotsurfer_providers.local.box.records import BoxFolder, BoxRecord, BoxState, Home
from spotsurfer_providers.local.box.supervisor_client import make_box, reap
from spotsurfer_providers.local.host_checks import check_host

from spotsurfer.model.errors import Conflict, NotFound
from spotsurfer.ports.clock import SystemClock

ENDPOINT_PORT = network.GATEWAY_PORT
ENDPOINT = f"http://{network.CLOUD_ADDRESS}:{ENDPOINT_PORT}"  # where machines find the services that `sockets` lead to
LOOK_SECONDS = 0.05
GIB = 1 << 30
DISK_BYTES_MAX = 20 * GIB

Changed = Callable[[str], None]  # "running", "reclaimed", "powered-off"


class CloudBoxes:
    """All boxes of one cloud, in a folder of its own."""

    def __init__(self, state: Path) -> None:
        self.state = state
        self._home = Home(state)
        self._home.make()
        self._clock = SystemClock()
        self._watched: dict[str, Changed] = {}  # by box
        self._lock, self._closed = threading.Lock(), threading.Event()
        threading.Thread(target=self._watch, daemon=True).start()

    def start(self, record: BoxRecord, changed: Changed, wanted: Callable[[], bool]) -> None:
        """Make the box if it is still `wanted` (its end may have come first); what becomes of it is told by the watch."""
        with self._lock:
            self._watched[record.id] = changed
        with self._home.launching():
            if wanted():
                make_box(self._home, record)
                return
        with self._lock:
            self._watched.pop(record.id, None)

    def lives(self, box: str) -> bool:
        """Whether it was started, and its end is not known yet."""
        with self._lock:
            return box in self._watched

    def advise(self, box: str) -> None:
        """Advise it to move, in its metadata."""
        with contextlib.suppress(Conflict, NotFound):
            manual_control.rebalance(self.state, box)

    def warn(self, box: str, seconds: float) -> None:
        """In its metadata; the box ends then even if nobody comes back for it. Without seconds it ends at once."""
        with contextlib.suppress(Conflict, NotFound):
            manual_control.reclaim(self.state, box, seconds)

    def tell(self, box: str, entries: Mapping[str, str]) -> None:
        """Change what its metadata service says."""
        with contextlib.suppress(Conflict, NotFound):
            manual_control.set_metadata(self.state, box, entries)

    def end(self, box: str) -> None:
        """At once."""
        with self._home.launching():
            folder = self._home.folder(box)
            exists = folder.path.exists()
        if exists:
            cleanup.end_now(folder)
            cleanup.settle(self._home, check_host(), folder, self._clock.now())
        with self._lock:
            self._watched.pop(box, None)
        reap()

    def close(self) -> None:
        """End all boxes of this folder, whoever made them."""
        self._closed.set()
        clean(self.state)
        reap()

    def _watch(self) -> None:
        while not self._closed.wait(LOOK_SECONDS):
            with self._lock:
                watched = list(self._watched.items())
            for box, changed in watched:
                with contextlib.suppress(OSError, ValueError):
                    self._look(BoxFolder(self._home.boxes / box), changed)

    def _look(self, folder: BoxFolder, changed: Changed) -> None:
        if not folder.path.exists():
            return
        status = folder.status()
        if status.state is BoxState.RUNNING:
            changed("running")
        elif status.state is BoxState.ENDED:
            with self._lock:
                self._watched.pop(folder.id, None)
            changed("reclaimed" if status.reclaimed else "powered-off")


def clean(state: Path) -> list[str]:
    """End and remove all boxes of a folder, whoever made them; what was removed."""
    return manual_control.clean(state, end_living=True)


def console(state: Path, box: str) -> str:
    """What a machine printed."""
    file = Home(state).folder(box).path / "console.log"
    return file.read_text(errors="replace") if file.exists() else ""
