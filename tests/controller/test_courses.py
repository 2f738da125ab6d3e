"""Size policies asked live: what they are shown, what becomes of their wishes, and what a bad one can't do."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from spotsurfer_lab.size_backtest import size_policy
from spotsurfer_wire.messages import NearMiss, SaveFacts
from support.builders import JOB, NOW
from support.rides import GIB, OFFERS, TYPES, Ride, asks, pool, usable

from spotsurfer.controller.jobs.rightsizing import looks
from spotsurfer.core.scheduling.rightsizing import SIZED, SizeRules
from spotsurfer.model.actions import Grant, Terminate
from spotsurfer.model.job import SIZE_OFF, MoveRequest, Rewind
from spotsurfer.model.job import AttemptState as A
from spotsurfer.model.market import Cooldown, Market
from spotsurfer.ports.policies import Came, Size, SizeChoice, SizeMoment, SizeTerms
from spotsurfer.state import usage_history

QUICK = SizeRules(look_seconds=10.0)
SMALL, MEDIUM, LARGE = 0, 1, 2


class Says:
    """Wishes what the last moment's memory is a key of; remembers what it was shown."""

    def __init__(self, by_gib: Mapping[int, Any] | None = None) -> None:
        self.by_gib, self.moments = by_gib or {}, list[SizeMoment]()

    def begin(self, terms: SizeTerms) -> tuple[int, int]:
        self.terms = terms
        return 0, terms.start

    def look(self, memory: int, moment: SizeMoment) -> tuple[int, SizeChoice]:
        self.moments.append(moment)
        said = self.by_gib.get(round(moment.memory_bytes / GIB))
        if isinstance(said, Exception):
            raise said
        return memory, said if isinstance(said, SizeChoice) else SizeChoice(said, "so it is" if said is not None else "")


class Waits(Says):
    """Moves only where that is free."""

    def look(self, memory: int, moment: SizeMoment) -> tuple[int, SizeChoice]:
        return memory, SizeChoice(SMALL if moment.free else None, "it costs nothing" if moment.free else "")


def riding(policy: Size, **more: Any) -> Ride:
    return Ride(lambda _n, _p: policy, **{"rules": QUICK, "boots": 1, **more})


def use(ride: Ride, gib: float, slices: int = 4, cores: float = 1.0, **more: Any) -> None:
    for _ in range(slices):
        ride.use(gib * GIB, cores, **more)


def test_a_wish_becomes_a_planned_move_with_its_numbers() -> None:
    says = Says({1: SMALL})
    ride = riding(says)
    use(ride, 1.0)
    assert ride.kind == "a.small"
    assert ride.here.purpose.startswith(f"{SIZED}: a.small instead of a.medium: in 10 s it used 1.00 GiB at most")
    assert "so it is; 0.0500 instead of 0.1000 USD an hour; 0 of 12 moves" in ride.here.purpose
    assert [m.came for m in says.moments][-2:] == [Came.STAYED, Came.PLANNED]


def test_it_is_shown_types_as_large_as_their_guard_leaves_them_and_not_too_large_ones() -> None:
    says = Says()
    use(riding(says, job=asks(memory_bytes=4 * GIB, cpus=2)), 1.0)
    assert [k.name for k in says.terms.kinds] == ["a.small", "a.medium"]  # a.large has eight times the memory
    assert says.terms.kinds[SMALL].usable_bytes == pytest.approx(4 * GIB - (320 << 20), rel=1e-6)


@pytest.mark.parametrize(("least", "shown"), [(None, False), (GIB // 4, True)])
def test_a_machine_too_small_for_a_save_is_taken_only_where_the_job_says_so(least: int | None, shown: bool) -> None:
    tiny = replace(OFFERS[0], pool=replace(OFFERS[0].pool, instance_type="a.tiny"), memory_bytes=GIB // 2)
    says = Says()
    use(riding(says, job=asks(size_memory_min_bytes=least), offers=[tiny, *OFFERS]), 1.0)
    assert ("a.tiny" in [k.name for k in says.terms.kinds]) == shown


def test_what_a_short_run_lost_is_told_to_the_micro_dollar() -> None:
    cheap = [replace(o, price_usd_micros_per_hour=o.price_usd_micros_per_hour // 20) for o in OFFERS]
    ride = riding(size_policy("surf", {}), start="a.large", job=asks(memory_bytes=16 * GIB, cpus=2), offers=cheap)
    use(ride, 1.0, 12)
    told = re.search(r"has cost (\S+) USD", ride.here.purpose)
    assert told is not None
    assert 0 < float(told[1]) < 0.001


def test_memory_that_grows_past_a_machine_goes_up_and_comes_down_again() -> None:
    ride = riding(size_policy("surf", {}), start="a.large", job=asks(memory_bytes=16 * GIB, cpus=2))
    ran = [ride.kind]
    for gib in (1.0, 20.0, 1.0, 20.0, 1.0):
        for _ in range(60):
            use(ride, gib, 1)
            ran += [ride.kind] if ride.kind != ran[-1] else []
    assert ran == ["a.large", "a.small", "a.large", "a.small", "a.large", "a.small"]
    assert ride.near_misses == 3  # the first time it stopped half-way: a peak that nobody had seen
    assert ride.most_in_an_hour() == 6


def test_a_near_miss_goes_where_the_highest_peak_so_far_has_room() -> None:
    ride = riding(Says({1: SMALL}), start="a.large", job=asks(memory_bytes=16 * GIB))
    use(ride, 20.0)
    use(ride, 1.0)
    assert ride.kind == "a.small"
    use(ride, 5.0)  # a.medium would hold that
    assert (ride.kind, ride.near_misses) == ("a.large", 1)
    assert ride.snapshot().memory_floor_bytes == 0, "it may come down again"


@pytest.mark.parametrize("wish", [SizeChoice(9), SizeChoice(-1), "small", KeyError("x"), ValueError("y")])
def test_nonsense_moves_nobody_and_is_told(wish: Any) -> None:
    said = SizeChoice(wish) if isinstance(wish, str) else wish  # type: ignore[arg-type]
    ride = riding(Says({1: said}))
    use(ride, 1.0)
    assert (ride.kind, len(ride.attempts)) == ("a.medium", 1)
    assert any("the size policy" in a for a in ride.alarms)


def test_one_that_can_not_be_made_moves_nobody_and_is_told() -> None:
    def broken(_: str, __: Mapping[str, object]) -> Size:
        raise OSError("no such model")

    ride = Ride(broken)
    use(ride, 1.0)
    assert len(ride.attempts) == 1
    assert "can't be made: OSError: no such model" in ride.alarms[0]


def test_without_the_guard_it_gets_no_less_memory() -> None:
    ride = riding(Says({1: SMALL, 2: LARGE}), protection="app")
    use(ride, 1.0)
    assert ride.kind == "a.medium"
    use(ride, 2.0)
    assert ride.kind == "a.large"


def test_it_is_off_where_nobody_asks_for_it() -> None:
    for policy in ("", SIZE_OFF):
        ride = riding(Says({1: SMALL}), job=asks(size_policy=policy))
        use(ride, 1.0)
        assert len(ride.attempts) == 1


def test_memory_that_is_only_brought_back_is_not_shown() -> None:
    says = Says({1: SMALL, 5: LARGE})
    ride = riding(says)
    use(ride, 1.0, 3, arriving=3.0 * GIB)
    use(ride, 5.0, 1, arriving=1.0)
    assert (says.moments, len(ride.attempts)) == ([], 1)
    use(ride, 3.0)
    assert [round(m.memory_bytes / GIB) for m in says.moments] == [3, 3, 3]


def test_a_controller_that_starts_anew_learns_the_same() -> None:
    ride = riding(size_policy("surf", {}), start="a.large", job=asks(memory_bytes=16 * GIB, cpus=2))
    for gib in (1.0, 20.0, 2.0):
        use(ride, gib, 20)
    before = ride.snapshot().size
    ride.anew()
    assert ride.snapshot().size == before
    assert before is not None


def test_no_more_moves_than_are_allowed_and_a_rest_after_each() -> None:
    ride = riding(Says({1: SMALL, 2: MEDIUM}), rules=SizeRules(10.0, moves_per_hour=5))
    for _ in range(8):
        use(ride, 1.0)
        use(ride, 2.0)
    assert len(ride.ordered_at) == 3  # two are kept for rescues
    assert "not more than 5 moves an hour" in str(ride.snapshot().size)
    rests = riding(Says({1: SMALL, 2: MEDIUM}), rules=SizeRules(10.0, cool_down_seconds=600))
    use(rests, 1.0)
    use(rests, 2.0)
    assert (rests.kind, len(rests.ordered_at)) == ("a.small", 1)
    assert "rests for 600" in str(rests.snapshot().size)


def test_a_reclaim_is_a_free_chance() -> None:
    ride = riding(Waits(), start="a.large", job=asks(memory_bytes=16 * GIB))
    use(ride, 2.0)
    assert len(ride.attempts) == 1
    ride.attempts = [replace(ride.attempts[0], state=A.RELEASED, reclaimed=True)]
    asked = ride.snapshot()
    assert asked.size is not None
    assert (asked.size.kind, asked.job.spec.memory_bytes) == ("a.small", 4 * GIB)


def test_what_was_saved_must_have_room_where_it_goes_on() -> None:
    ride = riding(Says({1: SMALL}), start="a.large", job=asks(memory_bytes=16 * GIB), boots=60)
    use(ride, 1.0, 3)
    ride.words[1] = replace(ride.words[1], last_save=SaveFacts("1", 1, "live", 20 * GIB, 1, 0.1, 1.0))
    ride.attempts = [replace(ride.attempts[0], state=A.RELEASED)]
    assert ride.snapshot().job.spec.memory_bytes == 32 * GIB


def lost(ride: Ride, **changes: Any) -> str:
    """Where the job goes on whose machine is gone."""
    ride.attempts = [*ride.attempts[:-1], replace(ride.attempts[-1], state=A.RELEASED, **changes)]
    seen = ride.snapshot()
    assert seen.size is not None
    by_memory = {gib * GIB: kind for kind, (_, gib, _) in TYPES.items()}
    return by_memory[seen.job.spec.memory_bytes]


def test_a_free_chance_that_could_need_a_rescue_too_many_is_not_taken() -> None:
    for limit, goes_on in ((3, "a.large"), (4, "a.small")):
        ride = riding(Waits(), start="a.medium", rules=SizeRules(10.0, limit), job=asks(memory_bytes=16 * GIB))
        use(ride, 10.0, 3)  # a near miss takes it up: the first move
        use(ride, 1.0, 3)
        assert (ride.kind, lost(ride)) == ("a.large", goes_on)


def out(*kinds: str) -> list[Cooldown]:
    return [Cooldown(pool(kind), Market.SPOT, NOW + timedelta(hours=9), 1, "none left") for kind in kinds]


def test_where_its_size_can_not_be_had_the_guard_and_the_moves_left_say_how_much_less_will_do() -> None:
    for protection, limit, goes_on in (("criu", 12, "a.small"), ("criu", 3, "a.medium"), ("app", 12, "a.large")):
        ride = riding(Says(), start="a.medium", rules=SizeRules(10.0, limit), job=asks(memory_bytes=16 * GIB))
        use(ride, 10.0, 3)
        ride.protection = protection
        use(ride, 1.0, 3)
        ride._say()
        ride.cooldowns = out("a.large")
        assert lost(ride) == goes_on


def test_a_type_that_could_not_go_on_with_it_is_not_waited_for() -> None:
    ride = riding(Says(), start="a.large", job=asks(memory_bytes=16 * GIB))
    use(ride, 1.0, 3)
    assert lost(ride, restore_refused=True, since=ride.now) == "a.small"


def test_a_smaller_machine_that_waits_is_let_go_where_what_was_saved_has_no_room_there() -> None:
    for saved, stays in ((3, True), (20, False)):
        ride = riding(Says({1: SMALL}), start="a.large", job=asks(memory_bytes=16 * GIB), boots=60)
        use(ride, 1.0, 4)
        assert ride.waiter is not None
        ride.words[1] = replace(ride.words[1], last_save=SaveFacts("1", 1, "live", saved * GIB, 1, 0.1, 1.0))
        ride.tick()
        assert ride.waiter is not None, "the next save will be small"
        ride.attempts = [replace(ride.attempts[0], state=A.RELEASED), *ride.attempts[1:]]
        ride.tick()
        assert (ride.waiter is not None) == stays


def drained() -> Ride:
    """A ride down to less memory whose final save is in the head, and in no report yet."""
    ride = riding(Says({1: SMALL}), start="a.large", job=asks(memory_bytes=16 * GIB), boots=60)
    use(ride, 1.0, 4)
    ride.attempts = [replace(ride.attempts[0], state=A.DRAINING), replace(ride.attempts[1], state=A.READY)]
    ride.final = "2"
    saves(ride, "1", 1)
    return ride


def saves(ride: Ride, checkpoint: str, gib: int) -> None:
    """It is told of."""
    ride.words[1] = replace(ride.words[1], last_save=SaveFacts(checkpoint, 1, "final", gib * GIB, 1, 0.1, 1.0))


def then(ride: Ride) -> list[type]:
    return [type(a) for a in ride.tick().actions if isinstance(a, Grant | Terminate)]


def test_the_look_that_sees_the_final_save_lets_a_waiter_go_that_it_outgrew() -> None:
    for saved, goes_on in ((3, Grant), (20, Terminate)):
        ride = drained()
        saves(ride, "2", saved)
        assert then(ride) == [goes_on]


def test_the_look_that_sees_the_machine_gone_lets_a_waiter_go_that_the_newest_checkpoint_outgrew() -> None:
    for saved, goes_on in ((3, Grant), (20, Terminate)):
        ride = drained()
        saves(ride, "2", saved)
        ride.final, ride.taken = None, True
        assert then(ride) == [goes_on]


def test_a_smaller_machine_waits_until_it_is_told_how_large_the_final_save_is() -> None:
    for saved, goes_on in ((3, Grant), (20, Terminate)):
        ride = drained()
        assert then(ride) == []
        ride.attempts[0] = replace(ride.attempts[0], state=A.DRAINED, since=ride.now)
        assert then(ride) == []
        saves(ride, "2", saved)
        assert goes_on in then(ride)


def test_an_older_checkpoint_that_its_user_went_back_to_has_room() -> None:
    ride = drained()
    saves(ride, "2", 20)
    ride.words[2] = replace(ride.words[1], last_save=SaveFacts("3", 3, "final", GIB, 1, 0.1, 1.0))
    assert then(ride) == [Terminate]


def test_where_nobody_ever_says_how_large_the_final_save_is_it_gets_as_much_memory_as_before() -> None:
    ride = drained()
    ride.attempts[0] = replace(ride.attempts[0], state=A.DRAINED, since=ride.now)
    ride.now += timedelta(seconds=10)
    assert then(ride).count(Grant) == 0
    assert ride.waiter is None
    assert lost(ride) == "a.large"


def test_its_files_need_no_memory() -> None:
    ride = riding(Waits(), start="a.large", job=asks(memory_bytes=16 * GIB), boots=60)
    use(ride, 1.0, 3)
    files = SaveFacts("1", 1, "live", 900 * GIB, 1, 0.1, 1.0, memory_bytes=GIB)
    ride.words[1] = replace(ride.words[1], last_save=files)
    assert lost(ride) == "a.small"


def test_it_does_not_go_back_where_its_memory_was_about_to_end() -> None:
    ride = riding(Waits(), start="a.large", job=asks(memory_bytes=16 * GIB), boots=60)
    use(ride, 1.0, 3)
    full = int(usable("a.small") * 0.995)  # the guard freezes a little below the level, and so much was saved
    ride.words[1] = replace(ride.words[1], last_save=SaveFacts("1", 1, "final", full, 1, 0.1, 1.0))
    assert lost(ride) == "a.medium"


def test_a_checkpoint_that_its_user_goes_back_to_has_room() -> None:
    ride = riding(Waits(), start="a.large", job=asks(memory_bytes=16 * GIB), boots=60)
    use(ride, 20.0, 3)
    use(ride, 1.0, 3)
    ride.job = replace(ride.job, rewind=Rewind("000001-000001", 1))
    assert lost(ride) == "a.large"


def test_where_nothing_holds_it_the_largest_is_asked_for_and_the_run_is_not_forgotten() -> None:
    made = list[str]()

    def make(name: str, _: Mapping[str, object]) -> Size:
        made.append(name)
        return Says()

    ride = Ride(make, asks(memory_bytes=16 * GIB), "a.large", QUICK)
    use(ride, usable("a.large") * 0.995 / GIB, 3)
    assert lost(ride) == "a.large"
    ride.words[1] = replace(ride.words[1], near_miss=NearMiss(32 * GIB, 30 * GIB, 30 * GIB))
    for _ in range(3):
        ride.snapshot()
    assert made == ["any"]


def test_a_users_move_that_names_no_type_changes_no_size() -> None:
    ride = riding(Says(), start="a.large", job=replace(asks(), move=MoveRequest(1, asks().submitted_at)))
    use(ride, 1.0, 2)
    assert len(ride.attempts) > 1
    assert {a.pool.instance_type for a in ride.attempts} == {"a.large"}


def test_its_users_move_is_obeyed() -> None:
    ride = riding(Says(), start="a.large", job=replace(asks(), move=MoveRequest(1, asks().submitted_at, "a.small")))
    use(ride, 1.0, 2)
    assert ride.kind == "a.small"


def test_windows_that_were_thinned_are_the_same_looks() -> None:
    ride = riding(Says(), rules=SizeRules(60.0))
    for i in range(60):
        use(ride, 1.0 + i % 4, 1)
    with ride.engine.begin() as c:
        before = list(looks(usage_history.read(c, JOB), 6))
        usage_history.thin(c, ride.now + timedelta(hours=2))
        after = list(looks(usage_history.read(c, JOB), 6))
    assert [look for _, look in before] == [look for _, look in after]
    assert len(before) == 10
