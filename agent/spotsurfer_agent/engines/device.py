"""What a save does about memory that is not the machine's: that of GPUs. A job without one has none of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol


class Device(Protocol):
    """Device memory of one job during one save."""

    @property
    def there(self) -> bool:
        """Whether the job has any."""
        ...

    @property
    def bytes(self) -> int:
        """That will come into memory of the job on top of what it has."""
        ...

    @property
    def stays(self) -> bool:
        """Since `out` the whole job stands still, and stays so until `back`."""
        ...

    def out(self, progress: Callable[[str], None]) -> None:
        """Before the freeze. Raises EngineError("save"); the job runs on then."""
        ...

    def back(self) -> None:
        """The job's processes run again after a live save. Never raises: what went wrong is told to the engine."""
        ...

    def facts(self) -> dict[str, str]:
        """What of it a machine must have that restores the image."""
        ...

    @property
    def out_seconds(self) -> float:
        """From when its work was stopped until all was out."""
        ...

    @property
    def back_seconds(self) -> float:
        """To bring it back."""
        ...

    @property
    def lost(self) -> str:
        """Why it could not be brought back; empty = it is."""
        ...


class NoDevice:
    """The job has none."""

    there = stays = False
    bytes, out_seconds, back_seconds, lost = 0, 0.0, 0.0, ""

    def out(self, progress: Callable[[str], None]) -> None:
        """Nothing to do."""

    def back(self) -> None:
        """Nothing to do."""

    def facts(self) -> dict[str, str]:
        """None."""
        return {}


NO_DEVICE = NoDevice()
