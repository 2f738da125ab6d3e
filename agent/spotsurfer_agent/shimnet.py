"""The network of a job as its shim holds it."""

from __future__ import annotations

import os
from collections.abc import Sequence

from spotsurfer_agent import netns, tcp
from spotsurfer_agent.tools import Tools


class Net:
    """A namespace that lives for as long as this holds it. Before `make` there is none, and nothing to do to it."""

    def __init__(self) -> None:
        self.fd = -1
        self._tools: Tools | None = None

    @property
    def number(self) -> int:
        """By which the kernel tells it from others; 0 = there is none."""
        return os.fstat(self.fd).st_ino if self.fd >= 0 else 0

    def make(self, tools: Tools, ports: Sequence[int], *, hushed: bool) -> None:
        """A new one. `hushed`: nothing of TCP arrives in it until `speak`. Raises netns.NetworkError."""
        self._tools, self.fd = tools, netns.prepare(tools, ports)
        if hushed:
            self.hush()

    def hush(self) -> None:
        """Nothing of TCP arrives in it. Raises netns.NetworkError."""
        if self._tools is not None:
            netns.hush(self._tools, self.fd)

    def speak(self) -> None:
        """All arrives again. Raises netns.NetworkError."""
        if self._tools is not None:
            netns.speak(self._tools, self.fd)

    def unlock(self) -> None:
        """Take away whatever keeps something from arriving. Never raises."""
        if self._tools is not None:
            netns.unlock(self._tools, self.fd)

    def abort_severed(self) -> None:
        """Abort the connections whose other end is not in it. Never raises."""
        tcp.abort_severed(self.fd, netns.INSIDE)

    def close(self) -> None:
        """Let it go. Idempotent."""
        if self.fd >= 0:
            os.close(self.fd)
        self.fd = -1
