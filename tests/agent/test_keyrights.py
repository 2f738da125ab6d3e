"""What the credentials of one machine are good for, key by key."""

from __future__ import annotations

import pytest
from spotsurfer_wire import object_keys
from support.keys import by_kind, keys_of

RIGHTS = object_keys.rights_of_attempt("j1", 2)
# Each kind of key once: a new one belongs somewhere, or this test fails.
CREATED = {"image_key", "inputs_key", "head_key", "manifest_key", "intent_key", "chunk_key", "pack_key"}
OVERWRITTEN = {
    "log_key",
    "output_prefix",
    "partial_prefix",
    "partial_key",
    "order_key",
    "live_key",
    "home_changes_key",
    "home_result_key",
}
REMOVED = {"intent_key", "log_key", "partial_prefix", "partial_key"}
OF_AN_ATTEMPT = {"log_key", "output_prefix", "live_key", "home_changes_key", "home_result_key"}  # another one's are not written
THERE_ALREADY = {"spec_key", "secrets_key", "input_key", "home_tree_key"}  # before any machine is: to create them is to fail
READ = {"desired_key", "condemned_key", "proven_key", "protected_key"}
NOT_ITS = {
    "store_key",
    "pulse_key",
    "controller_key",
    "handout_key",
    "voucher_key",
    "runtime_key",
    "home_file_key",
    "order_slot_key",
}


def test_every_kind_of_key_is_thought_of() -> None:
    assert set(by_kind("j1")) == CREATED | OVERWRITTEN | THERE_ALREADY | READ | NOT_ITS


@pytest.mark.parametrize("kind", sorted(CREATED | OVERWRITTEN | THERE_ALREADY | READ | NOT_ITS))
def test_kind_by_kind(kind: str) -> None:
    for key in by_kind("j1")[kind]:
        mine = not (kind in OF_AN_ATTEMPT and "000003" in key)
        assert RIGHTS.may_read(key) is (kind not in NOT_ITS and (mine or kind != "live_key")), key
        assert RIGHTS.may_overwrite(key) is (kind in OVERWRITTEN and mine), key
        assert RIGHTS.may_remove(key) is (kind in REMOVED and not (kind in ("intent_key", "log_key") and "000003" in key)), key
        assert RIGHTS.may_create(key) is (kind not in NOT_ITS | READ and (mine or kind != "live_key")), key


def test_nothing_of_another_job_is_opened() -> None:
    for key in keys_of("j11", "j", "other", "j1-copy"):
        may = (RIGHTS.may_read, RIGHTS.may_create, RIGHTS.may_overwrite, RIGHTS.may_remove)
        assert not any(f(key) for f in may) or key in keys_of("j1"), key


@pytest.mark.parametrize(
    "key", ["xjobs/j1/order.json", "a/jobs/j1/partial/x", "live/j1.0000021", "jobs/j1", "JOBS/j1/order.json"]
)
def test_what_looks_alike_is_something_else(key: str) -> None:
    assert not RIGHTS.may_read(key) and not RIGHTS.may_overwrite(key) and not RIGHTS.may_remove(key)


def test_the_head_log_is_written_once() -> None:
    head = object_keys.head_key("j1", 5)
    assert RIGHTS.may_create(head) and not RIGHTS.may_overwrite(head) and not RIGHTS.may_remove(head)


def test_what_jobs_of_a_folder_were_sent_is_read_and_nothing_else() -> None:
    mine, other = (object_keys.home_scope("ada", home) for home in ("/home/ada/wf", "/home/ada/other"))
    rights = object_keys.rights_of_attempt("j1", 2, mine)
    key = object_keys.home_file_key(mine, "a" * 64)
    assert rights.may_read(key)
    assert not (rights.may_create(key) or rights.may_overwrite(key) or rights.may_remove(key))
    assert not rights.may_read(object_keys.home_file_key(other, "a" * 64))
    assert not RIGHTS.may_read(key)
