"""The engine's parts that need no machine: facts, mounts, control groups, output, sentences."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from spotsurfer_agent.criu import command
from spotsurfer_agent.engines.criu import CriuSave
from spotsurfer_agent.engines.job_host import JobHost
from spotsurfer_agent.host import launch, root_fs
from spotsurfer_agent.host.cgroup import JobCgroup
from spotsurfer_agent.host.root_fs import Mount, carried
from spotsurfer_agent.host.shim_protocol import ShimRefused
from spotsurfer_agent.host.tools import ToolMissing, Tools
from spotsurfer_agent.ports.engine import EngineError, blame
from spotsurfer_agent.restore import compatibility
from spotsurfer_wire.linux import cgroups, memory, syscalls
from spotsurfer_wire.linux.procfs import MountLine, mount_lines


@pytest.mark.parametrize("what", ["hold", "release"])
def test_a_shim_that_says_no_is_an_error_that_is_tried_again(what: str) -> None:
    """A process that hangs in the kernel does not stop: the agent must not die of it."""

    def no(verb: str) -> None:
        raise ShimRefused(f"{verb}: processes did not stop within 10 s")

    host = object.__new__(JobHost)
    host.shim = SimpleNamespace(ask=no)  # type: ignore[assignment]
    with pytest.raises(EngineError, match="did not stop within 10 s"):
        getattr(host, what)()


# ---------------------------------------------------------------- facts

HERE = {
    "machine": "x86_64",
    "cpu instructions": "avx avx2 sse2",
    "cpu registers": "fpu sse avx",
    "page size": "4096",
    "CRIU": "4.2.1",
    "folder": "/var/lib/spotsurfer",
    "mounts": "/dev /tmp",
    "kernel's switches in /proc": "bus sys sysrq-trigger",
    "kernel": "6.18",
}


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({}, None),
        ({"kernel": "5.15"}, None),
        ({"CRIU": "4.2"}, None),
        ({"CRIU": "4.10"}, "4.10"),
        ({"cpu instructions": "sse2"}, None),
        ({"cpu instructions": "avx512f sse2"}, "avx512f"),
        ({"cpu registers": "fpu sse avx avx512f"}, "avx512f"),
        ({"machine": "aarch64"}, "aarch64"),
        ({"page size": "65536"}, "65536"),
        ({"mounts": "/data /dev /tmp"}, "/data"),
        ({"kernel's switches in /proc": "bus sys"}, None),
        ({"kernel's switches in /proc": "bus scsi sys"}, "missing here: scsi"),
        ({"file /no/such/file": "12 bytes"}, "absent"),
        ({"file /no/such/file": "absent"}, None),
        ({"something new": "whatever"}, None),
    ],
)
def test_facts_that_do_not_fit_are_told_with_both_values(change, told):
    why = compatibility.refusal({**HERE, **change}, HERE)
    assert (why is None) == (told is None)
    if told is not None:
        assert why is not None
        assert told in why


def test_files_in_use_are_found_with_size_and_build_id(tmp_path):
    held = (tmp_path / "held").open("w")
    assert not [
        x for x in compatibility.files([os.getpid()], "/var/lib/spotsurfer", written=["/usr"]) if x.startswith("file /usr/")
    ]
    found = compatibility.files([os.getpid()], "/var/lib/spotsurfer")
    held.close()
    program = Path(sys.executable).resolve()
    library = next(p for p in found if "libc.so" in p)
    assert f"file {program}" in found
    assert "build-id" in found[library]
    assert not any("/tmp/" in p for p in found)
    assert str(program.stat().st_size) in found[f"file {program}"]


def test_a_build_id_is_read_out_of_the_program():
    found = compatibility.build_id("/bin/ls").rpartition(" ")[2]
    assert len(found) == 40
    assert bytes.fromhex(found) in Path("/bin/ls").read_bytes()
    assert compatibility.build_id("/etc/passwd") == ""


# ---------------------------------------------------------------- mounts

TABLE = """\
22 1 254:0 / / rw,relatime - ext4 /dev/vda rw
23 22 0:5 / /dev rw - devtmpfs dev rw
24 22 254:1 / /usr rw - ext4 /dev/vdb rw
25 24 254:2 / /usr/local\\040x rw - xfs /dev/vdc rw
26 22 254:3 / /boot rw - ext4 /dev/vdd rw
27 22 0:7 / /mnt rw - tmpfs t rw
28 27 254:4 / /mnt/data rw - ext4 /dev/vde rw
29 22 254:5 / /data rw - btrfs /dev/vdf rw
30 22 0:8 / /hidden rw - tmpfs t rw
31 22 254:6 / /home rw - ext4 /dev/vdg rw
32 31 0:9 / /home rw - tmpfs over rw
33 22 254:7 / /var/lib/spotsurfer rw - btrfs /dev/vdh rw
"""


@pytest.fixture
def bound(monkeypatch):
    """What is bound: source, target and flags; nothing is mounted."""
    found = []
    monkeypatch.setattr(syscalls, "bind", lambda source, target, flags=0: found.append((source, target, flags)))
    for what in (
        (syscalls, "mount"),
        (syscalls, "pivot_root"),
        (root_fs, "mount_dev"),
        (root_fs, "mount_run"),
        (root_fs.os, "chdir"),
    ):
        monkeypatch.setattr(*what, lambda *_: None)
    return found


def test_a_device_opens_in_the_jobs_dev_alone(bound):
    disk, scratch = Mount("disk-data", "/data", "/data", True), Mount("scratch", "/s", "/base")
    root_fs.build("/r", [root_fs.DEV, disk, root_fs.RUN, scratch, root_fs.SECRETS])
    fixed = syscalls.MS_RDONLY | syscalls.MS_NODEV
    assert bound == [("/", "/r", fixed), ("/data", "/r/data", fixed), ("/s", "/r/base", syscalls.MS_NODEV)]


def test_the_kernels_switches_are_read_only_in_a_jobs_proc(bound, tmp_path):
    """A root without any capability may write to them: the kernel asks for rights over files alone."""
    (tmp_path / "proc").mkdir()
    for name in ("sys", "bus", "fs", "irq", "driver", "scsi", "dynamic_debug", "1", "tty"):
        (tmp_path / "proc" / name).mkdir()
    (tmp_path / "proc" / "sysrq-trigger").touch()
    root_fs.enter(str(tmp_path))
    fixed = [target for _, target, flags in bound if flags == syscalls.MS_RDONLY]
    switches = ("sys", "bus", "fs", "irq", "driver", "sysrq-trigger", "scsi", "dynamic_debug")  # this kernel has no /proc/acpi
    assert sorted(fixed) == sorted(f"{tmp_path}/proc/{name}" for name in switches)


def test_only_disks_that_the_job_can_reach_are_carried():
    assert carried(mount_lines(TABLE), "/var/lib/spotsurfer") == ["/data", "/usr", "/usr/local x"]


# ---------------------------------------------------------------- control groups


def test_v1_hierarchies_are_found_by_controller():
    text = (
        "30 20 0:30 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"
        "31 20 0:31 /box /sys/fs/cgroup/freezer rw - cgroup cgroup rw,freezer\n"
        "32 20 0:32 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n"
    )
    found = cgroups._mounted(text)
    assert found["cpuacct"] == ("/", "/sys/fs/cgroup/cpu,cpuacct")
    assert cgroups._place(found["freezer"], "/box/agent") == "/sys/fs/cgroup/freezer/agent"
    assert cgroups._place(found["cpuacct"], "/") == "/sys/fs/cgroup/cpu,cpuacct"
    assert cgroups._place(found[""], "/a/b") == "/sys/fs/cgroup/unified/a/b"
    assert cgroups._place(found.get("memory"), "/") is None


def test_a_v2_group_freezes_and_measures_by_its_files(tmp_path):
    """A folder plays the kernel: it says frozen as soon as it is told to freeze."""
    (tmp_path / "cgroup.events").write_text("populated 1\nfrozen 1\n")
    (tmp_path / "cpu.stat").write_text("usage_usec 2500000\nuser_usec 1\n")
    (tmp_path / "memory.current").write_text("4096\n")
    (tmp_path / "cgroup.procs").write_text("")
    (tmp_path / "cgroup.freeze").write_text("0\n")
    group = JobCgroup({"": str(tmp_path)})
    group.freeze()
    assert (tmp_path / "cgroup.freeze").read_text() == "1"
    group.thaw()
    assert (tmp_path / "cgroup.freeze").read_text() == "0"
    assert group.cpu_seconds() == 2.5
    assert group.memory_bytes() == 4096
    assert group.kill()
    assert group.entries() == [f"{tmp_path}/cgroup.procs"]


def test_every_user_may_look_into_the_group_whatever_the_umask(tmp_path):
    """CRIU looks for the freezer as the job's user, and can't save a job at the end of its memory when it does not find it."""
    before = os.umask(0o077)
    try:
        JobCgroup({"freezer": str(tmp_path / "job")}).create()
    finally:
        os.umask(before)
    assert (tmp_path / "job").stat().st_mode & 0o777 == 0o755


# ---------------------------------------------------------------- calls


@pytest.mark.parametrize(
    ("log", "told"),
    [
        (
            "(00.01) Error (criu/files-reg.c:1): File usr/x has bad size 103 (expect 49)",
            "changed its size: 103 bytes, 49 expected",
        ),
        ("(00.01) Error (x): Can't setup RLIMIT_NOFILE for self\n(00.02)  12: Error (y): odd thing", "odd thing"),
        ("(00.01) Error (criu/x.c:1): Can't open file usr/lib/x.so: No such", "usr/lib/x.so: is not there"),
        ("(00.01) pie: 1: Error (x): Can't fork for 9: File exists", "process number 9"),
        (
            "(00.01) Error (compel/src/lib/infect.c:358): Unseizable non-zombie 24 found, state t, err -1/0",
            "process 24 can't be stopped",
        ),
        ("(00.01) Error (x): Unseizable non-zombie 24 found, state D, err -1/0", "it waits in the kernel, for a child"),
        ("(00.01) Error (x): Can't make VM id for 24", "process 24 shares its memory with another"),
        ("(00.01) Error (x): Can't make FS id for 24", "process 24 shares its working folder"),
        ("(00.01) Error (x): Can't get rlimit 0: Operation not permitted", "several users, and this machine's root lacks"),
        ("(00.01) Error (x): unix: Non-empty write queue on an in-flight socket 0x7", "has not accepted the connection yet"),
        ("(00.01) Error (x): \tCan't dump that handle", "watches a file (inotify) that was deleted"),
        ("(00.01) Error (x): Can't find a session leader for 12", "session 12 has no leader"),
        ("(00.01) Warn  (x): harmless", "fallback"),
        ("", "fallback"),
    ],
)
def test_criu_errors_become_sentences(tmp_path, log, told):
    path = tmp_path / "log"
    path.write_text(log + "\n")
    assert told.split(":")[0] in command.sentence(path, "fallback")


SHORT = "the machine has too little memory: 9 MiB are needed, 3 MiB are free"
MAP = "(00.01)  7: Error (criu/mem.c:964): Unable to map ANON_VMA: Cannot allocate memory"


@pytest.mark.parametrize(
    ("log", "fallback", "lacks", "told"),
    [
        (MAP, "", SHORT, SHORT),
        (MAP, "", "", "the kernel refused a mapping of the job's memory: compare vm.overcommit_memory"),
        ("(00.01) Error (x): Can't fork for 9: Cannot allocate memory", "", "", "for which there is memory"),
        ("", "criu restore ended with -9", SHORT, SHORT),
        ("", "criu restore ended with -9", "", "ended with -9"),
        ("", "criu restore ended with 1", SHORT, "ended with 1"),
        ("(00.01) Error (criu/x.c:1): Can't open file usr/lib/x.so: No such", "", SHORT, "the file usr/lib/x.so"),
    ],
)
def test_too_little_memory_is_said_only_where_it_lacks(tmp_path, log, fallback, lacks, told):
    path = tmp_path / "log"
    path.write_text(log + "\n")
    assert told in command.sentence(path, fallback, lacks)
    assert lacks != "" or "too little" not in command.sentence(path, fallback, lacks)


def test_what_lacks_is_said_with_both_numbers(monkeypatch):
    monkeypatch.setattr("spotsurfer_wire.linux.memory.free_bytes", lambda: 3 << 20)
    assert memory.lacking(9 << 20) == SHORT
    assert memory.lacking(3 << 20) == ""


@pytest.mark.parametrize(("lacks", "kind"), [(SHORT, "refused"), ("", "restore")])
def test_a_machine_without_memory_is_to_blame_and_no_image(tmp_path, monkeypatch, lacks, kind):
    host: Any = SimpleNamespace(folder=tmp_path)
    method = CriuSave(host)
    (tmp_path / "images/restore.work").mkdir(parents=True)
    (tmp_path / "images/restore.work/restore.log").write_text(MAP + "\n")
    assert blame(method._cause(ShimRefused("criu restore ended with 1"), lacks)) == kind
    assert (tmp_path / "failed-restore.log").exists()


def test_tools_come_from_the_prefix_first_and_are_named_when_missing(tmp_path, monkeypatch):
    lib = tmp_path / f"usr/lib/{os.uname().machine}-linux-gnu"
    lib.mkdir(parents=True)
    (lib / "ld-linux-x86-64.so.2").touch()
    for name in ("usr/sbin/criu", "usr/bin/tini-static"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    tools = Tools.find(tmp_path)
    assert tools.criu == (
        str(lib / "ld-linux-x86-64.so.2"),
        "--inhibit-cache",
        "--library-path",
        str(lib),
        str(tmp_path / "usr/sbin/criu"),
    )
    assert tools.tini == str(tmp_path / "usr/bin/tini-static")
    assert tools.ip[0].endswith("/ip")
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(ToolMissing, match="criu"):
        Tools.find(None)


def test_mount_lines_are_read_whole():
    assert mount_lines("1 2 0:1 /a /b rw shared:1 master:2 - cgroup x rw,cpu\n") == [MountLine("/a", "/b", "cgroup", "rw,cpu")]


def test_a_first_process_that_fails_says_with_what_path():
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        launch.guard(write, lambda: os.chdir("/nowhere"))
    os.close(write)
    with os.fdopen(read) as told:
        assert told.read() == "/nowhere: No such file or directory\n"
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == launch.FAILED
