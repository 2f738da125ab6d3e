"""A machine that boots under QEMU without KVM. Its network namespace leads nowhere; we reach it by ssh."""

from __future__ import annotations

import shlex
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from vm.disk import run
from vm.image import KEY, Image

SSH_PORT = 2222
BOOT_SECONDS = 900.0
OPTIONS = [
    "StrictHostKeyChecking=no",
    "UserKnownHostsFile=/dev/null",
    "LogLevel=ERROR",
    "ConnectTimeout=60",
    "ServerAliveInterval=60",
]


class Silent(Exception):
    """The guest does not answer."""


@dataclass
class Guest:
    """One machine; its files, the console's output among them, lie in `folder`."""

    name: str
    image: Image
    folder: Path
    disks: Sequence[Path] = ()  # raw ones, from /dev/vdb on
    processor: str = "max"
    memory_mebibytes: int = 4096
    addresses: Sequence[str] = ()  # of servers on this host that it may reach: they listen in its namespace
    options: Sequence[str] = ()  # further ones of QEMU
    _qemu: subprocess.Popen[bytes] | None = field(default=None, init=False)

    @property
    def namespace(self) -> str:
        """Of its network: two guests may have the same port."""
        return f"spotsurfer-vm-{self.name}"

    def lay_network(self) -> None:
        """The namespace, with nothing in it yet."""
        subprocess.run(["ip", "netns", "del", self.namespace], capture_output=True, check=False)
        run("ip", "netns", "add", self.namespace)
        run("ip", "-n", self.namespace, "link", "set", "lo", "up")
        for address in self.addresses:
            run("ip", "-n", self.namespace, "address", "add", f"{address}/32", "dev", "lo")

    def start(self) -> None:
        """Boot it. Its root is an overlay: what it writes goes with it."""
        self.folder.mkdir(parents=True, exist_ok=True)
        disk = self.folder / "root.qcow2"
        disk.unlink(missing_ok=True)
        run("qemu-img", "create", "-q", "-f", "qcow2", "-b", str(self.image.disk), "-F", "qcow2", str(disk))
        with (self.folder / "qemu.log").open("wb") as log:
            command = [*self.inside(), "setpriv", "--pdeathsig", "KILL", *self._command(disk)]  # it ends with this thread
            self._qemu = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)

    def _command(self, disk: Path) -> list[str]:
        append = "root=/dev/vda rw console=ttyS0 quiet net.ifnames=0 no_timer_check"  # a starved guest would fail that check
        command = ["qemu-system-x86_64", "-M", "q35", "-accel", "tcg,thread=multi,tb-size=512"]
        command += ["-cpu", self.processor, "-smp", "2", "-m", str(self.memory_mebibytes), "-nodefaults", "-display", "none"]
        command += ["-serial", f"file:{self.folder / 'console.log'}"]
        command += ["-kernel", str(self.image.kernel), "-initrd", str(self.image.initrd), "-append", append]
        for number, (file, form) in enumerate([(disk, "qcow2"), *((d, "raw") for d in self.disks)]):
            command += ["-drive", f"if=none,id=d{number},file={file},format={form},cache=unsafe"]
            command += ["-device", f"virtio-blk-pci,drive=d{number}"]
        command += ["-netdev", f"user,id=n,hostfwd=tcp:127.0.0.1:{SSH_PORT}-:22,ipv6=off"]
        return [*command, "-device", "virtio-net-pci,netdev=n,romfile=", "-device", "virtio-rng-pci", *self.options]

    @property
    def ended(self) -> bool:
        """Whether it is off."""
        return self._qemu is None or self._qemu.poll() is not None

    def wait(self) -> float:
        """Until it has booted and answers; how many seconds that took. Raises Silent."""
        began = time.monotonic()
        while time.monotonic() - began < BOOT_SECONDS:
            if self.ended:
                raise Silent(f"{self.name} ended: {(self.folder / 'qemu.log').read_text()[-500:]}")
            if self.ask("systemctl is-system-running --wait >/dev/null; true", 300)[0] == 0:
                return time.monotonic() - began
            time.sleep(2)
        raise Silent(f"{self.name} did not answer within {BOOT_SECONDS:.0f} s: see {self.folder / 'console.log'}")

    def ask(self, command: str, seconds: float) -> tuple[int, str]:
        """Run shell text as its root: exit code and what it printed on either stream. 124: it took longer."""
        words = ["ssh", "-n", "-i", str(KEY), "-p", str(SSH_PORT), *(w for o in OPTIONS for w in ("-o", o)), "root@127.0.0.1"]
        far = f"timeout -k 30 {seconds:.0f} sh -c {shlex.quote(command)}"
        try:
            done = subprocess.run(
                [*self.inside(), *words, far],
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=seconds + 300, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired as e:
            return 124, (e.stdout or b"").decode(errors="replace")
        return done.returncode, done.stdout.decode(errors="replace")

    def stop(self) -> None:
        """End it at once, as a power cut would, and take its disk away."""
        if self._qemu is not None:
            self._qemu.kill()
            self._qemu.wait()
            self._qemu = None
        subprocess.run(["ip", "netns", "del", self.namespace], capture_output=True, check=False)
        (self.folder / "root.qcow2").unlink(missing_ok=True)

    def inside(self) -> list[str]:
        """The beginning of a command that runs on this host, in its network."""
        return ["ip", "netns", "exec", self.namespace]


@contextmanager
def running(guest: Guest) -> Iterator[Guest]:
    """A guest that answers, for the length of a block."""
    try:
        guest.lay_network()
        guest.start()
        guest.wait()
        yield guest
    finally:
        guest.stop()
