"""A move that nobody could carry out is refused when it is asked for."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any, cast

import pytest
from support.builders import JOB, NOW, POOL, a_job, an_attempt, an_offer
from support.dict_store import DictStore

from spotsurfer.controller.apply import Apply
from spotsurfer.controller.jobs.commands import Commands
from spotsurfer.model.actions import SetWish
from spotsurfer.model.errors import Conflict, SpotsurferError, UsageError
from spotsurfer.model.job import MarketChoice, MoveRequest, Wish
from spotsurfer.model.market import Market, Offer
from spotsurfer.ports.clock import ManualClock
from spotsurfer.state import jobs as rows
from spotsurfer.state import timeline
from spotsurfer.state.db import open_database
from spotsurfer.store.head_logs import HeadLogs

OFFERS = tuple(an_offer(market, pool=replace(POOL, instance_type=t)) for t in ("m6i.large", "r6i.large") for market in Market)


def commands(offers: tuple[Offer, ...], **spec: object) -> Commands:
    engine = open_database(None)
    with engine.begin() as c:
        rows.add_job(c, a_job(dict(spec)))
        rows.add_attempt(c, an_attempt())
    return Commands(engine, ManualClock(NOW), HeadLogs(DictStore()), lambda: None, offers=lambda: offers)


@pytest.mark.parametrize(
    ("asked", "spec", "kind", "why"),
    [
        (("r6i.larg", None), {}, UsageError, "no machine type 'r6i.larg' is on offer: did you mean 'r6i.large'?"),
        (("r6i.nano", None), {}, UsageError, "'r6i.nano' is on offer: `spotsurfer submit --dry-run` lists what there is"),
        (("m6i.large", None), {"cpus": 64}, Conflict, "m6i.large can't have job job: it has 4 processors, the job asks for 64"),
        ((None, Market.ON_DEMAND), {"market": MarketChoice.SPOT}, Conflict, "the job takes no on-demand machine"),
    ],
)
def test_refused(
    asked: tuple[str | None, Market | None], spec: dict[str, object], kind: type[SpotsurferError], why: str
) -> None:
    with pytest.raises(kind, match=re.escape(why)):
        commands(OFFERS, **spec).move("job", *asked)


@pytest.mark.parametrize("asked", [("r6i.large", None), ("r6i.large", Market.SPOT), (None, None)])
def test_accepted(asked: tuple[str | None, Market | None]) -> None:
    assert commands(OFFERS).move(JOB, *asked) == 1


def test_where_offers_are_not_known_yet_any_type_may_be_asked_for() -> None:
    assert commands(()).move(JOB, "r6i.nano", None) == 1


def test_a_job_that_a_limit_holds_has_no_move_any_more() -> None:
    """The order stood for a job that was held, and who waited for it waited for ever. So it is where its user holds it."""
    engine, unused = open_database(None), cast("Any", None)
    with engine.begin() as c:
        rows.add_job(c, a_job(move=MoveRequest(1, NOW)))
    apply = Apply(engine, unused, DictStore(), unused, ManualClock(NOW), "f", unused, unused, lambda _token, _id: None)
    apply.carry_out(SetWish(JOB, Wish.HOLD, "over its budget"))
    with engine.connect() as c:
        held = rows.load_job(c, JOB)
        story = timeline.of_kinds(c, [JOB], ["wish"])[JOB]
    assert (held.wish, held.move) == (Wish.HOLD, None)
    assert story[-1].data == {"wish": "hold", "held_by": ""}, "the cost report tells idle time by this"
