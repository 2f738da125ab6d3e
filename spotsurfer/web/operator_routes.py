"""HTTP routes about budgets of several jobs, pools of licences, and the controller's configuration."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import Field

from spotsurfer.model.budgets import SCOPES_TEXT, Budget, BudgetStatus, Per
from spotsurfer.model.licences import LicenceStatus
from spotsurfer.ports.service import Reloaded
from spotsurfer.web import response_models as m
from spotsurfer.web.access_routes import Who
from spotsurfer.web.request_models import Asked
from spotsurfer.web.routes import Controller

router = APIRouter(
    prefix="/v1", responses={"4XX": {"model": m.ErrorBody}, "5XX": {"model": m.ErrorBody}, 422: {"model": m.ErrorBody}}
)
Scope = Annotated[str, Query(max_length=400, description=SCOPES_TEXT)]


class ScopeBudgetBody(Asked):
    """What the jobs of a scope may cost together. `warn_at`: percent of it; null = as before, or the usual ones."""

    scope: str = Field(max_length=400)
    usd_micros: int
    per: Per = Per.TOTAL
    warn_at: list[int] | None = None


class BudgetsOut(m.Wire):
    """All budgets of several jobs that count for the jobs of the one who asks."""

    budgets: Sequence[BudgetStatus]


class LicencesOut(m.Wire):
    """All pools. To a user only jobs of their own are named."""

    licences: Sequence[LicenceStatus]


class RemovedBudgetOut(m.Wire):
    """`again`: the one of the configuration that counts from now on; null = none."""

    scope: str
    per: Per
    again: Budget | None


@router.get("/budgets", tags=["costs"])
def budgets(service: Controller) -> BudgetsOut:
    """Budgets of several jobs: what was spent of them, and what they hold."""
    return BudgetsOut(budgets=service.budgets())


@router.put("/budgets", tags=["costs"])
def set_scope_budget(body: ScopeBudgetBody, service: Controller, who: Who) -> Budget:
    """Set one, in place of the one with this scope and time."""
    return service.set_scope_budget(body.scope, body.usd_micros, body.per, body.warn_at, who.name)


@router.delete("/budgets", tags=["costs"])
def remove_scope_budget(service: Controller, who: Who, scope: Scope = "", per: Per = Per.TOTAL) -> RemovedBudgetOut:
    """Remove one that was set; one of the configuration counts again."""
    return RemovedBudgetOut(scope=scope, per=per, again=service.remove_scope_budget(scope, per, who.name))


@router.get("/licences", tags=["controller"])
def licences(service: Controller) -> LicencesOut:
    """Pools of licences: how many there are for jobs, who has them, who waits."""
    return LicencesOut(licences=service.licences())


@router.post("/reload", tags=["controller"])
def reload(service: Controller) -> Reloaded:
    """Read the configuration again; what needs a restart is named."""
    return service.reload()
