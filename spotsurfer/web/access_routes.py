"""HTTP routes about who asks: themselves, tokens and the audit log of operators."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Path, Query, Request
from pydantic import AwareDatetime, Field

from spotsurfer.model.access import DENIED, Audited, Principal, Role, Token
from spotsurfer.model.errors import Conflict, Denied
from spotsurfer.ports.access import Access
from spotsurfer.web import response_models as m
from spotsurfer.web.request_models import Asked

router = APIRouter(
    prefix="/v1", responses={"4XX": {"model": m.ErrorBody}, "5XX": {"model": m.ErrorBody}, 422: {"model": m.ErrorBody}}
)
LIVES_MAX_SECONDS = 10 * 366 * 86400.0


class TokenBody(Asked):
    """A token to be made. `lives_seconds`: null = until it is revoked."""

    owner: str
    role: Role
    lives_seconds: float | None = Field(None, gt=0, le=LIVES_MAX_SECONDS)


class TokensOut(m.Wire):
    """All tokens, the newest first."""

    tokens: list[Token]


class MadeTokenOut(m.Wire):
    """A new token. Nobody can read `text` again."""

    token: Token
    text: str


class AuditOut(m.Wire):
    """Who did what, or was refused it; oldest first."""

    lines: list[Audited]


def who_asks(request: Request) -> Principal:
    """Whom the guard let in."""
    found: Principal = request.scope["state"]["who"]
    return found


Who = Annotated[Principal, Depends(who_asks)]


def for_operators(request: Request, who: Who) -> Access:
    """Tokens and audit log; Denied for others."""
    if who.role is not Role.OPERATOR:
        raise Denied(DENIED[Role.USER])
    access: Access | None = request.app.state.access
    if access is None:
        raise Conflict("This controller keeps no tokens.")
    return access


Operators = Annotated[Access, Depends(for_operators)]


@router.get("/me", tags=["access"])
def me(who: Who) -> Principal:
    """Who you are here, and what you may do."""
    return who


@router.post("/tokens", status_code=201, tags=["access"])
def make_token(body: TokenBody, access: Operators) -> MadeTokenOut:
    """Let somebody in."""
    token, text = access.make_token(body.owner, body.role, body.lives_seconds)
    return MadeTokenOut(token=token, text=text)


@router.get("/tokens", tags=["access"])
def tokens(access: Operators) -> TokensOut:
    """Who is let in."""
    return TokensOut(tokens=list(access.tokens()))


@router.delete("/tokens/{id}", tags=["access"])
def revoke_token(id: Annotated[str, Path(max_length=100)], access: Operators) -> Token:
    """Let them in no more."""
    return access.revoke_token(id)


@router.get("/audit", tags=["access"])
def audit(
    access: Operators,
    since: AwareDatetime | None = None,
    who: Annotated[str | None, Query(max_length=200)] = None,
    job: Annotated[str | None, Query(max_length=100)] = None,
    last: Annotated[int, Query(ge=1, le=100_000)] = 100,
) -> AuditOut:
    """Who changed what, and who was refused."""
    return AuditOut(lines=list(access.audit(since, who, job, last)))
