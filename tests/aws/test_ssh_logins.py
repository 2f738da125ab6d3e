"""From the controller to the shell: where to log in, what user-data says of it, nudges, and the command."""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from spotsurfer_wire.messages import AgentConfig
from support.api import api
from support.builders import JOB, NOW, POOL, a_job, an_attempt
from support.fake_service import FakeService
from support.sshd import Sshd, user_key

from spotsurfer.cli.commands import logs_and_outputs, ssh
from spotsurfer.cli.common import SESSION
from spotsurfer.cli.main import main
from spotsurfer.config.settings import SshSection
from spotsurfer.controller.machines import ssh_access
from spotsurfer.controller.machines.bootstrap import Login, Source, user_data
from spotsurfer.controller.machines.ssh_access import Logins
from spotsurfer.model.errors import ConfigError, Conflict, HostKeyMismatch, NotFound, UsageError
from spotsurfer.model.job import Attempt, AttemptState, InstanceId, JobId, JobState
from spotsurfer.model.market import Market
from spotsurfer.ports.provider import InstanceState, InstanceView
from spotsurfer.ports.service import Machine
from spotsurfer.ssh import connection, session
from spotsurfer.state import jobs as rows
from spotsurfer.state.db import open_database

pytestmark = pytest.mark.real


def seed_of(job: str, attempt: int) -> bytes:
    return f"{job}.{attempt}".encode().ljust(32, b".")


class Scene:
    """A database with one job; machines have addresses unless a test takes them away."""

    def __init__(self, path: Path) -> None:
        self.path, self.engine = path, open_database(path / "state.db")
        self.views: dict[str, InstanceView] = {}
        with self.engine.begin() as c:
            rows.add_job(c, a_job())

    def logins(self, **rules: object) -> Logins:
        views = lambda token, _: self.views.get(token)  # noqa: E731
        return Logins(SshSection.model_validate({"user": "root", **rules}), seed_of, self.engine, views)  # type: ignore[arg-type]

    def add(self, number: int, state: AttemptState, address: str | None = "127.0.0.1", public: str | None = None) -> Attempt:
        attempt = an_attempt(number, state)
        with self.engine.begin() as c:
            rows.add_attempt(c, attempt)
        view = InstanceView(InstanceId(f"i-{number}"), attempt.token, POOL, Market.SPOT, InstanceState.RUNNING, NOW)
        self.views[attempt.token] = InstanceView(
            view.id, view.token, view.pool, view.market, view.state, NOW, address=address, public_address=public
        )
        return attempt


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    made = Scene(tmp_path)
    yield made
    made.engine.dispose()


def test_the_machine_that_holds_the_job_else_the_newest_that_comes(scene: Scene) -> None:
    scene.add(1, AttemptState.RELEASED)
    scene.add(2, AttemptState.RUNNING, "10.0.0.2")
    scene.add(3, AttemptState.BOOTING, "10.0.0.3")
    there = scene.logins(port=2222)
    assert there.machine(JOB) == Machine(2, "i-2", "10.0.0.2", 2222, "root", connection.public_line(seed_of(JOB, 2)))


def test_why_nobody_can_log_in_is_said(scene: Scene) -> None:
    with pytest.raises(Conflict, match="has no machine now"):
        scene.logins().machine(JOB)
    scene.add(1, AttemptState.PLANNED)
    with pytest.raises(Conflict, match="has no machine now"):
        scene.logins().machine(JOB)
    scene.add(2, AttemptState.BOOTING, None, "1.2.3.4")
    with pytest.raises(Conflict, match="no private address"):
        scene.logins().machine(JOB)
    assert scene.logins(address="public").machine(JOB).address == "1.2.3.4"
    with pytest.raises(Conflict, match="nobody logs in"):
        scene.logins(user=None).machine(JOB)
    with pytest.raises(NotFound):
        scene.logins().machine(JobId("no-such-job"))


def test_user_data_says_the_same_each_time_and_nothing_where_nobody_logs_in(scene: Scene) -> None:
    attempt, key = an_attempt(4), user_key(scene.path / "key")
    first, second = (scene.logins(key_file=key).of_user_data(attempt) for _ in range(2))
    assert first == second and first is not None
    assert first.host_key == connection.private_text(seed_of(JOB, 4), f"{JOB}.4")
    assert first.authorized_key.startswith("ssh-ed25519 ") and first.authorized_key.endswith(" spotsurfer")
    assert scene.logins(user=None).of_user_data(attempt) is None
    without = scene.logins().of_user_data(attempt)
    assert without is not None and without.authorized_key == ""
    with pytest.raises(ConfigError, match="absent can't be read"):
        scene.logins(key_file=scene.path / "absent")


def test_nudges_are_sent_beside_and_their_trouble_is_nobody_elses(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    attempt = scene.add(1, AttemptState.RUNNING, None)
    asked, go = [], threading.Event()
    there = scene.logins(nudge=True)
    target = there._target

    def slow(a: Attempt) -> Machine:
        asked.append(a.number)
        go.wait(10)
        return target(a)

    monkeypatch.setattr(there, "_target", slow)
    for _ in range(5):
        there.nudge(attempt)
    go.set()
    assert there._pool is not None
    there._pool.shutdown(wait=True)
    assert asked == [1], "one at a time a machine"
    scene.logins(nudge=False).nudge(attempt)


def test_a_nudge_goes_all_the_way(scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    attempt, nudged = scene.add(1, AttemptState.RUNNING), threading.Event()
    monkeypatch.setattr(ssh_access.session, "nudge", lambda client, user: nudged.set())
    with Sshd(tmp_path / "s", seed_of(JOB, 1)) as server:
        there = scene.logins(nudge=True, key_file=server.key_file, port=server.port)
        there.nudge(attempt)
        assert nudged.wait(10)


# ---------------------------------------------------------------- on the machine


def test_the_machine_shows_the_key_that_its_user_data_brought(tmp_path: Path) -> None:
    """The part of the program that is about SSH, with a folder of its own for /etc/ssh; then a real sshd with the result."""
    etc, home, tools = tmp_path / "etc-ssh", tmp_path / "home", tmp_path / "tools"
    for folder in (etc, home, tools):
        folder.mkdir()
    (etc / "ssh_host_ed25519_key").write_text("the image's own")
    (etc / "ssh_host_ed25519_key.pub").write_text("the image's own")
    (tools / "getent").write_text(f"#!/bin/sh\necho root:x:0:0::{home}:/bin/sh\n")
    (tools / "getent").chmod(0o755)
    key = user_key(tmp_path / "key")
    line = connection.authorized_line(key.read_bytes(), "key")
    login = Login("root", line, connection.private_text(b"s" * 32, "it's @CONFIG@"))
    text = user_data(AgentConfig("j", 1, "s3://b"), "0" * 64, Source("http://127.0.0.1:1/"), login)
    begin = text[: text.index('mkdir -p "$base/runtime"')].replace("/etc/ssh", str(etc))
    for _ in range(2):
        subprocess.run(["sh", "-c", begin], check=True, env={"PATH": f"{tools}:/usr/bin:/bin"})
    assert (home / ".ssh" / "authorized_keys").read_text() == line + "\n", "once, however often it runs"
    assert (etc / "ssh_host_ed25519_key").stat().st_mode & 0o777 == 0o600
    assert not (etc / "ssh_host_ed25519_key.pub").exists()
    with Sshd(tmp_path / "s", lines=(f"HostKey {etc}/ssh_host_ed25519_key",)) as server:
        (server.base / "auth").write_text((home / ".ssh" / "authorized_keys").read_text())
        at = Machine(1, "i-1", "127.0.0.1", server.port, "root", connection.public_line(b"s" * 32))
        ssh_access.connection.connect(at, key).close()
        wrong = Machine(1, "i-1", "127.0.0.1", server.port, "root", connection.public_line(b"t" * 32))
        with pytest.raises(HostKeyMismatch):
            ssh_access.connection.connect(wrong, key)


def test_a_user_that_the_image_lacks_is_made(tmp_path: Path) -> None:
    """As on images of Google."""
    ssh, sudoers, tools, passwd = (tmp_path / name for name in ("etc-ssh", "sudoers.d", "tools", "passwd"))
    for folder in (ssh, sudoers, tools):
        folder.mkdir()
    home = tmp_path / "home"
    stubs = {
        "getent": f'cat {passwd} 2>/dev/null | grep "^$2:"',
        "useradd": f'[ "$*" = "-m -s /bin/bash admin" ] && mkdir {home} && echo admin:x:1:1::{home}:/bin/bash >{passwd}',
        "chown": ":",
    }
    for name, body in stubs.items():
        (tools / name).write_text(f"#!/bin/sh\n{body}\n")
        (tools / name).chmod(0o755)
    login = Login("admin", "ssh-ed25519 AAAA key", connection.private_text(b"s" * 32, "key"))
    text = user_data(AgentConfig("j", 1, "gs://b"), "0" * 64, Source("http://127.0.0.1:1/"), login)
    begin = text[: text.index('mkdir -p "$base/runtime"')].replace("/etc/ssh", str(ssh)).replace("/etc/sudoers.d", str(sudoers))
    for _ in range(2):
        subprocess.run(["sh", "-c", begin], check=True, env={"PATH": f"{tools}:/usr/bin:/bin"})
    assert (home / ".ssh" / "authorized_keys").read_text() == "ssh-ed25519 AAAA key\n"
    made = sudoers / "spotsurfer"
    assert made.read_text() == "admin ALL=(ALL) NOPASSWD:ALL\n" and made.stat().st_mode & 0o777 == 0o440


# ---------------------------------------------------------------- the command


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    with TemporaryDirectory(prefix="ss-") as path:  # short: a socket's path has 107 bytes
        monkeypatch.setenv("SPOTSURFER_CONTROLLER__DATA_DIR", path)
        monkeypatch.chdir(path)
        yield Path(path)


def test_the_command_runs_there_and_its_exit_code_is_ours(
    folder: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    service = FakeService()
    with Sshd(tmp_path / "s") as server, api(service, folder / "api.sock"):
        assert main(["submit", "--name", "asm", "--cpu", "1", "--mem", "1G", "--", "prog"]) == 0
        assert main(["ssh", "asm"]) == Conflict.exit_code
        service.machines = at(server)
        capfd.readouterr()
        assert main(["ssh", "asm", "--json"]) == 0
        assert json.loads(capfd.readouterr().out)["host_key"] == connection.public_line(server.seed)
        with (tmp_path / "s" / "conf").open() as stdin:
            monkeypatch.setattr("sys.stdin", stdin)
            command = ["sh", "-c", "echo 'a  b'; cat | wc -l; exit 9"]
            assert main(["ssh", "asm", "--key", str(server.key_file), "--", *command]) == 9
        out, _ = capfd.readouterr()
        assert out.splitlines() == ["a  b", str(len((tmp_path / "s" / "conf").read_text().splitlines()))]
        service.machines = Machine(1, "i-1", "127.0.0.1", server.port, "root", connection.public_line(b"x" * 32))
        assert main(["ssh", "asm", "--key", str(server.key_file), "--", "true"]) == HostKeyMismatch.exit_code


def test_live_output_goes_on_where_the_store_ended_and_ends_with_the_job(
    folder: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first three bytes are in the store; the machine has six, goes, and the store has the rest."""
    service, base = FakeService(), tmp_path / "base"
    (base / "job" / "log").mkdir(parents=True)
    segment = base / "job" / "log" / "out-0000000000000000"
    segment.write_bytes(b"abcdef")
    monkeypatch.setattr(session.follow, "__defaults__", (str(base),))
    monkeypatch.setattr(logs_and_outputs, "LIVE_LOOK_SECONDS", 0.2)
    with Sshd(tmp_path / "s") as server, api(service, folder / "api.sock"):
        assert main(["submit", "--name", "asm", "--cpu", "1", "--mem", "1G", "--", "prog"]) == 0
        job = next(iter(service.statuses))
        service.logs[job, "out"] = b"abc"
        monkeypatch.setattr(ssh, "_key_file", lambda: server.key_file)
        seen = logs_and_outputs.live_pieces(SESSION.client(), "asm", ["out"], ssh.log_in)
        assert next(seen) == ("out", b"abc", None)
        waiting = threading.Timer(0.5, lambda: setattr(service, "machines", at(server)))
        waiting.start()  # at first there is no machine
        assert next(seen) == ("out", b"def", None)
        segment.write_bytes(b"abcdefghi")
        assert next(seen) == ("out", b"ghi", None)
        service.logs[job, "out"] = b"abcdefghijkl"
        server.hang_up()
        service.machines = None
        assert next(seen) == ("out", b"jkl", None)
        status = service.statuses[job]
        service.statuses[job] = replace(status, job=replace(status.job, state=JobState.SUCCEEDED))
        assert list(seen) == []
        waiting.join()
    assert "Not live just now: it has no machine now" in capfd.readouterr().err


def at(server: Sshd) -> Machine:
    return Machine(1, "i-1", "127.0.0.1", server.port, "root", connection.public_line(server.seed))


def test_live_takes_no_part(folder: Path) -> None:
    assert main(["logs", "--live", "--attempt", "1", "asm"]) == UsageError.exit_code
