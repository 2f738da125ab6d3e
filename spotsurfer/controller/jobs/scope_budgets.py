"""Budgets of several jobs: those of the configuration, and over them those that operators set by command."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime

from sqlalchemy import Connection, Engine

from spotsurfer.core.scheduling.budgets import held_by
from spotsurfer.jobspec.validate import INTEGER_MAX
from spotsurfer.ledger.costs import Costs
from spotsurfer.model.budgets import (
    EVERYTHING,
    SCOPE,
    SCOPES_TEXT,
    USED_UP,
    WARN_AT,
    Budget,
    BudgetSeen,
    BudgetStatus,
    Per,
    begins,
    ends,
    scopes_of,
)
from spotsurfer.model.errors import NotFound, UsageError
from spotsurfer.model.money import usd
from spotsurfer.model.timeline_events import Kind
from spotsurfer.ports.clock import Clock
from spotsurfer.ports.service import Moment
from spotsurfer.state import budgets as rows
from spotsurfer.state import jobs, timeline


class ScopeBudgets:
    """What there is, what was spent of it, and changes."""

    def __init__(
        self,
        engine: Engine,
        clock: Clock,
        costs: Callable[[], Costs],
        poke: Callable[[], None],
        configured: Sequence[Budget] = (),
    ) -> None:
        """`costs`: of the controller now."""
        self._engine, self._clock, self._costs, self._poke = engine, clock, costs, poke
        self.configured = configured  # replaced by a reload

    def seen(self, now: datetime) -> Sequence[BudgetSeen]:
        """All that count, with what was spent up to the last look at the costs."""
        with self._engine.connect() as connection:
            live = rows.live(connection)
            return self._seen(connection, [*live.values()], now)

    def _seen(self, connection: Connection, live: Sequence[rows.SetBudget], now: datetime) -> Sequence[BudgetSeen]:
        known = {(b.scope, b.per): b for b in (*self.configured, *(one.budget for one in live))}
        times = [(b, begins(b.per, now)) for b in known.values()]
        if not times:
            return ()
        told = rows.told(connection, times)
        spent = self._costs().spent(connection, {(b.scope, since) for b, since in times})
        return [
            BudgetSeen(b, spent[b.scope, since], since, ends(b.per, now), told.get((b.scope, b.per), frozenset()))
            for b, since in times
        ]

    def budgets(self, owner: str | None = None) -> Sequence[BudgetStatus]:
        """All of them, or those that count for jobs of this owner."""
        with self._engine.connect() as connection:
            live = rows.live(connection)
            seen = self._seen(connection, [*live.values()], self._clock.now())
            open_jobs = jobs.open_jobs(connection)
            theirs = jobs.all_jobs(connection, owner) if owner is not None else ()
        mine = {EVERYTHING, f"owner:{owner}"}.union(*(scopes_of(j) for j in theirs))
        configured = {(b.scope, b.per) for b in self.configured}
        found = []
        for s in sorted(seen, key=lambda s: (s.budget.scope != EVERYTHING, s.budget.scope, [*Per].index(s.budget.per))):
            b, set_by_command = s.budget, live.get((s.budget.scope, s.budget.per))
            if owner is not None and b.scope not in mine:
                continue
            held = [j.id for j in held_by(s, open_jobs) if owner is None or j.owner == owner]
            found.append(
                BudgetStatus(
                    scope=b.scope,
                    per=b.per,
                    usd_micros=b.usd_micros,
                    warn_at=b.warn_at,
                    spent_usd_micros=s.spent_usd_micros,
                    percent=round(100 * s.spent_usd_micros / b.usd_micros, 1),
                    begins=s.begins,
                    ends=s.ends,
                    configured=(b.scope, b.per) in configured,
                    used_up=USED_UP in s.told,
                    held=held,
                    set_at=set_by_command.at if set_by_command is not None else "",
                    set_by=set_by_command.by if set_by_command is not None else "",
                )
            )
        return found

    def set_scope_budget(
        self, scope: str, usd_micros: int, per: Per = Per.TOTAL, warn_at: Sequence[int] | None = None, who: str = ""
    ) -> Budget:
        """Set it, in place of one with this scope and time. None: it warns as before, or at the usual shares. UsageError."""
        if not SCOPE.fullmatch(scope):
            raise UsageError(f"The scope is {scope!r}, expected {SCOPES_TEXT}.")
        if not 0 < usd_micros <= INTEGER_MAX:
            raise UsageError(f"The budget is {usd(usd_micros)} USD, expected more than nothing.")
        if warn_at is not None and not all(0 < share <= 100 for share in warn_at):
            raise UsageError(f"It is to warn at {', '.join(map(str, warn_at))} %, expected shares from 1 to 100.")
        with self._engine.begin() as connection:
            live = {key: one.budget for key, one in rows.live(connection).items()}
            old = {**{(b.scope, b.per): b for b in self.configured}, **live}.get((scope, per))
            shares = tuple(sorted(set(warn_at))) if warn_at is not None else old.warn_at if old is not None else WARN_AT
            new = Budget(scope, usd_micros, per, shares)
            rows.put(connection, new, self._clock.now(), who)
            if old != new:
                self._say(connection, f"{new} from now on{f', instead of {usd(old.usd_micros)} USD' if old else ''}", new, who)
        self._poke()
        return new

    def remove_scope_budget(self, scope: str, per: Per = Per.TOTAL, who: str = "") -> Budget | None:
        """Remove one that was set by command; returns the one of the configuration that counts again. NotFound."""
        stays = next((b for b in self.configured if (b.scope, b.per) == (scope, per)), None)
        with self._engine.begin() as connection:
            old = rows.live(connection).get((scope, per))
            if old is None:
                time = "in all" if per is Per.TOTAL else f"per {per}"
                where = "it stands in the configuration: remove it there and say `spotsurfer reload`" if stays else ""
                raise NotFound(
                    f"No budget of {scope} {time} was set by command: {where or '`spotsurfer budget list` shows all'}."
                )
            rows.remove(connection, scope, per)
            again = f"; that of the configuration counts again, {usd(stays.usd_micros)} USD" if stays else ""
            self._say(connection, f"{old.budget} was removed{again}", old.budget, who)
        self._poke()
        return stays

    def _say(self, connection: Connection, text: str, budget: Budget, who: str) -> None:
        by = f", by {who}" if who else ""
        data: dict[str, str | int | float | bool | None] = {
            "scope": budget.scope,
            "per": str(budget.per),
            "usd_micros": budget.usd_micros,
        }
        timeline.add(connection, Moment(self._clock.now(), None, None, str(Kind.WISH), f"{text}{by}", data))
