"""Whether an image is for this architecture."""

from __future__ import annotations

from spotsurfer_agent.images.errors import ImageError, Kind
from spotsurfer_agent.images.pin import Pin


def check(pin: Pin, architecture: str) -> None:
    """A pin for another architecture can't be followed here. Raises ImageError."""
    if pin.architecture != architecture:
        raise ImageError(
            Kind.MACHINE,
            f"the job's image was resolved for {pin.architecture}, this machine is {architecture}: ask for a machine type of "
            f"architecture {pin.architecture}",
        )
