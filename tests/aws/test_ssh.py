"""SSH against a real sshd: who is spoken to, what comes back, and what happens when it breaks."""

from __future__ import annotations

import os
import pty
import shutil
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import paramiko
import pytest
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_ssh_private_key
from support.sshd import Sshd, user_key

from spotsurfer.model.errors import ConfigError, HostKeyMismatch, MachineUnreachable
from spotsurfer.ports.service import Machine
from spotsurfer.ssh import connection, session
from spotsurfer.ssh.connection import connect

pytestmark = pytest.mark.real

SEED = b"h" * 32


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sshd]:
    with Sshd(tmp_path_factory.mktemp("sshd") / "s", SEED) as made:
        yield made


def target(server: Sshd, seed: bytes = SEED, **changes: Any) -> Machine:
    return replace(Machine(1, "i-1", "127.0.0.1", server.port, "root", connection.public_line(seed)), **changes)


@pytest.fixture
def client(server: Sshd) -> Iterator[paramiko.SSHClient]:
    made = connect(target(server), server.key_file)
    yield made
    made.close()


def run(client: paramiko.SSHClient, command: str, feed: bytes = b"") -> tuple[int, bytes, bytes]:
    out, err = bytearray(), bytearray()
    return session.run(client, command, out.extend, err.extend, feed), bytes(out), bytes(err)


# ---------------------------------------------------------------- the host key


@pytest.mark.parametrize("seed", [b"\0" * 32, b"\xff" * 32, bytes(range(32))])
@pytest.mark.parametrize("comment", ["", "a", "job-1.3", "x" * 61])
def test_the_key_is_one_that_others_read(tmp_path: Path, seed: bytes, comment: str) -> None:
    text, line = connection.private_text(seed, comment), connection.public_line(seed)
    assert text == connection.private_text(seed, comment), "a repeated order is the same order"
    read = load_ssh_private_key(text.encode(), None).public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    assert read.decode() == line
    (tmp_path / "key").write_text(text)
    (tmp_path / "key").chmod(0o600)
    program = shutil.which("ssh-keygen") or pytest.fail("ssh-keygen is not on this machine")
    said = subprocess.run([program, "-y", "-f", str(tmp_path / "key")], capture_output=True, text=True, check=True).stdout
    assert said.split()[:2] == line.split()


@pytest.mark.always
def test_another_key_is_refused_before_anything_is_shown(server: Sshd) -> None:
    before = server.log.count("Accepted")
    with pytest.raises(HostKeyMismatch, match="another machine"):
        connect(target(server, b"i" * 32), server.key_file)
    assert server.log.count("Accepted") == before


def test_a_key_of_another_kind_is_refused_too(tmp_path: Path) -> None:
    program = shutil.which("ssh-keygen") or pytest.fail("ssh-keygen is not on this machine")
    subprocess.run([program, "-q", "-t", "ecdsa", "-N", "", "-f", str(tmp_path / "ec")], check=True)
    with Sshd(tmp_path / "s", lines=(f"HostKey {tmp_path}/ec",)) as server:
        with pytest.raises((HostKeyMismatch, MachineUnreachable)):
            connect(target(server), server.key_file)
        assert "Accepted" not in server.log


# ---------------------------------------------------------------- reaching it


def test_who_has_no_key_there_is_told_which(server: Sshd, tmp_path: Path) -> None:
    with pytest.raises(MachineUnreachable, match="does not let us in"):
        connect(target(server), user_key(tmp_path / "other"))
    with pytest.raises(MachineUnreachable, match="nobody-here@"):
        connect(target(server, user="nobody-here"), server.key_file)


@pytest.mark.alone
def test_a_closed_port_is_said_at_once() -> None:
    began = time.monotonic()
    with pytest.raises(MachineUnreachable, match="can't be reached"):
        connect(Machine(1, "i-1", "127.0.0.1", 1, "root", connection.public_line(SEED)))
    assert time.monotonic() - began < 2


@pytest.mark.parametrize("says", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n"])
def test_who_is_no_sshd_is_given_up(says: bytes, server: Sshd) -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute:
        held: list[socket.socket] = []

        def answer() -> None:
            held.append(mute.accept()[0])
            held[0].sendall(says)

        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises(MachineUnreachable, match="can't be spoken to"):
            connect(target(server, port=mute.getsockname()[1]), server.key_file, seconds=1.0)
        thread.join()
        held[0].close()


def test_a_key_file_that_is_none_is_named(server: Sshd, tmp_path: Path) -> None:
    (tmp_path / "bad").write_text("no key")
    with pytest.raises(ConfigError, match="bad can't be used"):
        connect(target(server), tmp_path / "bad")
    with pytest.raises(ConfigError, match="absent can't be read"):
        connect(target(server), tmp_path / "absent")
    with pytest.raises(ConfigError, match="key_file bad"):
        connection.authorized_line(b"no key", "bad")


# ---------------------------------------------------------------- commands


@pytest.mark.parametrize("code", [0, 1, 7, 255])
def test_the_exit_code_is_the_commands(client: paramiko.SSHClient, code: int) -> None:
    assert run(client, f"echo out; echo err >&2; exit {code}") == (code, b"out\n", b"err\n")


def test_what_is_large_arrives_whole_both_ways(client: paramiko.SSHClient) -> None:
    data = os.urandom(3 << 20)
    code, out, err = run(client, "cat", data)
    assert (code, err) == (0, b"") and out == data


def test_small_commands_do_not_wait_for_the_networks_sake(client: paramiko.SSHClient) -> None:
    transport = client.get_transport()
    assert transport is not None
    raw: Any = transport.sock
    assert raw.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) == 1


def test_a_machine_that_vanishes_in_the_middle_is_an_error(tmp_path: Path) -> None:
    with Sshd(tmp_path / "s") as server:
        client, seen = connect(target(server), server.key_file), bytearray()

        def hang_up() -> None:
            while bytes(seen) != b"begun\n":
                time.sleep(0.01)
            server.hang_up()

        killer = threading.Thread(target=hang_up, daemon=True)
        killer.start()
        with pytest.raises(MachineUnreachable, match=r"broke|closed"):
            session.run(client, "echo begun; sleep 30", seen.extend, seen.extend)
        assert bytes(seen) == b"begun\n"
        with pytest.raises(MachineUnreachable):
            session.run(client, "true", seen.extend, seen.extend)
        client.close()
        killer.join()


def test_a_command_that_a_signal_ended_is_no_success(client: paramiko.SSHClient) -> None:
    with pytest.raises(MachineUnreachable, match="before the command said how it ended"):
        run(client, "kill -9 $$")


# ---------------------------------------------------------------- a terminal


def test_a_terminal_has_our_size_and_follows_it(client: paramiko.SSHClient, monkeypatch: pytest.MonkeyPatch) -> None:
    size = [os.terminal_size((101, 37))]
    monkeypatch.setattr(shutil, "get_terminal_size", lambda *_, **__: size[0])
    ours, theirs = pty.openpty()
    seen = bytearray()

    def resize() -> None:
        while b"37 101" not in seen:
            time.sleep(0.02)
        size[0] = os.terminal_size((55, 21))
        os.kill(os.getpid(), signal.SIGWINCH)
        time.sleep(0.3)
        os.write(ours, b"again\n")

    helper = threading.Thread(target=resize)
    helper.start()
    try:
        words = ["sh", "-c", "stty size; read x; stty size; echo said $x; exit 5"]
        with os.fdopen(theirs, "rb", buffering=0) as stdin:
            assert session.shell(client, words, stdin, seen.extend) == 5
    finally:
        helper.join()
        os.close(ours)
    text = seen.decode()
    assert text.index("37 101") < text.index("21 55") < text.index("said again")


def test_the_terminal_is_as_it_was_afterwards(client: paramiko.SSHClient) -> None:
    import termios

    ours, theirs = pty.openpty()
    before = termios.tcgetattr(theirs)
    with os.fdopen(theirs, "rb", buffering=0) as stdin:
        session.shell(client, ["true"], stdin, lambda _: None)
        assert termios.tcgetattr(theirs) == before
    os.close(ours)


# ---------------------------------------------------------------- what is done on a machine


def until(good: Callable[[], object], seconds: float = 10.0) -> None:
    end = time.monotonic() + seconds
    while not good():
        assert time.monotonic() < end, "it did not come to pass"
        time.sleep(0.02)


def test_a_nudge_reaches_the_agent_and_nobody_else(client: paramiko.SSHClient, tmp_path: Path) -> None:
    base = tmp_path / "it's base"
    base.mkdir()
    noted = tmp_path / "noted"
    program = f"trap 'echo nudged >{noted}' USR1; echo $$ >'{tmp_path}/pid'; while :; do sleep 0.1; done"
    agent = subprocess.Popen(["sh", "-c", program])
    try:
        until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text())
        with pytest.raises(MachineUnreachable, match="can't be nudged"):
            session.nudge(client, "root", str(base))
        (base / "agent.pid").write_text((tmp_path / "pid").read_text())
        session.nudge(client, "root", str(base))
        until(noted.exists)
    finally:
        agent.kill()
        agent.wait()


def test_output_is_followed_over_its_segments_and_ends_with_us(server: Sshd, tmp_path: Path) -> None:
    logs = tmp_path / "job" / "log"
    logs.mkdir(parents=True)
    (logs / "out-0000000000000000").write_bytes(b"0123456789")
    (logs / "err-0000000000000000").write_bytes(b"no")
    client, seen = connect(target(server), server.key_file), bytearray()
    ended: list[object] = []

    def follow() -> None:
        try:
            ended.append(session.follow(client, "root", "out", 4, seen.extend, str(tmp_path)))
        except MachineUnreachable as e:
            ended.append(e)

    thread = threading.Thread(target=follow)
    thread.start()
    until(lambda: bytes(seen) == b"456789")
    (logs / "out-0000000000000010").write_bytes(b"abc")
    until(lambda: bytes(seen) == b"456789abc")
    with (logs / "out-0000000000000010").open("ab") as f:
        f.write(b"def")
    until(lambda: bytes(seen) == b"456789abcdef")
    client.close()
    thread.join(10)
    assert ended and isinstance(ended[0], MachineUnreachable)

    def left() -> list[str]:
        found = [p.read_bytes().decode(errors="replace") for p in Path("/proc").glob("[0-9]*/cmdline") if p.exists()]
        return [x for x in found if str(logs.parent.parent) in x]

    until(lambda: not left())


def test_an_agent_is_started_where_there_is_no_user_data(client: paramiko.SSHClient, tmp_path: Path) -> None:
    session.install(client, "root", f'#!/bin/sh\nread -r x <"$0"; echo "$x" >{tmp_path}/ran\n')
    assert (tmp_path / "ran").read_text() == "#!/bin/sh\n"
    with pytest.raises(MachineUnreachable, match="no runtime to be had"):
        session.install(client, "root", "echo no runtime to be had >&2; exit 3")


def test_who_is_not_root_becomes_it_by_sudo() -> None:
    assert session.as_root("admin", "true").startswith("sudo -n sh -c ")
    assert subprocess.run(
        session.as_root("root", 'printf %s "$x"', x="it's $HOME"), shell=True, capture_output=True
    ).stdout == (b"it's $HOME")
