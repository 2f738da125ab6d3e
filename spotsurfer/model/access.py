"""Who asks, and what each role may do with the controller: a table of all methods of the service."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum

OWNER = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@+-]{0,99}")  # a name of somebody who may own jobs


class Role(StrEnum):
    """What somebody may do."""

    VIEWER = "viewer"  # sees everything, changes nothing
    USER = "user"  # sees and changes their own jobs alone
    OPERATOR = "operator"  # everything


@dataclass(frozen=True, slots=True)
class Principal:
    """Somebody who asks. `name` becomes the owner of the jobs that they submit."""

    name: str
    role: Role
    via: str = ""  # how we know: "socket", "token", "token 3fa1", "proxy", "oidc"

    @property
    def own_jobs_only(self) -> bool:
        """Whether jobs of others do not exist for them."""
        return self.role is Role.USER


@dataclass(frozen=True, slots=True)
class OidcRules:
    """Which provider, and who is who. Groups are values of the claim `role_claim`; `users`: empty = everybody it knows."""

    issuer: str
    client_id: str
    client_secret: str = ""  # "" = a public client
    public_url: str | None = None  # of the controller, as browsers see it; None = as they say
    name_claim: str = "email"
    role_claim: str = "groups"
    operators: frozenset[str] = frozenset()
    viewers: frozenset[str] = frozenset()
    users: frozenset[str] = frozenset()


class Use(StrEnum):
    """Ways to use a method of the service."""

    LOOK = "look"  # about the controller and the markets: everybody
    LIST = "list"  # about all jobs: users get those of their own
    READ_JOB = "read job"  # the first argument names a job
    READ_JOB_OR_LIST = "read job or list"  # the same, or None for all
    READ_JOBS_OR_LIST = "read jobs or list"  # several jobs; none = all
    CHANGE_JOB = "change job"
    NEW_ID = "new id"  # an id for a job to come, which only its maker may go on with
    TO_COME = "job to come"  # the first argument is such an id
    AS_OWNER = "as owner"  # about things of the one who asks: it gets their name
    JOBS_TO_COME = "jobs to come"  # the first argument is a list of them, each with such an id or none
    BEGIN_WORK = "begin work"  # CHANGE_JOB, and the answer's number is for its maker
    WORK = "work"  # the first argument is such a number
    ALL = "all"  # about everybody's jobs together: not for users
    OPERATE = "operate"  # operators alone


CHANGES = frozenset({Use.CHANGE_JOB, Use.NEW_ID, Use.TO_COME, Use.JOBS_TO_COME, Use.AS_OWNER, Use.BEGIN_WORK, Use.OPERATE})

# Every method of `ports.service.Service`; a test compares them.
USES: dict[str, Use] = {
    "info": Use.LOOK,
    "figures": Use.ALL,
    "preview": Use.LOOK,
    "spots": Use.LOOK,
    "jobs": Use.LIST,
    "jobs_brief": Use.LIST,
    "timeline": Use.READ_JOB_OR_LIST,
    "costs": Use.READ_JOB_OR_LIST,
    "charges": Use.READ_JOB_OR_LIST,
    "report": Use.READ_JOBS_OR_LIST,
    "job": Use.READ_JOB,
    "why": Use.READ_JOB,
    "usage": Use.READ_JOB,
    "checkpoints": Use.READ_JOB,
    "log": Use.READ_JOB,
    "printed": Use.READ_JOB,
    "outputs": Use.READ_JOB,
    "output": Use.READ_JOB,
    "partial": Use.READ_JOB,
    "partial_output": Use.READ_JOB,
    "home_changes": Use.READ_JOB,
    "home_result": Use.READ_JOB,
    "settle_home": Use.CHANGE_JOB,
    "machine": Use.CHANGE_JOB,  # a way to log in
    "hold": Use.CHANGE_JOB,
    "resume": Use.CHANGE_JOB,
    "cancel": Use.CHANGE_JOB,
    "move": Use.CHANGE_JOB,
    "signal": Use.CHANGE_JOB,
    "checkpoint": Use.CHANGE_JOB,
    "prioritize": Use.CHANGE_JOB,
    "set_budget": Use.CHANGE_JOB,
    "go_back": Use.CHANGE_JOB,
    "protect": Use.CHANGE_JOB,
    "ask_partial": Use.CHANGE_JOB,
    "fork": Use.BEGIN_WORK,
    "rehearse": Use.BEGIN_WORK,
    "progress": Use.WORK,
    "call_off": Use.WORK,
    "store_work": Use.OPERATE,
    "budgets": Use.LIST,
    "licences": Use.LIST,
    "set_scope_budget": Use.OPERATE,
    "remove_scope_budget": Use.OPERATE,
    "reload": Use.OPERATE,
    "new_job_id": Use.NEW_ID,
    "upload": Use.TO_COME,
    "discard": Use.TO_COME,
    "submit": Use.TO_COME,
    "submit_many": Use.JOBS_TO_COME,
    "shares_home": Use.LOOK,
    "home_lacks": Use.AS_OWNER,
    "upload_home": Use.AS_OWNER,
    "resolve": Use.OPERATE,  # of the guard itself
}


DENIED = {  # what is said to whoever may not
    Role.VIEWER: "You may look at everything and change nothing (role viewer): ask an operator for a token with another role.",
    Role.USER: "Only operators may do that: ask one of them.",
}


def may(role: Role, use: Use) -> bool:
    """Whether the role may use such methods at all; for users the guard asks further whether the job is theirs."""
    if role is Role.OPERATOR:
        return True
    if role is Role.VIEWER:
        return use not in CHANGES
    return use not in (Use.ALL, Use.OPERATE)


@dataclass(frozen=True, slots=True)
class Token:
    """A token as operators see it. Times are ISO 8601 in UTC."""

    id: str
    owner: str
    role: Role
    made_at: str
    expires_at: str | None = None
    used_at: str | None = None  # at most a minute old
    revoked_at: str | None = None


@dataclass(frozen=True, slots=True)
class Audited:
    """One line of the audit log: who did what, or was refused it."""

    at: str
    who: str
    role: str
    via: str
    address: str  # of the client, "" on the socket
    what: str  # the route's name, as in /v1/openapi.json
    job: str
    status: int  # of the HTTP answer
