"""A metadata service for agents in a world without real time."""

from __future__ import annotations

from spotsurfer_agent.control.metadata_service import NoticeError, ServiceNotice


class Service:
    """The metadata service, as a dialect."""

    def __init__(self) -> None:
        self.said: ServiceNotice | None = None
        self.down = False

    def notice(self) -> ServiceNotice | None:
        if self.down:
            raise NoticeError("down")
        return self.said

    def instance(self) -> str:
        return "i-1"
