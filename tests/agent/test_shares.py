"""Shared file systems: what mount(8) says becomes one sentence, and what is open on one that nobody declared is named."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from spotsurfer_agent.prepare.inputs import delivery, shared_file_systems
from spotsurfer_agent.prepare.inputs.shared_file_systems import Shares, ShareTrouble
from spotsurfer_agent.save import blockers
from spotsurfer_wire.linux.procfs import MountLine
from spotsurfer_wire.messages import Share, Spec

DATA = Share("data", "nfs4", "fs-1.local:/export", "/data", "vers=4.2,hard")


def spec(*wanted: Share, folder: str = ".") -> Spec:
    return Spec("j", ["x"], shares=list(wanted), folder=folder)


def program(tmp_path: Path, said: str, code: int = 32) -> str:
    """A program that answers like mount(8) and notes what it was asked."""
    path = tmp_path / "mount"
    path.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/asked\ncat >&2 <<"EOF"\n{said}\nEOF\nexit {code}\n')
    path.chmod(0o755)
    return str(path)


# Messages in the form that mount(8) and mount.nfs4 give them. No NFS was mounted for them: the kernels of our hosts have none.
SAID = [
    (
        "mount: /m: bad option; for several filesystems (e.g. nfs, cifs) you might need a /sbin/mount.<type> helper program.",
        "input",
        "no program that mounts nfs4",
    ),
    ("mount: /m: unknown filesystem type 'nfs4'.", "input", "kernel does not know nfs4"),
    ("mount.nfs4: access denied by server while mounting fs-1.local:/export", "input", "refuses this machine"),
    ("mount.nfs4: Operation not permitted for fs-1.local:/export on /m", "input", "Operation not permitted"),
    ("mount.nfs4: Connection timed out", "store", "does not answer"),
    ("mount.nfs4: Connection refused for fs-1.local:/export on /m", "store", "does not answer"),
    ("mount.nfs4: No route to host for fs-1.local:/export on /m", "store", "does not answer"),
    ("mount.nfs4: Failed to resolve server fs-1.local: Name or service not known", "input", "name is unknown"),
    (
        "mount.nfs4: mounting fs-1.local:/export failed, reason given by server: No such file or directory",
        "input",
        "no such folder",
    ),
    ("mount: /m: special device fs-1.local:/export does not exist.", "input", "is not there"),
]


@pytest.mark.parametrize(("said", "kind", "words"), SAID)
def test_one_sentence_each(tmp_path: Path, said: str, kind: str, words: str) -> None:
    with pytest.raises(ShareTrouble) as e:
        Shares(tmp_path, program(tmp_path, said)).ready(spec(DATA), str(tmp_path / "scratch"))
    assert str(e.value).startswith("mount data (nfs4 fs-1.local:/export) can't be used: ")
    assert words in str(e.value)
    assert (e.value.kind, str(e.value).count("\n")) == (kind, 0)
    asked = (tmp_path / "asked").read_text()
    assert asked == f"-t nfs4 -o vers=4.2,hard,ro fs-1.local:/export {tmp_path}/shares/data\n"


def test_who_does_not_answer_is_not_waited_for_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_file_systems, "MOUNT_SECONDS", 0.2)
    path = Path(program(tmp_path, ""))
    path.write_text("#!/bin/sh\nexec sleep 20\n")
    with pytest.raises(ShareTrouble, match="does not answer") as e:
        Shares(tmp_path, str(path)).ready(spec(DATA), str(tmp_path / "scratch"))
    assert e.value.kind == "store"


def test_a_folder_that_the_image_does_not_mount_is_missing_everywhere(tmp_path: Path) -> None:
    with pytest.raises(ShareTrouble, match=r"mount out .*no such folder") as e:
        Shares(tmp_path).ready(spec(Share("out", "bind", str(tmp_path / "absent"), "out")), str(tmp_path / "scratch"))
    assert e.value.kind == "input", "another machine of the same image would not fare better"


def test_mounts_of_the_job_are_a_matter_of_its_specification() -> None:
    wanted = spec(DATA, Share("out", "bind", "/srv", "results/x", read_only=False), folder="deep")
    found = {m.name: (m.source, m.target, m.read_only) for m in delivery.input_mounts(wanted, "/base")}
    assert found == {
        "share-data": ("/base/shares/data", "/data", True),
        "share-out": ("/base/shares/out", "/base/work/deep/results/x", False),
    }


def test_a_real_mount_is_made_seen_and_taken_away(tmp_path: Path) -> None:
    """In a mount namespace of its own."""
    (tmp_path / "far").mkdir()
    (tmp_path / "far/x").write_text("here")
    code = f"""
from pathlib import Path
from spotsurfer_wire.linux import syscalls
from spotsurfer_agent.prepare.inputs.shared_file_systems import Shares
from spotsurfer_wire.messages import Share, Spec
syscalls.private_mounts()
base = Path({str(tmp_path)!r})
both = [Share("a", "bind", str(base / "far"), "in"), Share("b", "tmpfs", "none", "out", "size=1m", False)]
spec = Spec("j", ["x"], shares=both)
made = Shares(base)
for _ in range(2):
    made.ready(spec, str(base / "scratch"))
lines = Path("/proc/self/mountinfo").read_text()
assert lines.count(f" {{base}}/shares/") == 2, lines
assert (base / "shares/a/x").read_text() == "here"
assert (base / "scratch/work/in").is_dir() and (base / "scratch/work/out").is_dir()
made.drop()
assert str(base) not in Path("/proc/self/mountinfo").read_text()
assert not list((base / "shares").iterdir())
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_a_file_on_a_file_system_that_no_other_machine_mounts_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    held = tmp_path / "reads.fq"
    held.write_text("x")
    child = subprocess.Popen(
        [sys.executable, "-c", f"f = open({str(held)!r}); print(flush=True); input()"], stdin=-1, stdout=-1
    )
    try:
        assert child.stdout is not None
        child.stdout.readline()
        monkeypatch.setattr(blockers, "mount_lines", lambda _: [MountLine("/", str(tmp_path), "nfs4", "rw")])
        found = blockers.findings(blockers.Job([child.pid], "/base"))
        assert len(found) == 1
        assert f"has {held} open (descriptor 3), which lies on {tmp_path} (nfs4)" in found[0]
        assert "[[mounts]]" in found[0]
        assert blockers.findings(blockers.Job([child.pid], "/base", own=(f"{tmp_path}/",))) == []
    finally:
        child.communicate(b"\n")
