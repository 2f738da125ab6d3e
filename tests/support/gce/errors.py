"""What the test cloud answers in place of what was asked."""

from __future__ import annotations


class Refused(Exception):
    """An answer with an error: HTTP status, Google's reason, a sentence."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.status, self.reason = status, reason
