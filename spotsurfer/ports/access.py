"""The interface between the HTTP API and the controller about who asks: tokens and the audit log."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Protocol

from spotsurfer.model.access import Audited, Principal, Role, Token


class Access(Protocol):
    """Methods may be called from several threads."""

    def who(self, token: str) -> Principal | None:
        """Whom a token names; None if it is unknown, expired or revoked. Takes the same time for any wrong secret."""
        ...

    def make_token(self, owner: str, role: Role, lives_seconds: float | None) -> tuple[Token, str]:
        """A new token, and its text, which nobody can read again. UsageError for an owner's name that is none."""
        ...

    def tokens(self) -> Sequence[Token]:
        """All tokens, the newest first; revoked ones, too."""
        ...

    def revoke_token(self, id: str) -> Token:
        """End a token at once. NotFound."""
        ...

    def record(self, who: Principal, address: str, what: str, job: str, status: int) -> None:
        """Add a line to the audit log. One that can't be written refuses nobody: it is said in the controller's log."""
        ...

    def audit(
        self, since: datetime | None = None, who: str | None = None, job: str | None = None, last: int = 100
    ) -> Sequence[Audited]:
        """The `last` lines of these, oldest first."""
        ...
