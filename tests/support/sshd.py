"""A real sshd on loopback, with keys of its own and a user database that it may have to itself."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from support import levels
from support.tree import ROOT

from spotsurfer.ssh import connection

FETCHED = ROOT / "build" / "tools"
# A mount namespace: sshd wants a user and a folder that a host without its package does not have.
START = """
set -eu
cp /etc/passwd {base}/passwd
grep -q ^sshd: {base}/passwd || echo 'sshd:x:64999:65534::/run/sshd:/usr/sbin/nologin' >>{base}/passwd
mount --bind {base}/passwd /etc/passwd
mount -t tmpfs none /run
mkdir /run/sshd
exec {sshd} -D -e -f {base}/conf
"""


def user_key(path: Path) -> Path:
    """A new private key in this file."""
    made = Ed25519PrivateKey.generate().private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())
    path.write_bytes(made)
    path.chmod(0o600)
    return path


@dataclass
class Sshd:
    """`seed` is what its host key is made of; `lines` go into its configuration."""

    base: Path
    seed: bytes = b"h" * 32
    lines: tuple[str, ...] = ()
    port: int = 0
    key_file: Path = field(init=False)
    _process: Any = None

    def __enter__(self) -> Sshd:
        levels.only_for_real_tests("an SSH server")
        program = shutil.which("sshd") or str(FETCHED / "usr/sbin/sshd")
        if not Path(program).exists():
            pytest.fail("sshd is not on this machine: `make setup` fetches it")
        self.base.mkdir()
        self.key_file = user_key(self.base / "user")
        (self.base / "host").write_text(connection.private_text(self.seed, "test"))
        (self.base / "host").chmod(0o600)
        (self.base / "auth").write_text(connection.authorized_line(self.key_file.read_bytes(), "user") + "\n")
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = self.port or free.getsockname()[1]
        own = [] if any(line.startswith("HostKey") for line in self.lines) else [f"HostKey {self.base}/host"]
        common = ["UsePAM no", "StrictModes no", "PasswordAuthentication no", "PermitRootLogin prohibit-password"]
        where = [f"ListenAddress 127.0.0.1:{self.port}", f"AuthorizedKeysFile {self.base}/auth", "PidFile none"]
        (self.base / "conf").write_text("\n".join([*where, *own, *common, *self.lines]) + "\n")
        libraries = {"LD_LIBRARY_PATH": str(FETCHED / "usr/lib/x86_64-linux-gnu")} if program.startswith(str(FETCHED)) else {}
        with (self.base / "log").open("wb") as log:
            self._process = subprocess.Popen(
                ["unshare", "--mount", "sh", "-c", START.format(base=self.base, sshd=program)],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, env={**os.environ, **libraries}, start_new_session=True,
            )  # fmt: skip
        self._wait()
        return self

    def __exit__(self, *_: object) -> None:
        self.hang_up()
        self._process.terminate()
        self._process.wait(10)

    @property
    def log(self) -> str:
        """What it wrote."""
        return (self.base / "log").read_text()

    def hang_up(self) -> None:
        """End all sessions, as a machine that vanishes does."""
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                words = (folder / "stat").read_text().rpartition(")")[2].split()
                if int(words[1]) == self._process.pid:
                    os.kill(int(folder.name), signal.SIGKILL)
            except (OSError, IndexError):
                continue

    def _wait(self) -> None:
        end = time.monotonic() + 10
        while time.monotonic() < end:
            if self._process.poll() is not None:
                pytest.fail(f"sshd can't be started: {self.log}")
            try:
                socket.create_connection(("127.0.0.1", self.port), 1).close()
            except OSError:
                time.sleep(0.02)
            else:
                return
        pytest.fail(f"sshd does not listen: {self.log}")
