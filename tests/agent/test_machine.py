"""The agent's table: every edge, and what each state wants done."""

from __future__ import annotations

import dataclasses

import pytest
from spotsurfer_agent.control.facts import Do, Facts, Hold, Notice, PowerOff, Release, Renew, Shut, Task
from spotsurfer_agent.control.state_machine import GUARDS, TABLE, Event, State, happened, step
from spotsurfer_agent.ports.engine import WorkloadState as W
from spotsurfer_wire.messages import AgentState as S
from spotsurfer_wire.messages import HeadKind, Want
from support.agent_facts import BACK, CLOSED, FINAL, GONE_ON, KEPT, NOTICE, RULES, SAVED, THEIRS, desired, ended, facts, state

NEW = {"workload": W.ABSENT, "head": None}
DRAIN = desired(Want.DRAIN)
EDGES: list[tuple[State, Facts, Event]] = [
    (state(S.BOOT), facts(**NEW), Event.READY),
    (state(S.BOOT, booted=False), facts(**NEW, outcome=ended(Task.BOOT)), Event.READY),
    (state(S.BOOT, booted=False), facts(**NEW, outcome=ended(Task.BOOT, "no CRIU")), Event.REFUSED),
    (state(S.BOOT), facts(**NEW, refusal="protocol 9"), Event.REFUSED),
    (state(S.BOOT), facts(), Event.ADOPTED),
    (state(S.BOOT), facts(pending_final="000002-000002"), Event.PENDING),
    (state(S.BOOT), facts(workload=W.EXITED), Event.EXITED),
    (state(S.BOOT), facts(workload=W.EXITED, step_due=True), Event.STEP_DUE),
    (state(S.BOOT), facts(workload=W.ABSENT, began_before=True, step_due=True), Event.STEP_DUE),
    (state(S.BOOT), facts(workload=W.LOST, began_before=True), Event.VANISHED),
    (state(S.BOOT), facts(workload=W.LOST, began_before=False), Event.READY),
    (state(S.BOOT), facts(head=FINAL, own_final=True, workload=W.LOST), Event.FINAL_SAVED),
    (state(S.BOOT), facts(head=CLOSED, own_done=True, workload=W.EXITED), Event.PUBLISHED),
    (state(S.BOOT), facts(**KEPT), Event.KEPT),
    (state(S.BOOT), facts(**{**KEPT, "head": GONE_ON}), Event.KEPT),
    (state(S.BOOT), facts(**{**KEPT, "head": BACK}), Event.RETURNED),
    (state(S.BOOT), facts(head=THEIRS), Event.LOST_IT),
    (state(S.BOOT), facts(**NEW, notice=NOTICE), Event.UNNEEDED),
    (state(S.STANDBY), facts(workload=W.ABSENT), Event.GRANTED),
    (state(S.STANDBY), facts(**NEW, refusal="protocol 9"), Event.REFUSED),
    (state(S.STANDBY), facts(**NEW, desired=desired(Want.STOP)), Event.UNNEEDED),
    (state(S.STANDBY), facts(workload=W.ABSENT, notice=NOTICE), Event.UNNEEDED),
    (state(S.STANDBY), facts(workload=W.ABSENT, desired=DRAIN), Event.UNNEEDED),
    (state(S.RESTORING), facts(outcome=ended(Task.BEGIN)), Event.STARTED),
    (state(S.RESTORING), facts(outcome=ended(Task.BEGIN, "no chunk", kind="restore")), Event.FAILED),
    (state(S.RESTORING), facts(busy=Task.BEGIN, desired=desired(Want.STOP)), Event.STOPPED),
    (state(S.RESTORING), facts(busy=Task.BEGIN, head=THEIRS), Event.LOST_IT),
    (state(S.RUNNING, freeze_at=900.0), facts(), Event.SAVE_DUE),
    (state(S.RUNNING), facts(desired=desired(save_at_least=2)), Event.SAVE_DUE),
    (state(S.RUNNING), facts(notice=NOTICE), Event.DRAIN),
    (state(S.RUNNING), facts(desired=DRAIN), Event.DRAIN),
    (state(S.RUNNING), facts(workload=W.EXITED), Event.EXITED),
    (state(S.RUNNING), facts(workload=W.EXITED, step_due=True, desired=DRAIN), Event.STEP_DUE),
    (state(S.RUNNING), facts(workload=W.LOST), Event.VANISHED),
    (state(S.RUNNING), facts(head=FINAL, own_final=True), Event.FINAL_SAVED),
    (state(S.RUNNING), facts(desired=desired(Want.STOP)), Event.STOPPED),
    (state(S.RUNNING), facts(head=THEIRS), Event.LOST_IT),
    (state(S.RUNNING), facts(head=CLOSED), Event.LOST_IT),
    (state(S.STEPPING), facts(outcome=ended(Task.STEP)), Event.STEPPED),
    (state(S.STEPPING), facts(outcome=ended(Task.STEP, "no such user", kind="start")), Event.FAILED),
    (state(S.STEPPING), facts(workload=W.EXITED, head=FINAL, own_final=True), Event.FINAL_SAVED),
    (state(S.STEPPING), facts(busy=Task.STEP, desired=desired(Want.STOP)), Event.STOPPED),
    (state(S.STEPPING), facts(busy=Task.STEP, head=THEIRS), Event.LOST_IT),
    (state(S.SAVING), facts(outcome=ended(Task.LIVE, save=SAVED)), Event.SAVED),
    (state(S.SAVING), facts(outcome=ended(Task.LIVE, "link cut", kind="save")), Event.SAVE_FAILED),
    (state(S.SAVING), facts(busy=Task.LIVE, notice=NOTICE), Event.DRAIN),
    (state(S.SAVING), facts(busy=Task.LIVE, desired=desired(Want.STOP)), Event.STOPPED),
    (state(S.SAVING), facts(busy=Task.LIVE, head=THEIRS), Event.LOST_IT),
    (
        state(S.DRAINING),
        facts(outcome=ended(Task.FINAL, save=SAVED), own_final=True, head=FINAL, desired=DRAIN),
        Event.FINAL_SAVED,
    ),
    (state(S.DRAINING), facts(**KEPT, outcome=ended(Task.FINAL, save=SAVED), desired=DRAIN), Event.KEPT),
    (state(S.DRAINING), facts(**{**KEPT, "rules": RULES}), Event.FINAL_SAVED),
    (state(S.KEEPING), facts(**{**KEPT, "head": BACK}, desired=DRAIN), Event.RETURNED),
    (state(S.KEEPING), facts(**KEPT, desired=desired(Want.STOP)), Event.UNNEEDED),
    (state(S.KEEPING), facts(**KEPT, notice=NOTICE, now=1116.0), Event.UNNEEDED),
    (state(S.KEEPING, since=930.0), facts(**KEPT), Event.UNNEEDED),
    (state(S.KEEPING), facts(**{**KEPT, "head": dataclasses.replace(GONE_ON, checkpoint="000003-000003")}), Event.UNNEEDED),
    (state(S.KEEPING), facts(**{**KEPT, "head": CLOSED}), Event.UNNEEDED),
    (state(S.KEEPING), facts(**{**KEPT, "pending_final": None, "workload": W.LOST}), Event.UNNEEDED),
    (state(S.RETURNING), facts(head=BACK, outcome=ended(Task.THAW)), Event.STARTED),
    (state(S.RETURNING), facts(head=BACK, outcome=ended(Task.THAW, "it hangs", kind="save")), Event.FAILED),
    (state(S.RETURNING), facts(head=BACK, desired=desired(Want.STOP)), Event.STOPPED),
    (state(S.RETURNING), facts(head=GONE_ON), Event.LOST_IT),
    (state(S.DRAINING), facts(own_final=True, head=THEIRS, workload=W.LOST), Event.FINAL_SAVED),
    (state(S.DRAINING, drain_sequence=4), facts(outcome=ended(Task.FINAL, "full"), desired=DRAIN), Event.DRAIN_FAILED),
    (state(S.DRAINING), facts(desired=desired(Want.RUN, 5)), Event.WITHDRAWN),
    (state(S.DRAINING), facts(workload=W.EXITED, desired=DRAIN, step_due=True), Event.STEP_DUE),
    (state(S.DRAINING), facts(workload=W.EXITED, desired=DRAIN), Event.EXITED),
    (state(S.DRAINING), facts(workload=W.LOST, desired=DRAIN), Event.VANISHED),
    (state(S.DRAINING), facts(notice=NOTICE, now=1116.0), Event.LATE),
    (state(S.DRAINING), facts(busy=Task.FINAL, notice=NOTICE, now=1181.0), Event.LATE),
    (state(S.DRAINING), facts(busy=Task.FINAL, desired=desired(Want.STOP)), Event.STOPPED),
    (state(S.DRAINING), facts(busy=Task.FINAL, head=THEIRS), Event.LOST_IT),
    (state(S.PUBLISHING), facts(workload=W.EXITED, head=CLOSED, own_done=True), Event.PUBLISHED),
    (state(S.PUBLISHING), facts(workload=W.EXITED, desired=desired(Want.STOP)), Event.STOPPED),
    (state(S.PUBLISHING), facts(workload=W.EXITED, head=CLOSED), Event.LOST_IT),
]


@pytest.mark.parametrize(("before", "seen", "event"), EDGES, ids=[f"{b.name}-{e}-{i}" for i, (b, _, e) in enumerate(EDGES)])
def test_edge(before, seen, event):
    after, _ = step(before, seen)
    assert after.name is TABLE[before.name][event]
    absorbed = step(before, dataclasses.replace(seen, head=seen.head))[0]
    assert absorbed == after, "pure: the same look gives the same answer"


def test_every_edge_of_the_table_is_in_the_list_above():
    taken = set()
    for before, seen, event in EDGES:
        booted = before.booted or (seen.outcome is not None and not seen.outcome.error)
        drained = before.drain_sequence if event is Event.DRAIN_FAILED else before.drain_failed
        looked_at = dataclasses.replace(before, booted=booted, drain_failed=drained)
        assert happened(looked_at, seen) is event
        taken.add((before.name, event))
    assert taken == {(name, event) for name, edges in TABLE.items() for event in edges}


def test_guards_only_name_edges_that_exist():
    assert {(n, e) for n, guards in GUARDS.items() for e, _ in guards} == {(n, e) for n, edges in TABLE.items() for e in edges}


# ---------------------------------------------------------------- waiting


def test_waits_for_its_grant_while_somebody_else_owns_or_ends_the_job():
    for head in (None, THEIRS, dataclasses.replace(THEIRS, epoch=1), CLOSED):
        after, effects = step(state(S.STANDBY), facts(workload=W.ABSENT, head=head))
        assert (after.name, effects) == (S.STANDBY, ())


def test_starts_nothing_before_its_own_report_is_out():
    after, effects = step(state(S.STANDBY), facts(workload=W.ABSENT, lease_age_seconds=float("inf")))
    assert (after.name, effects) == (S.STANDBY, ())


def test_waits_no_longer_than_the_limit():
    rules = dataclasses.replace(RULES, limit_seconds=300.0)
    assert step(state(S.STANDBY, since=701.0), facts(**NEW, rules=rules))[0].name is S.STANDBY
    assert step(state(S.STANDBY, since=699.0), facts(**NEW, rules=rules))[0].name is S.HALTED


def test_a_drain_that_is_wanted_of_somebody_elses_turn_is_waited_out():
    assert step(state(S.STANDBY), facts(workload=W.ABSENT, head=THEIRS, desired=DRAIN))[0].name is S.STANDBY


def test_a_rebalance_notice_moves_nothing():
    notice = Notice("rebalance", "r", None)
    assert step(state(S.RUNNING), facts(notice=notice))[0].name is S.RUNNING
    assert step(state(S.STANDBY), facts(notice=notice, workload=W.ABSENT, head=None))[0].name is S.STANDBY


# ---------------------------------------------------------------- saving


def test_interval_counts_from_the_freeze_not_from_the_end_of_the_save():
    after, _ = step(state(S.SAVING), facts(outcome=ended(Task.LIVE, save=SAVED)))
    assert after.freeze_at == 1000.0 - SAVED.durable_seconds
    assert step(after, facts(now=after.freeze_at + 99.9))[0].name is S.RUNNING
    assert step(after, facts(now=after.freeze_at + 100.0))[0].name is S.SAVING


def test_a_jobs_own_wish_counts_half_a_minute_after_the_save_before():
    after, _ = step(state(S.SAVING), facts(outcome=ended(Task.LIVE, save=SAVED)))
    early, late = after.freeze_at + 29.9, after.freeze_at + 30.0
    assert step(after, facts(now=early, wishes_save=True))[0].name is S.RUNNING
    assert step(after, facts(now=late))[0].name is S.RUNNING
    assert step(after, facts(now=late, wishes_save=True))[0].name is S.SAVING
    assert step(after, facts(now=late, wishes_save=True, unprotected=True))[0].name is S.RUNNING


def test_a_failed_live_save_is_tried_again_later_and_later():
    current, waits = state(S.SAVING), []
    now = 2000.0
    for _ in range(9):
        current, _ = step(current, facts(now=now, outcome=ended(Task.LIVE, "link cut", kind="save")))
        assert (current.name, current.error) == (S.RUNNING, "link cut")
        waits.append(current.live_at - now)
        now = current.live_at
        current, effects = step(current, facts(now=now))
        assert effects == (Do(Task.LIVE),)
    assert waits == sorted(waits)
    assert waits[0] == 1.0
    assert waits[-1] == 60.0


def test_a_live_save_under_way_is_overtaken_by_the_final_one_at_once():
    after, effects = step(state(S.SAVING), facts(busy=Task.LIVE, notice=NOTICE))
    assert (after.name, effects) == (S.DRAINING, ())
    after, effects = step(after, facts(outcome=ended(Task.LIVE, "torn"), notice=NOTICE))
    assert (after.name, effects) == (S.DRAINING, (Do(Task.FINAL),))


def test_drain_that_was_asked_for_fails_and_the_job_runs_on_until_asked_anew():
    current, effects = step(state(S.RUNNING), facts(desired=DRAIN))
    assert (current.drain_sequence, effects) == (4, (Do(Task.FINAL),))
    newer = desired(Want.DRAIN, 5)
    current, _ = step(current, facts(outcome=ended(Task.FINAL, "disk full", kind="save"), desired=DRAIN))
    assert (current.name, current.drain_failed, current.error) == (S.RUNNING, 4, "disk full")
    assert step(current, facts(desired=DRAIN, now=5000.0))[0].name is not S.DRAINING
    assert step(current, facts(desired=newer))[1] == (Do(Task.FINAL),)


def test_failure_belongs_to_the_drain_that_was_begun():
    current = state(S.DRAINING, drain_sequence=4)
    current, _ = step(current, facts(outcome=ended(Task.FINAL, "disk full"), desired=desired(Want.DRAIN, 6)))
    assert current.drain_failed == 4
    assert step(current, facts(desired=desired(Want.DRAIN, 6)))[0].name is S.DRAINING


def test_after_a_notice_a_failed_final_save_is_tried_until_the_window_closes():
    current, tries, now, outcome = state(S.RUNNING), 0, 1000.0, None
    while current.name is not S.OVERRUN:
        current, effects = step(current, facts(now=now, notice=NOTICE, outcome=outcome))
        tries += effects.count(Do(Task.FINAL))
        outcome = ended(Task.FINAL, "link cut") if Do(Task.FINAL) in effects else None
        now += 0.5
    assert now <= 1116
    assert tries > 30, "with short pauses, not once"
    assert current.drain_failed == 0


def test_a_notice_drains_even_where_the_drain_that_was_asked_for_failed():
    failed = state(S.RUNNING, drain_failed=4)
    assert step(failed, facts(desired=DRAIN, notice=NOTICE))[1] == (Do(Task.FINAL),)


def test_a_final_save_under_way_at_the_deadline_is_let_go_on_for_a_while():
    late = facts(notice=NOTICE, now=1119.0, busy=Task.FINAL)
    assert step(state(S.DRAINING), late)[0].name is S.DRAINING


def test_a_final_save_that_outlived_its_agent_is_settled_and_nothing_else():
    current, effects = step(state(S.BOOT), facts(pending_final="000002-000002"))
    assert (current.name, effects) == (S.DRAINING, (Do(Task.SETTLE),))
    current, effects = step(current, facts(pending_final="000002-000002", outcome=ended(Task.SETTLE, "store down")))
    assert (current.name, effects) == (S.DRAINING, ())
    current, effects = step(current, facts(pending_final="000002-000002", now=current.retry_at))
    assert effects == (Do(Task.SETTLE),)
    assert step(current, facts(outcome=ended(Task.SETTLE)))[0].name is S.RUNNING
    assert step(current, facts(outcome=ended(Task.SETTLE), own_final=True, head=FINAL))[0].name is S.DRAINED


# ---------------------------------------------------------------- lease


def test_lapse_holds_and_only_proof_after_it_releases():
    current, effects = step(state(S.RUNNING), facts(lease_age_seconds=60.1))
    assert (effects, current.held_since) == ((Hold(),), 1000.0)
    current, effects = step(current, facts(lease_age_seconds=80.0, held=True))
    assert effects == (), "held, and nothing else to do while the store is silent"
    current, effects = step(current, facts(lease_age_seconds=80.0, held=False))
    assert effects == (Hold(),), "a hold that did not take is repeated"
    current, effects = step(current, facts(held=True, proved_at=999.0))
    assert effects == (Renew(),), "fresh again, but a grant may be on its way"
    current, effects = step(current, facts(held=True, proved_at=1000.5))
    assert (effects, current.held_since) == ((Release(),), None)


def test_a_job_found_held_is_not_released_on_hope():
    current, effects = step(state(S.BOOT), facts(held=True))
    assert (current.held_since, effects) == (1000.0, (Hold(),))
    assert step(current, facts(held=True))[1] == (Renew(),)


def test_held_and_another_owner_is_the_end():
    current = state(S.RUNNING, held_since=900.0)
    after, effects = step(current, facts(held=True, head=THEIRS))
    assert after.name is S.FENCED
    assert Release() not in effects


def test_nothing_is_saved_while_held():
    current = state(S.RUNNING, held_since=900.0, freeze_at=0.0)
    for changes in ({}, {"notice": NOTICE}, {"desired": DRAIN}, {"desired": desired(save_at_least=9)}):
        _, effects = step(current, facts(held=True, lease_age_seconds=99.0, **changes))
        assert effects == ()


def test_what_was_restored_after_the_lapse_is_held_as_soon_as_it_runs():
    after, effects = step(state(S.RESTORING), facts(outcome=ended(Task.BEGIN), lease_age_seconds=61.0))
    assert (after.name, effects) == (S.RUNNING, (Hold(),))


# ---------------------------------------------------------------- ends


def test_fenced_holds_at_once_shuts_the_store_and_kills_when_the_save_is_over():
    current, effects = step(state(S.SAVING), facts(busy=Task.LIVE, head=THEIRS))
    assert current.name is S.FENCED
    assert [type(e) for e in effects] == [Hold, Shut]
    current, effects = step(current, facts(outcome=ended(Task.LIVE, "shut"), held=True, head=THEIRS))
    assert Do(Task.KILL) in effects


def test_death_is_shown_only_when_it_is_done():
    current, effects = step(state(S.RUNNING), facts(head=THEIRS))
    assert (current.name, current.shown) == (S.FENCED, S.RUNNING)
    assert Do(Task.KILL) in effects
    current, effects = step(current, facts(head=THEIRS, outcome=ended(Task.KILL, "still there")))
    assert current.shown is S.RUNNING
    current, effects = step(current, facts(head=THEIRS, now=current.retry_at + 1, outcome=ended(Task.KILL), workload=W.LOST))
    assert current.shown is S.FENCED
    assert PowerOff() not in effects
    assert PowerOff() in step(current, facts(head=THEIRS, workload=W.LOST, reported=True))[1]


def test_the_power_goes_although_the_last_report_does_not():
    current = state(S.BROKEN, since=1000.0, killed=True)
    assert PowerOff() not in step(current, facts(now=1119.0, workload=W.LOST))[1]
    assert PowerOff() in step(current, facts(now=1120.0, workload=W.LOST))[1]


def test_a_vanished_job_says_so():
    after, _ = step(state(S.RUNNING), facts(workload=W.LOST))
    assert (after.name, after.error_kind) == (S.BROKEN, "lost")
    assert after.error


def test_a_failed_restore_keeps_its_sentence():
    after, _ = step(state(S.RESTORING), facts(outcome=ended(Task.BEGIN, "avx512 is missing", kind="restore")))
    assert (after.error, after.error_kind) == ("avx512 is missing", "restore")


def test_publishing_is_repeated_until_it_works():
    current, effects = step(state(S.RUNNING), facts(workload=W.EXITED))
    assert effects == (Do(Task.PUBLISH),)
    current, effects = step(current, facts(workload=W.EXITED, outcome=ended(Task.PUBLISH, "store down", kind="store")))
    assert (current.name, effects, current.error) == (S.PUBLISHING, (), "store down")
    current, effects = step(current, facts(workload=W.EXITED, now=current.retry_at))
    assert effects == (Do(Task.PUBLISH),)
    current, effects = step(current, facts(workload=W.EXITED, outcome=ended(Task.PUBLISH, note="no a.txt"), own_done=True))
    assert (current.name, current.error, current.error_kind) == (S.FINISHED, "no a.txt", "output")


def test_a_step_waits_for_a_head_entry_of_its_own_after_a_lapse():
    between = {"workload": W.EXITED, "step_due": True}
    current, effects = step(state(S.STEPPING), facts(lease_age_seconds=61.0, **between))
    assert (effects, current.held_since) == ((), 1000.0)
    current, effects = step(current, facts(**between))
    assert effects == (Renew(),), "reading alone is no proof"
    current, effects = step(current, facts(proved_at=1000.5, **between))
    assert effects == (Do(Task.STEP),)


def test_who_vanished_did_so_whatever_failed_before():
    """A damaged image must count against its checkpoint, not the hook that failed as it was restored."""
    hook = state(S.RUNNING, error="after_restore: exit code 1", error_kind="hook")
    gone, _ = step(hook, facts(workload=W.LOST, lost_because="a chunk is damaged", image_is_bad=True))
    assert (gone.name, gone.error, gone.error_kind) == (S.BROKEN, "a chunk is damaged", "restore")
    gone, _ = step(hook, facts(workload=W.LOST))
    assert gone.error_kind == "lost"


def test_a_job_that_is_kept_stands_still_until_it_is_given_back():
    """Who else has it, and for how long, does not matter: nothing of it is saved, ended or let go."""
    for head in (KEPT["head"], GONE_ON, dataclasses.replace(GONE_ON, kind=HeadKind.RENEW, number=7)):
        after, effects = step(state(S.KEEPING), facts(**{**KEPT, "head": head}, desired=DRAIN))
        assert (after.name, effects) == (S.KEEPING, ())


def test_a_job_that_came_back_is_let_go_only_while_it_is_surely_ours():
    back = {**KEPT, "head": BACK, "own_final": False}
    assert step(state(S.KEEPING), facts(**back))[1] == (Do(Task.THAW),)
    assert step(state(S.KEEPING), facts(**back, lease_age_seconds=61.0))[0].name is S.KEEPING
    waits, effects = step(state(S.RETURNING, held_since=990.0), facts(**back, held=True))
    assert (waits.name, effects) == (S.RETURNING, (Renew(),))


def test_the_drain_that_led_there_does_not_begin_again():
    after, _ = step(state(S.KEEPING), facts(**{**KEPT, "head": BACK}, desired=DRAIN))
    assert after.drain_failed == DRAIN.sequence


def test_a_store_that_stumbles_is_asked_again_before_a_job_that_came_back_is_given_up():
    back = {**KEPT, "head": BACK, "own_final": False}
    after, _ = step(state(S.RETURNING), facts(**back, outcome=ended(Task.THAW, "no answer", kind="store")))
    assert after.name is S.RETURNING
    assert step(after, facts(**back, now=1005.0))[1] == (Do(Task.THAW),)
