"""What a job that tries to break out reaches, one test an attempt: as nobody and as root, and after a restore as before."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from spotsurfer_agent.host.launch import Privileges
from spotsurfer_agent.host.root_fs import proc_of_machine
from support.minibox import minibox

pytestmark = pytest.mark.real
USERS = ("unprivileged", "root")
Told = dict[str, Any]


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """What the scene said, by its words: each is played once."""
    with ExitStack() as boxes:
        kept: dict[str, Told] = {}

        def played(words: str) -> Told:
            if words not in kept:
                folder = tmp_path_factory.mktemp("walls")
                box = boxes.enter_context(minibox(folder / "box", folder / "store", module="support.wall_scenes"))
                kept[words] = {}
                kept[words] = json.loads(box.run(*words.split()).splitlines()[-1])
            assert kept[words], "the scene failed in a test before"
            return kept[words]

        yield played


@pytest.mark.parametrize("user", USERS)
@pytest.mark.parametrize(
    "attempt",
    [
        "metadata_ipv4",
        "metadata_ipv6",
        "machine_by_link_local",
        "agent_memory",
        "agent_socket",
        "agent_folder",
        "machine_socket",
        "machine_run",
        "disk_by_mknod",
        "disk_in_dev",
        "kernel_in_dev",
        "write_in_dev",
        "mounts",
        "namespaces",
        "setuid_program",
        "kernel_settings",
        "device_on_disk",
        "mounts_with_devices",
        "file_by_handle",
        "raw_network",
        "network_settings",
        "load_module",
    ],
)
def test_a_job_does_not_get_by(told: Any, user: str, attempt: str) -> None:
    seen = told(f"breaks_out {user}")
    assert [seen[when]["attempts"][attempt] for when in ("first", "then")] == ["", ""]


@pytest.mark.parametrize(("user", "uid", "capabilities"), [("unprivileged", 65534, 0), ("root", 0, 0x405FB)])
def test_a_job_is_who_it_should_be_and_stays_that_in_a_restore(told: Any, user: str, uid: int, capabilities: int) -> None:
    seen = told(f"breaks_out {user}")
    me = seen["first"]["identity"]
    assert seen["then"]["identity"] == me
    assert me["Uid"] == me["Gid"] == " ".join(4 * [str(uid)])
    assert {int(me[name], 16) for name in ("CapPrm", "CapEff", "CapBnd")} == {capabilities}
    assert (int(me["CapInh"], 16), int(me["CapAmb"], 16), me["NoNewPrivs"], me["Seccomp"]) == (0, 0, "1", "2")
    assert Privileges.of_user(uid).capabilities == capabilities


@pytest.mark.parametrize("user", USERS)
def test_its_mounts_are_as_closed_after_a_restore(told: Any, user: str) -> None:
    seen = told(f"breaks_out {user}")
    assert seen["then"]["mounts"] == seen["first"]["mounts"]
    switches = {point: flags for point, flags in seen["first"]["mounts"].items() if point.startswith("/proc/")}
    assert set(switches) == {f"/proc/{name}" for name in proc_of_machine()}, "this kernel's, in the job's own /proc"
    assert all("ro" in flags for flags in switches.values())


@pytest.mark.parametrize("user", USERS)
def test_a_hook_may_no_more_than_the_job(told: Any, user: str) -> None:
    seen = told(f"breaks_out {user}")
    lines = dict(line.split(":", 1) for line in seen["hook"].splitlines())
    me = seen["first"]["identity"]
    assert {name: " ".join(lines[name].split()) for name in me} == me


@pytest.mark.parametrize("user", USERS)
def test_what_a_job_may_expect_is_there(told: Any, user: str) -> None:
    seen = told(f"breaks_out {user}")
    assert [x for when in ("first", "then") for x in seen[when]["work"].items() if x[1]] == []


@pytest.mark.parametrize("when", ["usual", "walled"])
@pytest.mark.parametrize(
    "what",
    ["metadata by IPv4", pytest.param("metadata by IPv6", marks=pytest.mark.always), "machine by IPv4", "machine by IPv6"],
)
def test_the_network_ends_at_the_machine_whatever_the_job_may(told: Any, when: str, what: str) -> None:
    assert told("network")[when][what] == ((when, what) == ("usual", "machine by IPv4")), "its way out leads by the machine"
