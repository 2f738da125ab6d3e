"""[[budgets]]: what the jobs of an owner, a tag, a project, or all of them may cost together."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field

from spotsurfer.config.section import Section, UsdMicros
from spotsurfer.model.budgets import SCOPE, SCOPES_TEXT, WARN_AT, Budget, Per


def _scope(value: str) -> str:
    if not SCOPE.fullmatch(value):
        raise ValueError(f"is {value!r}, expected {SCOPES_TEXT}")
    return value


Share = Annotated[int, Field(ge=1, le=100)]


class BudgetSection(Section):
    """[[budgets]]: one of them."""

    scope: Annotated[str, AfterValidator(_scope)]
    usd: Annotated[UsdMicros, Field(gt=0)]
    per: Per = Per.TOTAL
    warn_at: tuple[Share, ...] = WARN_AT

    def as_budget(self) -> Budget:
        """The same values, for decisions."""
        return Budget(self.scope, self.usd, self.per, tuple(sorted(set(self.warn_at))))


def distinct(value: tuple[BudgetSection, ...]) -> tuple[BudgetSection, ...]:
    """Raises ValueError if two are for the same scope and time."""
    keys = [(b.scope, b.per) for b in value]
    if twice := next((key for key in keys if keys.count(key) > 1), None):
        raise ValueError(f"name {twice[0]} per {twice[1]} twice: only one of them can count")
    return value
