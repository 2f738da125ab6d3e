"""Who is handed credentials when, and that it happens: also when the cloud or the store says no, and after a restart."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from spotsurfer_wire import object_keys
from spotsurfer_wire.crypto import access_secret
from spotsurfer_wire.sealed_objects import unseal_handout
from spotsurfer_wire.store.port import StoreUnreachable
from support.builders import JOB, NOW, POOL, a_job, an_attempt
from support.dict_store import DictStore

from spotsurfer.controller.machines.clouds import Clouds
from spotsurfer.controller.machines.store_credentials import (
    SERVED,
    SWEEP_SECONDS,
    Issued,
    Key,
    Renewals,
    due,
    failed,
    renewed,
)
from spotsurfer.controller.schedule import Repeated
from spotsurfer.model.errors import ProviderDenied, ProviderError, Superseded, Throttled
from spotsurfer.model.job import Attempt, AttemptState, InputFetch
from spotsurfer.ports.clock import ManualClock
from spotsurfer.ports.provider import Capabilities, Credentials, StoreAccess
from spotsurfer.state import jobs as rows
from spotsurfer.state import timeline
from spotsurfer.state.db import open_database

MASTER = b"k" * 32


class Cloud:
    """The two questions of a provider that matter here."""

    name, capabilities = POOL.provider, Capabilities(120.0, "aws")

    def __init__(self, clock: ManualClock) -> None:
        self.clock, self.life, self.is_renewed = clock, 3600.0, True
        self.trouble: ProviderError | None = None
        self.made: list[tuple[str, int, Sequence[str]]] = []

    def store_access(self, job: str, attempt: int, machine: str = "") -> StoreAccess:
        return StoreAccess("s3://b", {}, renewed=self.is_renewed)

    def credentials(self, job: str, attempt: int, inputs: Sequence[str], home: str = "") -> Credentials:
        if self.trouble is not None:
            raise self.trouble
        self.made.append((job, attempt, inputs))
        return Credentials({"token": f"t{len(self.made)}"}, self.clock.now() + timedelta(seconds=self.life))


class Scene:
    def __init__(self, path: Path) -> None:
        self.engine, self.clock, self.store = open_database(path / "state.db"), ManualClock(NOW), DictStore()
        self.cloud, self.leads = Cloud(self.clock), True
        self.heard: bool | None = True
        self.renewals = self.restarted()
        with self.engine.begin() as c:
            rows.add_job(c, a_job({"fetches": (InputFetch("s3://in/x", "x"), InputFetch("https://h/y", "y"))}))

    def restarted(self) -> Renewals:
        def lead() -> None:
            if not self.leads:
                raise Superseded("another one leads")

        key = lambda job, attempt: access_secret(MASTER, job, attempt)  # noqa: E731
        left_out, heard = lambda a: f"of {a.number}".encode(), lambda job, attempt: self.heard
        clouds, stores = Clouds([self.cloud], "s3://b"), {self.cloud.name: self.store}  # type: ignore[list-item]
        self.renewals = Renewals(self.engine, self.clock, clouds, self.store, stores, key, lead, left_out, heard)
        return self.renewals

    def add(self, number: int, state: AttemptState = AttemptState.BOOTING) -> None:
        with self.engine.begin() as c:
            rows.add_attempt(c, an_attempt(number, state))

    def set(self, number: int, state: AttemptState) -> None:
        with self.engine.begin() as c:
            rows.save_attempt(c, replace(rows.load_attempt(c, JOB, number), state=state))  # type: ignore[arg-type]

    def token(self, number: int = 1) -> str:
        data = self.store.objects[object_keys.handout_key(JOB, number)]
        return unseal_handout(data, access_secret(MASTER, JOB, number), JOB, number).values["token"]

    def alerts(self) -> list[str]:
        with self.engine.connect() as c:
            return [m.text for _, m in timeline.read(c, JOB, 0) if m.kind == "alert"]


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    made = Scene(tmp_path)
    yield made
    made.engine.dispose()


# ---------------------------------------------------------------- who, when


def at(seconds: float) -> datetime:
    return NOW + timedelta(seconds=seconds)


def test_served_from_the_accepted_order_until_the_end_is_ordered() -> None:
    every = [an_attempt(i, s) for i, s in enumerate(AttemptState)]
    assert {a.state for a in due(every, {}, NOW).hand_out} == SERVED
    unserved = {AttemptState.PLANNED, AttemptState.REFUSED, AttemptState.RELEASING, AttemptState.RELEASED}
    assert set(AttemptState) - SERVED == unserved


def test_the_new_ones_come_first_then_who_waits_longest() -> None:
    issued: dict[Key, Issued] = {(JOB, 1): Issued(at(-5)), (JOB, 2): Issued(at(-50)), (JOB, 3): Issued(at(1))}
    turn = due([an_attempt(n) for n in (1, 2, 3, 4)], issued, NOW)
    assert [a.number for a in turn.hand_out] == [4, 2, 1]
    assert due([an_attempt(1)], issued, NOW).remove == [(JOB, 2), (JOB, 3)]


def test_renewed_before_half_of_the_life_and_never_later_than_half_an_hour() -> None:
    def after(life: float) -> float:
        return (renewed(Credentials({}, at(life)), NOW).renew_at - NOW).total_seconds()

    assert after(3600) == 1620.0 and after(900) == 405.0
    assert after(12 * 3600) == 1620.0, "a clock that is hours behind would see such a life"
    for life in (59.0, 0.0, -3600.0):
        with pytest.raises(ProviderError, match="clock"):
            renewed(Credentials({}, at(life)), NOW)


def test_failures_wait_longer_each_time_up_to_a_minute() -> None:
    state, waits = None, []
    for _ in range(8):
        state = failed(state, Throttled("slow down"), NOW)
        waits.append((state.renew_at - NOW).total_seconds())
    assert waits == [2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0, 60.0]


# ---------------------------------------------------------------- done


def test_handed_out_once_then_renewed_then_removed(scene: Scene) -> None:
    scene.add(1)
    for _ in range(3):
        scene.renewals.look()
    assert scene.cloud.made == [(JOB, 1, ["s3://in/x"])]
    scene.clock.advance(1619)
    scene.renewals.look()
    assert scene.token() == "t1"
    scene.clock.advance(2)
    scene.renewals.look()
    assert scene.token() == "t2" and len(scene.cloud.made) == 2
    scene.set(1, AttemptState.RELEASING)
    scene.clock.advance(7200)
    scene.renewals.look()
    assert len(scene.cloud.made) == 2, "nobody renews for a machine whose end was ordered"
    scene.set(1, AttemptState.RELEASED)
    scene.renewals.look()
    assert not scene.store.objects


def test_each_attempt_can_open_its_own_only(scene: Scene) -> None:
    scene.add(1)
    scene.add(2)
    scene.renewals.look()
    assert {scene.token(1), scene.token(2)} == {"t1", "t2"}
    one = scene.store.objects[object_keys.handout_key(JOB, 1)]
    with pytest.raises(ValueError, match="do not open"):
        unseal_handout(one, access_secret(MASTER, JOB, 2), JOB, 2)


@pytest.mark.parametrize("error", [Throttled("slow down"), ProviderDenied("no sts:AssumeRole"), ProviderError("500")])
def test_what_the_cloud_refuses_is_said_once_and_tried_again(scene: Scene, error: ProviderError) -> None:
    scene.add(1)
    scene.cloud.trouble = error
    for _ in range(60):
        scene.renewals.look()
        scene.clock.advance(1)
    assert scene.alerts() == [f"no credentials for the store could be handed to attempt 1: {error}"]
    scene.cloud.trouble = None
    scene.clock.advance(60)
    scene.renewals.look()
    assert scene.token() == "t1"


def test_a_store_that_is_down_keeps_others_from_nothing(scene: Scene) -> None:
    scene.add(1)
    scene.add(2)

    def before(verb: str, key: str) -> None:
        if verb == "put" and key.endswith("1"):
            raise StoreUnreachable("cut off")

    scene.store.before = before
    scene.renewals.look()
    assert scene.token(2) and len(scene.alerts()) == 1
    scene.store.before = lambda verb, key: None
    scene.clock.advance(3)
    scene.renewals.look()
    assert scene.token(1)


def test_a_controller_that_starts_hands_out_anew_and_tidies(scene: Scene) -> None:
    scene.add(1)
    scene.add(2)
    scene.renewals.look()
    scene.set(2, AttemptState.RELEASED)
    scene.restarted().look()
    assert scene.token(1) == "t3"
    assert list(scene.store.objects) == [object_keys.handout_key(JOB, 1)], "what an earlier one left is gone"


def test_the_sweep_lists_seldom(scene: Scene) -> None:
    lists = []
    scene.store.before = lambda verb, key: lists.append(key) if verb == "list" else None
    for _ in range(int(SWEEP_SECONDS) // 5):
        scene.renewals.look()
        scene.clock.advance(5)
    assert len(lists) == 1


def test_who_was_superseded_hands_out_nothing(scene: Scene) -> None:
    scene.add(1)
    scene.leads = False
    with pytest.raises(Superseded):
        scene.renewals.look()
    assert not scene.store.objects


def test_where_nothing_is_renewed_nothing_happens(scene: Scene) -> None:
    scene.cloud.is_renewed = False
    scene.add(1)
    scene.renewals.look()
    assert not scene.cloud.made and not scene.store.objects


def test_the_thread_looks_when_it_is_poked_and_ends(scene: Scene) -> None:
    repeated = Repeated("renewals", scene.renewals.look, 600.0, "access.failed", scene.renewals.stopping)
    repeated.start()
    scene.add(1)
    repeated.poke()
    for _ in range(500):
        if scene.store.objects:
            break
        time.sleep(0.01)
    repeated.stop()
    assert scene.renewals.stopping.is_set()
    assert scene.token() == "t1"


# ---------------------------------------------------------------- what user-data leaves out


def test_it_is_there_until_the_agent_has_reported(scene: Scene) -> None:
    scene.heard = False
    scene.add(1, AttemptState.PLANNED)
    scene.renewals.look()
    assert not scene.store.objects, "nothing was ordered yet"
    scene.set(1, AttemptState.REQUESTED)
    scene.renewals.look()
    there = object_keys.voucher_key(JOB, 1)
    assert scene.store.objects[there] == b"of 1"
    scene.set(1, AttemptState.BOOTING)
    scene.renewals.look()
    assert scene.store.writes.count(("put", there)) == 1
    scene.heard = True
    scene.renewals.look()
    assert there not in scene.store.objects and scene.token()


def test_it_is_there_again_after_a_restart_only_for_who_may_still_need_it(scene: Scene) -> None:
    scene.heard = False
    for number, state in ((1, AttemptState.BOOTING), (2, AttemptState.RUNNING), (3, AttemptState.RELEASING)):
        scene.add(number, state)
    scene.restarted().look()
    assert [k for k in scene.store.objects if k.endswith(".once")] == [object_keys.voucher_key(JOB, 1)]
    scene.heard = True
    scene.restarted().look()
    assert not [k for k in scene.store.objects if k.endswith(".once")], "removed by whoever leads when the agent reports"


def test_it_is_not_put_there_again_before_it_is_known_who_has_reported(scene: Scene) -> None:
    """Keys that were spent long ago lay in the store again after each restart, for who waits for that."""
    scene.add(1)
    scene.heard = None
    scene.renewals.look()
    assert ("put", object_keys.voucher_key(JOB, 1)) not in scene.store.writes and scene.token()
    scene.heard = True
    scene.renewals.look()
    assert ("put", object_keys.voucher_key(JOB, 1)) not in scene.store.writes
    scene.heard, there = False, object_keys.voucher_key(JOB, 1)
    scene.renewals.look()
    assert there in scene.store.objects


def test_trouble_with_what_one_leaves_out_keeps_nobody_from_credentials(scene: Scene) -> None:
    """A job that can't be read any more: no other machine was handed anything from then on."""
    scene.add(1)
    scene.add(2)
    scene.heard = False
    left_out = scene.renewals.left_out

    def fails(attempt: Attempt) -> bytes:
        if attempt.number == 1:
            raise ValueError("garbled")
        return left_out(attempt)

    scene.renewals.left_out = fails
    scene.renewals.look()
    assert {scene.token(1), scene.token(2)} == {"t1", "t2"}
    assert object_keys.voucher_key(JOB, 2) in scene.store.objects


def test_what_nobody_foresaw_in_handing_out_to_one_keeps_others_from_nothing(scene: Scene) -> None:
    scene.add(1)
    scene.add(2)
    credentials = scene.cloud.credentials

    def fails(job: str, attempt: int, inputs: Sequence[str], home: str = "") -> Credentials:
        if attempt == 1:
            raise KeyError("AccessKeyId")
        return credentials(job, attempt, inputs, home)

    scene.cloud.credentials = fails  # type: ignore[method-assign]
    scene.renewals.look()
    assert scene.token(2) and len(scene.alerts()) == 1


def test_a_removal_that_failed_is_tried_again(scene: Scene) -> None:
    scene.heard = False
    scene.add(1)
    scene.renewals.look()
    scene.heard = True

    def refused(keys: Iterable[str]) -> None:
        raise StoreUnreachable("cut off")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scene.store, "delete", refused)
        scene.renewals.look()
    assert object_keys.voucher_key(JOB, 1) in scene.store.objects and scene.token() == "t1"
    scene.renewals.look()
    assert object_keys.voucher_key(JOB, 1) not in scene.store.objects


def test_it_goes_with_a_machine_that_never_reported(scene: Scene) -> None:
    scene.heard = False
    scene.add(1)
    scene.renewals.look()
    scene.set(1, AttemptState.RELEASED)
    scene.renewals.look()
    assert not scene.store.objects


# ---------------------------------------------------------------- silence


def test_who_has_no_credentials_can_not_speak(scene: Scene) -> None:
    """Its silence is no evidence, from the failure until it was handed some again."""
    scene.add(1)
    scene.renewals.look()
    assert scene.renewals.silent_from(JOB, 1, at(5)) == NOW
    scene.clock.advance(1620)
    scene.cloud.trouble = Throttled("AssumeRole: slow down")
    scene.renewals.look()
    assert scene.renewals.silent_from(JOB, 1, at(9000)) == at(9000)
    scene.clock.advance(120)
    scene.cloud.trouble = None
    scene.renewals.look()
    assert scene.renewals.silent_from(JOB, 1, at(2000)) == scene.clock.now() == at(1740)


def test_who_is_handed_others_in_time_was_never_without(scene: Scene) -> None:
    """Each renewal began the silence anew: with credentials of a quarter of an hour and a longer lease it never counted."""
    scene.add(1)
    scene.cloud.life = 900.0
    for _ in range(5):
        scene.renewals.look()
        scene.clock.advance(405)
    assert scene.renewals.silent_from(JOB, 1, scene.clock.now()) == NOW


def test_credentials_that_nobody_renewed_in_time_let_nobody_speak(scene: Scene) -> None:
    """The controller stood still, or the cloud took an hour for the answers of others: no try of this one has failed."""
    scene.add(1)
    scene.renewals.look()
    assert scene.renewals.silent_from(JOB, 1, at(3599)) == NOW
    assert scene.renewals.silent_from(JOB, 1, at(3700)) == at(3700)
    scene.clock.advance(3700)
    scene.renewals.look()
    assert scene.renewals.silent_from(JOB, 1, at(5000)) == at(3700)


def test_where_nothing_is_renewed_silence_always_counts(scene: Scene) -> None:
    scene.cloud.is_renewed = False
    scene.add(1)
    scene.renewals.look()
    assert scene.renewals.silent_from(JOB, 1, NOW) is None
