"""What guests boot from: a Debian root made with mmdebstrap, kept until this file changes."""

from __future__ import annotations

import hashlib
import shutil
from dataclasses import dataclass
from pathlib import Path

from support.tree import ROOT
from vm import disk
from vm.disk import run

FOLDER = ROOT / "build" / "vm"
KEY = FOLDER / "id"  # root's key of every guest, made here
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
# The last one: btrfs and XFS ask for it by another name.
INITRD_MODULES = "virtio_pci\nvirtio_blk\nvirtio_net\nvirtio_rng\next4\nbtrfs\nxfs\ncrc32c_generic\n"
# There is no package of locales; an RSA key takes a minute here.
CLOUD_INIT = "locale: false\nssh_genkeytypes: [ed25519]\nno_ssh_fingerprints: true\n"


@dataclass(frozen=True)
class Image:
    """What a guest boots from."""

    folder: Path
    root: str  # its root's file system

    @property
    def disk(self) -> Path:
        """Its root; guests write into overlays of it."""
        return self.folder / f"{self.root}.qcow2"

    @property
    def kernel(self) -> Path:
        """As `-kernel` takes it: there is no boot loader."""
        return self.folder / "vmlinuz"

    @property
    def initrd(self) -> Path:
        """The kernel's first file system."""
        return self.folder / "initrd"

    @property
    def about(self) -> str:
        """For people: release, kernel, file system."""
        return f"{(self.folder / 'about').read_text().strip()}, cgroup v2, {self.root}"


def debian(suite: str, root: str = "ext4") -> Image:
    """The image of a Debian release: some minutes and two gigabytes the first time, then nothing."""
    made = Image(_release(suite), root)
    if not made.disk.exists():
        raw = made.folder / "disk.raw"
        with disk.made(raw, root, "16G") as top:
            run("cp", "-a", f"{made.folder / 'tree'}/.", str(top))
            (top / "etc/fstab").write_text(f"/dev/vda / {root} defaults 0 1\n")
        part = made.folder / "disk.part"
        run("qemu-img", "convert", "-O", "qcow2", str(raw), str(part))
        raw.unlink()
        part.rename(made.disk)
    return made


def _release(suite: str) -> Path:
    """A folder with the files of a release, its kernel and its initrd."""
    made = FOLDER / f"{suite}-{hashlib.sha256(Path(__file__).read_bytes()).hexdigest()[:12]}"
    if made.exists():
        return made
    for old in FOLDER.glob(f"{suite}-*"):
        shutil.rmtree(old)
    if not KEY.exists():
        FOLDER.mkdir(parents=True, exist_ok=True)
        run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(KEY))
    part = FOLDER / f"new-{suite}"
    shutil.rmtree(part, ignore_errors=True)
    tree = part / "tree"
    tree.mkdir(parents=True)
    _bootstrap(suite, tree)
    _settle(tree)
    for name, file in (("vmlinuz", "vmlinuz-*"), ("initrd", "initrd.img-*")):
        shutil.copy(sorted((tree / "boot").glob(file))[-1], part / name)
    kernel = sorted((tree / "boot").glob("vmlinuz-*"))[-1].name.removeprefix("vmlinuz-")
    release = run("chroot", str(tree), "sh", "-c", '. /etc/os-release && echo "$PRETTY_NAME"').strip()
    (part / "about").write_text(f"{release}, kernel {kernel}\n")
    part.rename(made)
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
    (root / "etc/hostname").write_text("guest\n")
    (root / "etc/machine-id").write_text("")
    (root / "etc/systemd/network/80-any.network").write_text("[Match]\nName=en* eth*\n[Network]\nDHCP=ipv4\n")
    (root / "etc/cloud/cloud.cfg.d/99-guest.cfg").write_text(CLOUD_INIT)
    (root / "root/.ssh").mkdir(mode=0o700, exist_ok=True)
    shutil.copy(KEY.with_suffix(".pub"), root / "root/.ssh/authorized_keys")
    run("chroot", str(root), "systemctl", "enable", "systemd-networkd", "systemd-resolved", "ssh")
    run("chroot", str(root), "systemctl", "mask", *MASKED.split())
