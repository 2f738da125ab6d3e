"""What guests boot from: a Debian root made with mmdebstrap, kept until this file changes."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from support.tree import ROOT

FOLDER = ROOT / "build" / "vm"
KEY = FOLDER / "id"  # root's key of every guest, made here
ROOT_UUID = "11111111-2222-3333-4444-555555555555"
# A machine that boots, what the product asks of a host, and what the tests that run in guests start.
PACKAGES = """
linux-image-cloud-amd64 initramfs-tools zstd systemd-sysv dbus udev kmod systemd-resolved isc-dhcp-client openssh-server
cloud-init e2fsprogs btrfs-progs xfsprogs curl ca-certificates iproute2 nftables iputils-ping netbase procps psmisc sudo
util-linux mount python3 python3-venv tini gcc libc6-dev megahit samtools bowtie-examples bwa
"""
# Debian's own timers would start work in the middle of a test; one of them fails on a disk without LVM.
MASKED = """
apt-daily.timer apt-daily-upgrade.timer dpkg-db-backup.timer e2scrub_all.timer e2scrub_reap.service fstrim.timer man-db.timer
systemd-pstore.service
"""
INITRD = "MODULES=list\nCOMPRESS=zstd\nRESUME=none\n"
INITRD_MODULES = "virtio_pci\nvirtio_blk\nvirtio_net\nvirtio_rng\next4\nbtrfs\nxfs\n"


@dataclass(frozen=True)
class Image:
    """What a guest boots from."""

    folder: Path

    @property
    def disk(self) -> Path:
        """Its root; guests write into overlays of it."""
        return self.folder / "disk.qcow2"

    @property
    def kernel(self) -> Path:
        """As `-kernel` takes it: there is no boot loader."""
        return self.folder / "vmlinuz"

    @property
    def initrd(self) -> Path:
        """The kernel's first file system."""
        return self.folder / "initrd"

    @property
    def version(self) -> str:
        """The kernel's version, as `uname -r` says it."""
        return (self.folder / "version").read_text().strip()


def debian(suite: str) -> Image:
    """The image of a Debian release: about four minutes and a gigabyte the first time, then nothing."""
    made = Image(FOLDER / f"{suite}-{hashlib.sha256(Path(__file__).read_bytes()).hexdigest()[:12]}")
    if made.folder.exists():
        return made
    for old in FOLDER.glob(f"{suite}-*"):
        shutil.rmtree(old)
    if not KEY.exists():
        FOLDER.mkdir(parents=True, exist_ok=True)
        run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(KEY))
    part = FOLDER / f"new-{suite}"
    shutil.rmtree(part, ignore_errors=True)
    root = part / "root"
    root.mkdir(parents=True)
    _bootstrap(suite, root)
    _settle(root)
    for name, file in (("vmlinuz", "vmlinuz-*"), ("initrd", "initrd.img-*")):
        shutil.copy(sorted((root / "boot").glob(file))[-1], part / name)
    (part / "version").write_text(sorted((root / "boot").glob("vmlinuz-*"))[-1].name.removeprefix("vmlinuz-") + "\n")
    raw = part / "disk.raw"
    ext4(root, raw, "16G", ROOT_UUID)
    run("qemu-img", "convert", "-O", "qcow2", str(raw), str(part / "disk.qcow2"))
    raw.unlink()
    shutil.rmtree(root)
    part.rename(made.folder)
    return made


def _bootstrap(suite: str, root: Path) -> None:
    mirror = run("apt-get", "indextargets", "--format", "$(SITE)", "Created-By: Packages").split()[0]  # this system's own
    prepare = f"""mkdir -p "$1/etc/initramfs-tools/conf.d"
        printf '{INITRD}' >"$1/etc/initramfs-tools/conf.d/guest"
        printf '{INITRD_MODULES}' >"$1/etc/initramfs-tools/modules" """
    command = ["mmdebstrap", "--quiet", "--mode=root", "--variant=minbase", "--aptopt=Apt::Install-Recommends false"]
    command += [f"--dpkgopt=path-exclude=/usr/share/{x}/*" for x in ("man", "doc", "locale")]
    command += [f"--essential-hook={prepare}", f"--include={','.join(PACKAGES.split())}"]
    run("unshare", "--mount", "--propagation", "private", *command, suite, str(root), mirror)


def _settle(root: Path) -> None:
    """What an image of a cloud has and a bootstrapped root lacks."""
    (root / "etc/fstab").write_text(f"UUID={ROOT_UUID} / ext4 errors=remount-ro 0 1\n")
    (root / "etc/hostname").write_text("guest\n")
    (root / "etc/machine-id").write_text("")
    (root / "etc/systemd/network/80-any.network").write_text("[Match]\nName=en* eth*\n[Network]\nDHCP=ipv4\n")
    (root / "etc/cloud/cloud.cfg.d/99-guest.cfg").write_text("locale: false\n")  # there is no package of locales
    (root / "root/.ssh").mkdir(mode=0o700, exist_ok=True)
    shutil.copy(KEY.with_suffix(".pub"), root / "root/.ssh/authorized_keys")
    run("chroot", str(root), "systemctl", "enable", "systemd-networkd", "systemd-resolved", "ssh")
    run("chroot", str(root), "systemctl", "mask", *MASKED.split())


def ext4(tree: Path, to: Path, size: str, uuid: str = "random") -> None:
    """A file system without partitions in a sparse file, with these files in it."""
    to.unlink(missing_ok=True)
    run("truncate", "-s", size, str(to))
    run("mke2fs", "-q", "-F", "-t", "ext4", "-U", uuid, "-d", str(tree), str(to))


def run(*command: str) -> str:
    """What it printed. Raises RuntimeError with its last words."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{command[0]}: {done.stderr.strip() or done.stdout.strip() or f'exit code {done.returncode}'}")
    return done.stdout
