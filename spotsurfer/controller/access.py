"""Tokens of several people, and the audit log, on the controller's database."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

import structlog
from sqlalchemy import Engine
from sqlalchemy.exc import SQLAlchemyError

from spotsurfer.model.access import OWNER, Audited, Principal, Role, Token
from spotsurfer.model.errors import NotFound, UsageError
from spotsurfer.ports.clock import Clock
from spotsurfer.state import access as rows

PREFIX = "spotsurfer"  # of a token's text, so that scanners of leaked secrets can tell it
USED_SECONDS = 60.0  # how exact the time of the last use is: not each request writes
NOTHING = hashlib.sha256(b"").hexdigest()
log = structlog.get_logger(room="access")


@dataclass(slots=True)
class AccessControl:
    """Implements `ports.access.Access`.

    A token is "spotsurfer_<id>_<secret>" with 256 random bits in its secret. SHA-256 of it is kept: nobody guesses so many
    bits, so nothing slower is needed, and a copy of the database opens nothing.
    """

    engine: Engine
    clock: Clock
    _noted: dict[str, datetime] = field(default_factory=dict)  # when the last use of a token was written

    def who(self, token: str) -> Principal | None:
        """Whom it names, if it is good."""
        _, _, rest = token.partition("_")
        id, _, secret = rest.partition("_")
        with self.engine.connect() as connection:
            found = rows.find_token(connection, id)
        given, known = hashlib.sha256(secret.encode()).hexdigest(), found[1] if found else NOTHING
        if not secrets.compare_digest(given, known) or found is None:
            return None
        now, one = self.clock.now(), found[0]
        if one.revoked_at is not None or (one.expires_at is not None and now >= datetime.fromisoformat(one.expires_at)):
            return None
        self._note(id, now)
        return Principal(one.owner, one.role, f"token {id}")

    def _note(self, id: str, now: datetime) -> None:
        last = self._noted.get(id)
        if last is None or (now - last).total_seconds() >= USED_SECONDS:
            self._noted[id] = now
            try:
                with self.engine.begin() as connection:
                    rows.used(connection, id, now.isoformat())
            except SQLAlchemyError as e:
                log.warning("token.use-not-noted", token=id, error=str(e))

    def make_token(self, owner: str, role: Role, lives_seconds: float | None) -> tuple[Token, str]:
        """A new one."""
        if not OWNER.fullmatch(owner):
            raise UsageError(f"The owner is {owner!r}, expected a name like ada or ada@example.org: letters, digits, . _ @ + -")
        now, secret = self.clock.now(), secrets.token_urlsafe(32)
        expires = None if lives_seconds is None else (now + timedelta(seconds=lives_seconds)).isoformat()
        made = Token(secrets.token_hex(4), owner, role, now.isoformat(), expires)
        with self.engine.begin() as connection:
            rows.add_token(connection, made, hashlib.sha256(secret.encode()).hexdigest())
        return made, f"{PREFIX}_{made.id}_{secret}"

    def tokens(self) -> Sequence[Token]:
        """All of them."""
        with self.engine.connect() as connection:
            return rows.tokens(connection)

    def revoke_token(self, id: str) -> Token:
        """End one."""
        with self.engine.begin() as connection:
            rows.revoke(connection, id, self.clock.now().isoformat())
            found = rows.find_token(connection, id)
        if found is None:
            raise NotFound(f"There is no token {id!r}; `spotsurfer token list` shows all.")
        return found[0]

    def record(self, who: Principal, address: str, what: str, job: str, status: int) -> None:
        """Add a line."""
        line = Audited(self.clock.now().isoformat(), who.name, str(who.role), who.via, address, what, job, status)
        try:
            with self.engine.begin() as connection:
                rows.add_line(connection, line)
        except SQLAlchemyError as e:
            log.error("audit.lost", who=line.who, what=line.what, job=line.job, status=line.status, error=str(e))

    def audit(
        self, since: datetime | None = None, who: str | None = None, job: str | None = None, last: int = 100
    ) -> Sequence[Audited]:
        """The lines."""
        with self.engine.connect() as connection:
            return rows.lines(connection, since, who, job, last)
