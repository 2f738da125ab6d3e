"""What a job finds around it: its root and mounts, its user, its variables and secrets.

What was prepared for the running job is written to `root.json`, so that an agent that takes over finds the same.
"""

from __future__ import annotations

import base64
import os
import pwd
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from spotsurfer_wire import sealed_objects
from spotsurfer_wire.crypto import Keys
from spotsurfer_wire.messages import UNPRIVILEGED, Spec
from spotsurfer_wire.store.port import ObjectStore

from spotsurfer_agent.files import tree
from spotsurfer_agent.host import launch, network, root_fs, shim_protocol
from spotsurfer_agent.prepare import home_mount
from spotsurfer_agent.prepare.images import cache, cdi
from spotsurfer_agent.prepare.images.cache import Images, Root
from spotsurfer_agent.prepare.inputs import delivery

# ---- The job's user: users of an image come from its own /etc/passwd and /etc/group, not from the machine's


@dataclass(frozen=True, slots=True)
class Account:
    """The user and groups that the job runs as."""

    uid: int
    gid: int
    groups: list[int] = field(default_factory=list)
    name: str = "root"


class UnknownUser(OSError):
    """A user or group does not exist. The same image would fail on any other machine, too."""

    def __init__(self, sentence: str) -> None:
        super().__init__(0, sentence)


NOBODY = Account(65534, 65534, [65534], "nobody")  # ids that own nothing on any machine, whether it names them or not
ROOT = Account(0, 0)


def unprivileged(account: Account) -> Account:
    """The account of a job that names no user: its image's user, unless that is root."""
    return NOBODY if account.uid == 0 else account


def find_account(root: Path, user: str) -> Account:
    """The account that `user` ("", "name", "1000", "name:group", "1000:1000") means below `root`.

    Raises UnknownUser for one that is not there.
    """
    name, _, group = user.partition(":")
    if not name:
        return ROOT
    passwd, groups = _table(root / "etc/passwd", 7), _table(root / "etc/group", 4)
    line = next((x for x in passwd if x[0] == name or (name.isdigit() and x[2] == name)), None)
    if user == ROOT.name and line is None:  # an image needs no accounts
        return ROOT
    if line is None and not name.isdigit():
        raise UnknownUser(f"the user {name!r} does not exist in the image: name one of its /etc/passwd, or a number")
    uid, gid = (int(line[2]), int(line[3])) if line is not None else (int(name), 0)
    named = line[0] if line is not None else name
    if group:
        return Account(uid, _group(groups, group), [], named)
    return Account(uid, gid, sorted({gid, *(int(g[2]) for g in groups if named in g[3].split(","))}), named)


def _group(groups: list[list[str]], group: str) -> int:
    if group.isdigit():
        return int(group)
    for line in groups:
        if line[0] == group:
            return int(line[2])
    raise UnknownUser(f"the group {group!r} does not exist in the image: name one of its /etc/group, or a number")


def _table(path: Path, columns: int) -> list[list[str]]:
    """Lines with enough columns and valid numbers. A link is not followed: it would lead out of the image."""
    if path.is_symlink() or path.parent.is_symlink() or not path.is_file():
        return []
    lines = [line.split(":") for line in path.read_text(errors="replace").splitlines()]
    numbers = (2, 3) if columns == 7 else (2,)
    return [x for x in lines if len(x) >= columns and all(x[i].isdigit() for i in numbers)]


# ---- Secrets for one job's processes: environment variables, and files in memory
#
# The files lie in a tmpfs of the job's own mount namespace. It is made anew at each start and before each restore, and goes
# with the job's last process. So they are never on a disk and never in an image (a mount that is not the job's own is not
# dumped).


@dataclass(frozen=True, slots=True)
class SecretBag:
    """The secrets of one job, opened. Never printed."""

    environment: dict[str, str] = field(default_factory=dict, repr=False)
    files: dict[str, str] = field(default_factory=dict, repr=False)  # name -> value in base64, as a launch plan has it


def fetch_secret_bag(store: ObjectStore, keys: Keys, spec: Spec) -> SecretBag:
    """The secrets that the specification names. Raises SecretsLost if one is missing, StoreError."""
    bag = SecretBag()
    found = sealed_objects.fetch_secrets(store, keys, spec.job) if spec.secrets else {}
    for name, form in spec.secrets.items():
        if name not in found:
            raise sealed_objects.SecretsLost(f"the secret {name} of {spec.job} is not in the store: submit the job again")
        if form == sealed_objects.SECRET_FILE:
            bag.files[name] = base64.b64encode(found[name]).decode()
        else:
            bag.environment[name] = os.fsdecode(found[name])
    return bag


# ---- NCCL settings for saves of jobs on several GPUs: sockets only between processes
#
# The driver can't save memory that GPUs share. So a job that asks for two GPUs or more gets these settings, and so does one
# with SPOTSURFER_NCCL=sockets in its environment; SPOTSURFER_NCCL=own keeps them away. Variables that a job sets itself stay.
# They cost speed: docs/gpu.md has the figures.

ASKED, SOCKETS = "SPOTSURFER_NCCL", "sockets"
SETTINGS = {
    "NCCL_P2P_DISABLE": "1",
    "NCCL_SHM_DISABLE": "1",
    "NCCL_IB_DISABLE": "1",
    "NCCL_NET": "Socket",
    "NCCL_SOCKET_IFNAME": "lo",
    "NCCL_NVLS_ENABLE": "0",
    "NCCL_CUMEM_ENABLE": "0",
    "NCCL_CUMEM_HOST_ENABLE": "0",
}


def nccl_environment(own: Mapping[str, str], gpus: int = 0) -> dict[str, str]:
    """Variables to add for a job with this environment and so many GPUs."""
    return SETTINGS if own.get(ASKED, SOCKETS if gpus > 1 else "") == SOCKETS else {}


# ---- The surroundings: root (the machine's own or a container image), mounts, user, command line

FILE, MOUNTS = "root.json", "mounts.json"
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
HOSTS = "127.0.0.1 localhost\n::1 localhost\n"


@dataclass(frozen=True, slots=True)
class Beginning:
    """How the job's command is started: paths as the job sees them."""

    words: list[str]
    folder: str
    account: Account
    environment: dict[str, str] = field(default_factory=dict)  # of the image; the job's own wins


class World:
    """The surroundings of the job in one base folder."""

    def __init__(self, base: Path, job: str, images: Images) -> None:
        self.images, self.host = images, network.hostname_of(job)
        self._base, self._folder = base, base / "job"

    def prepare(self, spec: Spec, progress: Callable[[str], None] = lambda _: None, host: str = "") -> Root | None:
        """Get the job's root onto this machine; None if that is the machine's own. `host`: see `bring`.

        Raises EngineError, StoreError.
        """
        root = self.images.ready(spec, progress)
        names = self._folder / root_fs.NAMES  # for name lookups
        names.mkdir(exist_ok=True)
        there = root is None and root_fs.has(root_fs.HOSTS)
        known = Path(root_fs.HOSTS).read_text(errors="surrogateescape") if there else HOSTS
        hosts = network.hosts_file(known, (self.host, host))
        own_id = network.machine_id_of(host or self.host)
        for name, text in (("hosts", hosts), ("resolv.conf", root_fs.resolver()), ("machine-id", own_id)):
            (names / name).write_text(text, errors="surrogateescape")
            (names / name).chmod(0o644)  # for the job's user, too
        return root

    def bring(self, spec: Spec, host: str = "") -> None:
        """`prepare`, and record the root as this job's, with its mounts. Raises EngineError, StoreError.

        `host`: the host name inside an image; for a copy of a job it is the name of the original job.
        """
        root, extra = self.prepare(spec, host=host), self.brought(spec)
        home_mount.make_points(spec, self._base)
        shim_protocol.write_durably(self._folder / MOUNTS, {"mounts": [asdict(m) for m in extra]})
        if root is None:
            (self._folder / FILE).unlink(missing_ok=True)
            return
        cache.mount_points(Path(root.path), str(self._base), [m for m in extra if not m.target.startswith(f"{self._base}/")])
        shim_protocol.write_durably(self._folder / FILE, asdict(root))

    @property
    def root(self) -> Root | None:
        """The image of the job that runs, or ran last; None = it has the machine's own root."""
        raw = shim_protocol.read_json(self._folder / FILE)
        return Root.from_json(raw) if raw is not None else None

    def mounts(self, scratch: str, spec: Spec | None = None, extra: Sequence[root_fs.Mount] = ()) -> list[root_fs.Mount]:
        """The mounts below the job's root, of the running job or of one to come."""
        image = self.path if spec is None else spec.image
        return root_fs.mounts(str(self._base), scratch, image, [*self.brought(spec), *extra])

    def brought(self, spec: Spec | None = None) -> list[root_fs.Mount]:
        """The mounts for inputs and shared file systems, of the running job or of one to come."""
        if spec is not None:
            base = str(self._base)
            return [*delivery.input_mounts(spec, base), *home_mount.mounts(spec, base), *self._devices(spec).mounts]
        told = shim_protocol.read_json(self._folder / MOUNTS) or {}
        return [root_fs.Mount(**m) for m in told.get("mounts", [])]

    def _devices(self, spec: Spec) -> cdi.Devices:
        """What devices add to a job with an image; without one it has the machine's own libraries. Raises EngineError."""
        return cdi.find(tuple(spec.devices) if spec.image else ())

    def surroundings(self, spec: Spec, bag: SecretBag, scratch: str) -> launch.LaunchPlan:
        """The plan of a job without its processes. It names no control groups: only a shim that runs knows them."""
        return launch.LaunchPlan(
            argv=[],
            environment={},
            folder="/",
            uid=0,
            gid=0,
            groups=[],
            root=str(self._folder / "root"),
            base=str(self._base),
            scratch=scratch,
            host=self.host,
            cgroups=[],
            image=self.path,
            extra=[asdict(m) for m in self.brought()],
            secrets=bag.files,
            step=spec.step,
            ports=spec.ports,
        )

    def digest(self, spec: Spec | None = None) -> str:
        """The image's digest, of the running job or of one to come; "" = none, or not known yet. Raises StoreError."""
        if spec is not None:
            return self.images.digest(spec)
        root = self.root
        return root.digest if root is not None else ""

    def place(self, mounts: Sequence[root_fs.Mount]) -> Callable[[str], str]:
        """From a path of the running job to the path on this machine."""
        return _placing(mounts, self.path)

    def to_come(self, scratch: str, spec: Spec) -> Callable[[str], str] | None:
        """`place` for a job to come; None while its root is not here. Raises EngineError, StoreError."""
        root = self.images.here(spec)
        if root is None and spec.image:
            return None
        return _placing(self.mounts(scratch, spec), root.path if root is not None else "")

    @property
    def path(self) -> str:
        """Path of the job's root on this machine; "" = the machine's own."""
        root = self.root
        return root.path if root is not None else ""

    def beginning(self, spec: Spec, scratch: Path) -> Beginning:
        """How the command begins; makes its folder below the scratch. Raises OSError, UnsafePath."""
        own = "work" if spec.folder in ("", ".") else "work/" + "/".join(tree.parts(spec.folder))
        root_fs.make_folder(scratch / own)
        home_mount.make_inner_point(spec, scratch)
        top = f"{self._base}/{own}" if not spec.home else spec.home + own.removeprefix("work")
        folder, root, account = top, self.root, self.account(spec)
        if root is None:
            return Beginning(list(spec.command), folder, account)
        root_fs.make_folder(scratch / "run")
        words = root.config.words(spec.entry_point, spec.command)
        if not words:
            raise OSError(0, f"the image {spec.image} names no program: add command to the job file")
        # A job that names files begins in its own folder; else the program begins in its image's working folder.
        speaks = spec.home or spec.inputs or spec.fetches or spec.outputs or spec.folder not in ("", ".")
        there = folder if speaks or not root.config.folder else os.path.normpath("/" + root.config.folder.lstrip("/"))
        devices = self._devices(spec)
        cdi.lay_links(devices, scratch / "run")
        return Beginning(words, there, account, devices.added_to(root.config.environment))

    def account(self, spec: Spec) -> Account:
        """The account that the job begins with. Raises UnknownUser."""
        if (root := self.root) is None:
            return _account(spec.user)
        if spec.user == UNPRIVILEGED:
            return unprivileged(find_account(Path(root.path), root.config.user))
        return find_account(Path(root.path), spec.user or root.config.user)


def _placing(mounts: Sequence[root_fs.Mount], path: str) -> Callable[[str], str]:
    return lambda seen: root_fs.on_machine(seen, mounts, path)


def _account(user: str | None) -> Account:
    """An account of the machine; root if none is named, as in older jobs. Raises UnknownUser."""
    if user is None or user == UNPRIVILEGED:
        return ROOT if user is None else NOBODY
    try:
        found = pwd.getpwnam(user)
    except KeyError as e:
        raise UnknownUser(f"the user {user!r} does not exist on this machine: name one that its image has") from e
    return Account(found.pw_uid, found.pw_gid, os.getgrouplist(user, found.pw_gid), user)
