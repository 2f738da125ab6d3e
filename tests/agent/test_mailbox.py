"""The head log under races and lost answers, on a real folder store and on one that fails."""

# pyright: reportOptionalMemberAccess=false, reportOptionalOperand=false
from __future__ import annotations

import dataclasses
import threading
import time

import pytest
from spotsurfer_agent.control import mailbox
from spotsurfer_agent.control.mailbox import Fenced, Heads, InDoubt, Mailbox
from spotsurfer_agent.store.layers import FenceClosed, WriteFence
from spotsurfer_wire import json_codec, object_keys
from spotsurfer_wire.messages import Desired, Done, Head, HeadKind, Spec, Want
from spotsurfer_wire.store.obstore import open_store
from spotsurfer_wire.store.port import StoreDenied, StoreError, StoreFull
from support.agent_world import JOB, DictStore


def grant(store, number: int, epoch: int, **more) -> Head:
    head = Head(**{"number": number, "kind": HeadKind.GRANT, "epoch": epoch, "checkpoint": None, "sequence": 0, "final": False,
                   "done": None, "cpu_seconds": 0.0, "nonce": f"c{number}", "at": "", **more})  # fmt: skip
    assert store.create(object_keys.head_key(JOB, number), json_codec.encode(head))
    return head


def saved(sequence: int, final: bool = False):
    def change(base: Head) -> Head:
        name = object_keys.checkpoint_id(base.epoch, sequence)
        return dataclasses.replace(base, kind=HeadKind.COMMIT, checkpoint=name, sequence=sequence, final=final)

    return change


def never():
    return None


def append(heads: Heads, change, patient=False, wait=lambda _: None, stop=never):
    heads._wait, heads._stop = wait, stop
    return heads.append(change, patient=patient)


@pytest.fixture
def store():
    return DictStore()


def entries(store) -> list[Head]:
    return [json_codec.decode(Head, store.get(x.key)) for x in store.list(object_keys.head_prefix(JOB))]


def test_reads_only_what_is_new(store):
    for number in range(1, 50):
        grant(store, number, number)
    asked = []
    store.before = lambda verb, key: asked.append((verb, key))
    heads = Heads(store, JOB, 49)
    assert heads.refresh().number == 49
    assert len(asked) == 3, "one listing, the newest, and the one after it"
    asked.clear()
    heads.refresh()
    assert asked == [("get", object_keys.head_key(JOB, 50))]


def test_an_empty_log_names_nobody(store):
    heads = Heads(store, JOB, 1)
    assert heads.refresh() is None
    with pytest.raises(Fenced, match="nobody"):
        append(heads, saved(1))


def test_commit_follows_the_newest_entry_that_is_ours(store):
    grant(store, 1, 1)
    heads = Heads(store, JOB, 1)
    assert append(heads, saved(1)).number == 2
    other_hand = Heads(store, JOB, 1)
    append(other_hand, saved(2))
    assert append(heads, saved(3)).number == 4, "it lost number 3 to its own attempt and goes on"


@pytest.mark.parametrize(
    "more", [{"epoch": 2}, {"epoch": 1, "done": Done(0, "exited")}, {"epoch": 1, "final": True, "kind": HeadKind.COMMIT}]
)
def test_nothing_follows_an_entry_that_is_not_ours_to_follow(store, more):
    grant(store, 1, 1)
    heads = Heads(store, JOB, 1)
    heads.refresh()
    grant(store, 2, **more)
    with pytest.raises(Fenced):
        append(heads, saved(1))
    assert len(entries(store)) == 2


def test_an_entry_that_nobody_would_read_is_not_written(store, monkeypatch):
    """Nor is it tried for ever: it is known that it is not there."""
    monkeypatch.setattr(mailbox, "HEAD_BYTES_MAX", 1000)
    grant(store, 1, 1)
    done = Done(0, "exited", {f"file-{n}": n for n in range(100)})
    heads = Heads(store, JOB, 1)
    with pytest.raises(StoreFull, match="too many outputs"):
        append(heads, lambda base: dataclasses.replace(base, kind=HeadKind.DONE, done=done), patient=True)
    assert len(entries(store)) == 1
    assert append(heads, saved(1)).number == 2


@pytest.mark.parametrize("patient", [True, False])
def test_lost_answer_is_our_own_entry(store, patient):
    grant(store, 1, 1)
    lost = [1]

    def lose(verb, key):
        if verb == "create" and lost:
            lost.pop()
            raise StoreError("connection reset")

    store.after = lose
    heads = Heads(store, JOB, 1)
    if patient:
        assert append(heads, saved(1, True), patient).number == 2
    else:
        with pytest.raises(StoreError):
            append(heads, saved(1), patient)
        assert append(heads, saved(2)).number == 3
    assert [h.number for h in entries(store)] == list(range(1, 3 + (not patient)))


def test_own_entry_found_by_another_thread_counts(store):
    grant(store, 1, 1)
    heads = Heads(store, JOB, 1)

    def lose_and_let_others_look(verb, key):
        if verb == "create":
            store.after = lambda v, k: None
            heads.refresh()  # the poller comes by
            raise StoreError("timeout")

    store.after = lose_and_let_others_look
    assert append(heads, saved(1, True), True).final
    assert heads.view.own_final
    assert len(entries(store)) == 2


def test_own_final_entry_counts_although_a_grant_follows_it(store):
    grant(store, 1, 1)
    heads = Heads(store, JOB, 1)

    def lose(verb, key):
        if verb == "create" and key == object_keys.head_key(JOB, 2):
            store.after = lambda v, k: None
            grant(store, 3, 2)
            raise StoreError("timeout")

    store.after = lose
    assert append(heads, saved(1, True), True).number == 2
    heads.refresh()
    assert heads.view.own_final
    assert heads.newest.epoch == 2


def test_patience_asks_until_it_is_known(store):
    grant(store, 1, 1)
    heads = Heads(store, JOB, 1)
    heads.refresh()
    waits = []

    def down(verb, key):
        if len(waits) < 100:
            raise StoreError("unreachable")

    store.before = down
    assert append(heads, saved(1, True), True, waits.append).number == 2
    assert len(waits) == 100


def test_giving_up_says_that_nothing_is_known(store):
    grant(store, 1, 1)
    heads = Heads(store, JOB, 1)
    heads.refresh()
    gate = WriteFence(store)

    def down(verb, key):
        raise StoreError("unreachable")

    store.before = down
    with pytest.raises(InDoubt):
        append(heads, saved(1, True), True, lambda _: gate.shut("fenced"), gate.check)


@pytest.mark.parametrize("error", [StoreDenied, StoreFull])
def test_a_refusal_is_an_answer(store, error):
    grant(store, 1, 1)
    heads = Heads(store, JOB, 1)
    heads.refresh()

    def refuse(verb, key):
        if verb == "create":
            raise error("no")

    store.before = refuse
    with pytest.raises(error):
        append(heads, saved(1, True), True)


def test_a_refusal_after_doubt_is_none(store):
    grant(store, 1, 1)
    heads = Heads(store, JOB, 1)
    heads.refresh()
    answers = [StoreError("timeout"), StoreDenied("token expired"), StoreDenied("token expired")]

    def answer(verb, key):
        if verb == "create" and answers:
            raise answers.pop(0)

    store.before = answer
    assert append(heads, saved(1, True), True).number == 2


def test_a_shut_gate_writes_nothing_and_still_reads(store):
    gate = WriteFence(store)
    gate.put("a", b"1")
    gate.shut("fenced")
    gate.shut("again")
    for write in (lambda: gate.put("a", b"2"), lambda: gate.create("b", b""), lambda: gate.delete(["a"])):
        with pytest.raises(FenceClosed, match="fenced"):
            write()
    assert gate.get("a") == b"1"


class Race:
    """Two attempts with two hands each, and a controller, on one log."""

    def __init__(self, store, grant_at: int) -> None:
        self.store, self.grant_at, self.won = store, grant_at, []
        self.begin = threading.Barrier(5)

    def commit(self, attempt: int) -> None:
        heads, number = Heads(self.store, JOB, attempt), 0
        self.begin.wait()
        while number < 200 and self.won.count(2) < 30:
            try:
                heads.refresh()
                append(heads, saved(number + 1))
                number += 1
                self.won.append(attempt)
            except Fenced:
                if heads.newest.epoch > attempt:
                    return
                time.sleep(0.001)

    def control(self) -> None:
        heads = Heads(self.store, JOB, 0)
        self.begin.wait()
        while True:
            newest = heads.refresh()
            assert newest is not None
            number = newest.number + 1
            wanted = dataclasses.replace(newest, number=number, kind=HeadKind.GRANT, epoch=2, nonce=f"c{number}")
            if number > self.grant_at and self.store.create(object_keys.head_key(JOB, number), json_codec.encode(wanted)):
                return


@pytest.mark.parametrize("seed", range(3))
def test_agents_and_controller_race_on_a_folder(tmp_path, seed):
    """Numbers without gaps, and no commit of an attempt after a later grant."""
    store = open_store(f"file://{tmp_path}")
    grant(store, 1, 1)
    race = Race(store, 10 + seed)
    threads = [threading.Thread(target=race.commit, args=(a,)) for a in (1, 1, 2, 2)] + [threading.Thread(target=race.control)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(60)
    log = entries(store)
    assert [h.number for h in log] == list(range(1, len(log) + 1))
    epochs = [h.epoch for h in log]
    assert epochs == sorted(epochs), "nobody commits after he was fenced"
    assert len(race.won) == sum(h.kind is HeadKind.COMMIT for h in log)
    assert race.won.count(1) >= 9 + seed
    assert race.won.count(2) >= 30


# ---------------------------------------------------------------- mailbox


def box(store, attempt=1) -> Mailbox:
    heads = Heads(store, JOB, attempt, lambda: 5.0)
    return Mailbox(store, heads, JOB, attempt, lambda: 5.0)


def test_reads_everything_in_one_go(store):
    store.put(object_keys.spec_key(JOB), json_codec.encode(Spec(JOB, ["true"])))
    store.put(object_keys.desired_key(JOB, 1), json_codec.encode(Desired(3, Want.DRAIN)))
    grant(store, 1, 1)
    mailbox = box(store)
    mailbox.poll()
    assert (mailbox.mail.spec.command, mailbox.mail.desired.sequence, mailbox.mail.head_at) == (["true"], 3, 5.0)
    assert mailbox.heads.newest.number == 1


def test_a_failing_store_leaves_what_was_known(store):
    store.put(object_keys.spec_key(JOB), json_codec.encode(Spec(JOB, ["true"])))
    store.put(object_keys.desired_key(JOB, 1), json_codec.encode(Desired(3, Want.DRAIN)))
    mailbox = box(store)
    mailbox.poll()

    def down(verb, key):
        raise StoreError("unreachable")

    known = mailbox.mail
    store.before = down
    mailbox.poll()
    assert mailbox.mail == known
    assert known.desired.sequence == 3


def test_the_head_counts_as_read_although_desired_is_not(store):
    store.put(object_keys.spec_key(JOB), json_codec.encode(Spec(JOB, ["true"])))

    def down(verb, key):
        if "desired" in key:
            raise StoreError("unreachable")

    store.before = down
    mailbox = box(store)
    mailbox.poll()
    assert mailbox.mail.head_at == 5.0


def test_no_specification_and_damaged_objects_are_sentences(store):
    mailbox = box(store)
    mailbox.poll()
    assert "no specification" in mailbox.mail.refusal
    store.put(object_keys.spec_key(JOB), json_codec.encode(Spec(JOB, ["true"])))
    store.put(object_keys.desired_key(JOB, 1), b"{")
    mailbox.poll()
    assert "Desired is not JSON" in mailbox.mail.refusal
    store.put(object_keys.desired_key(JOB, 1), json_codec.encode(Desired(3, Want.RUN)))
    mailbox.poll()
    assert mailbox.mail.refusal == ""


def test_renewal_changes_nothing_but_the_number(store):
    store.put(object_keys.spec_key(JOB), json_codec.encode(Spec(JOB, ["true"])))
    grant(store, 1, 1, checkpoint="000000-000004", sequence=4, cpu_seconds=7.0)
    mailbox = box(store)
    mailbox.renew()
    mailbox.poll()
    mailbox.poll()
    newest = entries(store)[-1]
    assert (newest.number, newest.kind, newest.checkpoint, newest.sequence) == (2, HeadKind.RENEW, "000000-000004", 4)
    assert mailbox.heads.view.proved_at == 5.0
