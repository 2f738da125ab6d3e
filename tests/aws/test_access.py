"""A machine's way to the store with credentials that are handed out, sealed, and renewed."""

# pyright: reportOptionalMemberAccess=false
from __future__ import annotations

import dataclasses
import json
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from spotsurfer_agent.prepare.inputs.sources import Sources
from spotsurfer_agent.store.credentials import BootStore, Claim, Credentials, StoreAccess, wait_for_first
from spotsurfer_wire import object_keys
from spotsurfer_wire.crypto import access_secret
from spotsurfer_wire.input_addresses import OwnStore
from spotsurfer_wire.messages import AgentConfig, Fetch
from spotsurfer_wire.sealed_objects import BadHandout, Handout, seal_handout, unseal_handout
from spotsurfer_wire.store.port import StoreDenied, StoreError
from support.dict_store import DictStore
from support.role_store import ROLE_TOKEN, RoleStore

pytestmark = pytest.mark.real

JOB, ATTEMPT, MASTER = "assembly-abc123", 3, b"m" * 32
KEY = access_secret(MASTER, JOB, ATTEMPT)
AT = object_keys.handout_key(JOB, ATTEMPT)


def handout(token: str, life: float = 3600.0) -> Handout:
    values = {"access_key_id": "ASIAJOB", "secret_access_key": "secret", "token": token}
    return Handout(values, life, "2026-11-22T05:00:00+00:00")


@pytest.fixture
def cloud() -> Iterator[RoleStore]:
    with RoleStore() as made:
        made.rights |= {"one": ("jobs/", "live/"), "two": ("jobs/", "live/")}
        yield made


def config(cloud: RoleStore, **more: Any) -> AgentConfig:
    given: dict[str, Any] = {"store_options": cloud.options, "metadata_url": cloud.url, "access_secret": KEY.hex()}
    return AgentConfig(JOB, ATTEMPT, "s3://bucket", **{**given, **more})


def hand_out(cloud: RoleStore, token: str, life: float = 3600.0) -> None:
    cloud.objects[AT] = seal_handout(handout(token, life), KEY, JOB, ATTEMPT)


def until(good: Callable[[], bool], seconds: float = 10.0) -> None:
    end = time.monotonic() + seconds
    while not good():
        assert time.monotonic() < end, "it did not come to pass"
        time.sleep(0.02)


# ---------------------------------------------------------------- the seal


def test_what_is_sealed_opens_for_its_attempt_alone() -> None:
    sealed = seal_handout(handout("t"), KEY, JOB, ATTEMPT)
    assert unseal_handout(sealed, KEY, JOB, ATTEMPT) == handout("t")
    assert b"ASIAJOB" not in sealed and b"secret" not in sealed
    assert sealed != seal_handout(handout("t"), KEY, JOB, ATTEMPT)
    for key, job, attempt in (
        (access_secret(MASTER, JOB, 4), JOB, ATTEMPT),
        (access_secret(b"x" * 32, JOB, ATTEMPT), JOB, ATTEMPT),
        (KEY, JOB, 4),
        (KEY, "assembly-abc12", ATTEMPT),
    ):
        with pytest.raises(BadHandout, match="do not open"):
            unseal_handout(sealed, key, job, attempt)


def test_forged_ones_do_not_open() -> None:
    sealed = seal_handout(handout("t"), KEY, JOB, ATTEMPT)
    forged = [sealed[:i] + bytes([sealed[i] ^ 1]) + sealed[i + 1 :] for i in range(len(sealed))]
    for data in (*forged, b"", sealed[:4], sealed[:20], b"SSA1", json.dumps({"values": {}}).encode()):
        with pytest.raises(BadHandout):
            unseal_handout(data, KEY, JOB, ATTEMPT)


def test_keys_of_attempts_are_no_concatenations() -> None:
    made = {access_secret(MASTER, *x) for x in (("j", 11), ("j.1", 1), ("j1", 1), ("j", 1))}
    assert len(made) == 4


def test_nothing_of_it_is_printed() -> None:
    purse = Credentials(Claim(JOB, ATTEMPT, KEY.hex()), DictStore, handout("t"))
    assert "secret" not in repr(purse.held) and KEY.hex() not in repr(purse.claim)


# ---------------------------------------------------------------- a purse and its clock


class Scene:
    """A purse on a store of our own; time is a number, and who looks beside is waited for."""

    def __init__(self, first: Handout | None = None) -> None:
        self.time, self.store, self.reads = 1000.0, DictStore(), 0
        self.trouble: StoreError | None = None
        self.store.before = self._before
        self.purse = Credentials(Claim(JOB, ATTEMPT, KEY.hex()), lambda: self.store, first, lambda: self.time)

    def _before(self, verb: str, key: str) -> None:
        if verb == "get":
            assert key == AT
            self.reads += 1
            if self.trouble is not None:
                raise self.trouble

    def put(self, token: str, life: float = 3600.0, attempt: int = ATTEMPT) -> None:
        key = access_secret(MASTER, JOB, attempt)
        self.store.objects[AT] = seal_handout(handout(token, life), key, JOB, attempt)

    def token(self) -> str:
        """What a request would be signed with, after what is looked for beside was found."""
        self.purse()
        until(lambda: not any(t.name == "credentials" for t in threading.enumerate()))
        return str(self.purse()["token"])

    def advance(self, seconds: float) -> int:
        """Requests come each ten seconds; how often the object was read for them."""
        before, end = self.reads, self.time + seconds
        while self.time < end:
            self.time += 10.0
            self.token()
        return self.reads - before


def test_it_reads_again_eight_times_a_life_and_no_more() -> None:
    scene = Scene()
    scene.put("one")
    assert scene.purse.look()
    assert scene.advance(3600.0) == 8


def test_a_renewal_at_half_life_is_seen_long_before_the_end() -> None:
    scene = Scene()
    scene.put("one")
    scene.purse.look()
    scene.time += 1800.0
    scene.put("two")
    scene.advance(460.0)
    assert scene.token() == "two"


def test_a_refusal_makes_it_look_at_once_but_not_all_the_time() -> None:
    scene = Scene()
    scene.put("one")
    scene.purse.look()
    scene.put("two")
    scene.time += 3.0
    for _ in range(5):
        scene.purse.refused()
        scene.token()
    assert scene.token() == "two"
    assert scene.reads == 2
    scene.put("one")
    scene.time += 1.0
    scene.purse.refused()
    assert scene.token() == "two", "two seconds have not passed since the last look"


@pytest.mark.parametrize("what", ["absent", "denied", "unreachable", "another attempt's", "garbage"])
def test_whatever_is_there_instead_what_is_held_is_kept_and_it_looks_on(what: str, caplog: pytest.LogCaptureFixture) -> None:
    scene = Scene()
    scene.put("one")
    scene.purse.look()
    del scene.store.objects[AT]
    if what in ("denied", "unreachable"):
        scene.trouble = StoreDenied("access/x: no") if what == "denied" else StoreError("cut off")
    if what == "another attempt's":
        scene.put("other", attempt=4)
    if what == "garbage":
        scene.store.objects[AT] = b"garbage"
    scene.advance(600.0)
    assert scene.token() == "one"
    assert len([r for r in caplog.records if r.levelname == "WARNING"]) == 1, "said once, not each time"
    scene.trouble = None
    scene.put("two")
    scene.time += 3.0
    scene.token()
    assert scene.token() == "two"


def test_the_wall_clock_is_never_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that believes it is 1999 uses what it was given; the store says whether that is any good."""
    from spotsurfer_wire import clock

    monkeypatch.setattr(clock, "utc", lambda: pytest.fail("who asks?"))
    scene = Scene()
    scene.store.objects[AT] = seal_handout(dataclasses.replace(handout("one"), issued_at="2093-01-01"), KEY, JOB, ATTEMPT)
    assert scene.purse.look() and scene.token() == "one"


def test_waiting_for_the_first_beats_and_ends() -> None:
    scene, beats, waited = Scene(), [0], [0.0]

    def wait(seconds: float) -> None:
        scene.time += seconds
        waited[0] += seconds
        if waited[0] == 5.0:
            scene.put("one")

    def beat() -> None:
        beats[0] += 1

    assert wait_for_first(scene.purse, beat, 20.0, lambda: scene.time, wait)
    assert waited[0] == 5.0 and beats[0] >= 5
    late = Scene()
    assert not wait_for_first(late.purse, beat, 20.0, lambda: late.time, lambda s: setattr(late, "time", late.time + s))
    assert late.time == pytest.approx(1020.0)


# ---------------------------------------------------------------- through obstore, over the wire


def test_the_role_fetches_them_and_they_open_the_store(cloud: RoleStore) -> None:
    hand_out(cloud, "one")
    way = StoreAccess.of(config(cloud))
    assert way.purse.look()
    store = way.open()
    store.put("jobs/x", b"1")
    assert store.get("jobs/x") == b"1" and store.get("jobs/absent") is None
    assert cloud.tokens_asked == 1, "by IMDSv2"
    assert {t for _, k, t in cloud.log if k.startswith("access/")} == {ROLE_TOKEN}
    assert {t for _, k, t in cloud.log if k.startswith("jobs/")} == {"one"}
    with pytest.raises(StoreDenied):
        store.get("runtime/x")


def test_a_machine_of_another_cloud_finds_them_in_a_bucket_of_its_own(cloud: RoleStore, tmp_path: Path) -> None:
    """And so does another process of it."""
    hand_out(cloud, "one")
    place = {"store_options": {}, "boot_url": "s3://bucket", "boot_options": cloud.options}
    elsewhere = dataclasses.replace(config(cloud, **place), store_url="s3://elsewhere")
    told = json.dumps(StoreAccess.of(elsewhere, str(tmp_path / "traffic")).carry())
    for way in (StoreAccess.of(elsewhere), StoreAccess.carried(json.loads(told))):
        assert way.purse is not None and way.purse.look()
        assert (way.url, way.boot) == ("s3://elsewhere", BootStore.of(elsewhere))
    assert {k for _, k, _ in cloud.log} == {object_keys.handout_key(JOB, ATTEMPT)}, "nothing else is asked there"


def test_before_they_are_there_requests_are_refused_and_then_they_work(cloud: RoleStore) -> None:
    """An absent object reads as forbidden where the role may not list: both mean "not yet"."""
    way = StoreAccess.of(config(cloud))
    store = way.open()
    with pytest.raises(StoreDenied, match="no credentials were handed out yet"):
        store.get("jobs/x")
    hand_out(cloud, "one")

    def works() -> bool:
        try:
            return store.get("jobs/x") is None
        except StoreDenied:
            return False

    until(works)
    assert not any(k.startswith("jobs/") and t != "one" for _, k, t in cloud.log), "nothing was asked without rights"


@pytest.mark.parametrize(
    ("status", "code"), [(400, "ExpiredToken"), (403, "InvalidAccessKeyId"), (403, "AccessDenied"), (400, "InvalidToken")]
)
def test_credentials_that_end_are_a_refusal_and_newer_ones_heal_it(cloud: RoleStore, status: int, code: str) -> None:
    hand_out(cloud, "one")
    way = StoreAccess.of(config(cloud))
    way.purse.look()
    store = way.open()
    assert store.get("jobs/x") is None
    cloud.answers["one"] = (status, code)
    with pytest.raises(StoreDenied):
        store.get("jobs/x")
    hand_out(cloud, "two")

    def works() -> bool:
        try:
            return store.get("jobs/x") is None
        except StoreDenied:
            return False

    until(works)
    assert cloud.log[-1] == ("GET", "jobs/x", "two")


def test_a_wrong_clock_is_named(cloud: RoleStore) -> None:
    hand_out(cloud, "one")
    way = StoreAccess.of(config(cloud))
    way.purse.look()
    cloud.answers["one"] = (403, "RequestTimeTooSkewed")
    with pytest.raises(StoreDenied, match="this machine's clock is wrong"):
        way.open().get("jobs/x")


def test_a_machine_without_a_role_says_so_and_goes_on(cloud: RoleStore, caplog: pytest.LogCaptureFixture) -> None:
    cloud.role = False
    assert not StoreAccess.of(config(cloud)).purse.look()
    assert "can't be read" in caplog.text


def test_another_process_goes_the_same_way(cloud: RoleStore) -> None:
    hand_out(cloud, "one", life=20.0)
    way = StoreAccess.of(config(cloud))
    way.purse.look()
    told = json.loads(json.dumps(way.carry()))
    before = cloud.asked(ROLE_TOKEN)
    other = StoreAccess.carried(told)
    store = other.open()
    assert store.get("jobs/x") is None
    assert cloud.asked(ROLE_TOKEN) == before, "it begins with what it was given"
    hand_out(cloud, "two")
    until(lambda: store.get("jobs/x") is None and cloud.log[-1][2] == "two")
    assert StoreAccess.carried(json.loads(json.dumps(StoreAccess("memory:///").carry()))).purse is None


def test_inputs_are_read_with_them_unless_something_else_is_said(cloud: RoleStore) -> None:
    cloud.rights["one"] = ("data/",)
    cloud.objects["data/x"] = b"reads"
    hand_out(cloud, "one")
    way = StoreAccess.of(config(cloud))
    way.purse.look()
    fetch, store = Fetch("s3://bucket/data/x", "x"), OwnStore("s3://bucket")
    assert [s.size for s in Sources({"s3://": cloud.options}, way.purse, store).look(fetch)] == [5]
    cloud.rights["theirs"] = ("data/",)
    own = {"access_key_id": "a", "secret_access_key": "b", "token": "theirs"}
    assert [s.size for s in Sources({"s3://": {**cloud.options, **own}}, way.purse, store).look(fetch)] == [5]
    assert [t for _, k, t in cloud.log if k == "data/x"] == ["one", "theirs"]


def test_without_a_secret_all_is_as_ever() -> None:
    way = StoreAccess.of(AgentConfig(JOB, ATTEMPT, "memory:///", {"a": "b"}))
    assert way.purse is None and way.options == {"a": "b"}
