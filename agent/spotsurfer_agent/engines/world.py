"""What a job finds around it: its root (the machine's own or a container image), what is mounted below, who it is, its words.

What was brought for the job that runs is written to `root.json`, so that an agent that takes over finds the same.
"""

from __future__ import annotations

import os
import pwd
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from spotsurfer_agent import hostname, jobroot, jobrun, shimwire, trees
from spotsurfer_agent.engines.port import EngineError
from spotsurfer_agent.images import cdi, tree
from spotsurfer_agent.images.accounts import NOBODY, ROOT, Account, UnknownUser, unprivileged
from spotsurfer_agent.images.accounts import find as find_account
from spotsurfer_agent.images.bringing import Images
from spotsurfer_agent.images.errors import ImageError
from spotsurfer_agent.images.shelf import Root
from spotsurfer_agent.inputs import mounting
from spotsurfer_agent.protocol import UNPRIVILEGED, Spec

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
    """The surroundings of the job of one base folder."""

    def __init__(self, base: Path, job: str, images: Images) -> None:
        self.images, self.host = images, hostname.of(job)
        self._base, self._folder = base, base / "job"

    def prepare(self, spec: Spec, progress: Callable[[str], None] = lambda _: None, host: str = "") -> Root | None:
        """Have the job's root on this machine; None where that is the machine's own. `host`: see `bring`.

        Raises EngineError, StoreError.
        """
        try:
            root = self.images.ready(spec, progress)
        except ImageError as e:
            raise EngineError(e.kind, str(e)) from e
        self._lay_names(machine=root is None, hosts=(self.host, host))
        return root

    def _lay_names(self, *, machine: bool, hosts: tuple[str, ...]) -> None:
        """What the job looks names up in; `machine`: it has the machine's root, and so what the machine knows."""
        names = self._folder / jobroot.NAMES
        names.mkdir(exist_ok=True)
        known = Path(jobroot.HOSTS).read_text(errors="surrogateescape") if machine and jobroot.has_hosts() else HOSTS
        for name, text in (("hosts", hostname.hosts(known, hosts)), ("resolv.conf", jobrun.resolver())):
            (names / name).write_text(text, errors="surrogateescape")
            (names / name).chmod(0o644)  # for the job's user, too

    def bring(self, spec: Spec, host: str = "") -> None:
        """The same, and note that it is this job's, with what is mounted there. Raises EngineError, StoreError.

        `host`: what an image takes for the machine's name; that of a copy is the name of the job that it is a copy of.
        """
        root, extra = self.prepare(spec, host=host), self.brought(spec)
        shimwire.write_durably(self._folder / MOUNTS, {"mounts": [asdict(m) for m in extra]})
        if root is None:
            (self._folder / FILE).unlink(missing_ok=True)
            return
        self._make_points(Path(root.path), extra)
        shimwire.write_durably(self._folder / FILE, root.to_json())

    @property
    def root(self) -> Root | None:
        """The image of the job that runs, or ran last; None = it has the machine's own root."""
        raw = shimwire.read_json(self._folder / FILE)
        return Root.from_json(raw) if raw is not None else None

    def mounts(self, scratch: str, spec: Spec | None = None, extra: Sequence[jobroot.Mount] = ()) -> list[jobroot.Mount]:
        """What is mounted below the job's root: of the job that runs, or of one that is to come."""
        image = self.path if spec is None else spec.image
        return jobroot.mounts(str(self._base), scratch, image, [*self.brought(spec), *extra])

    def brought(self, spec: Spec | None = None) -> list[jobroot.Mount]:
        """What inputs and shared file systems add to the mounts of the job that runs, or of one that is to come."""
        if spec is not None:
            return [*mounting.mounts(spec, str(self._base)), *self._devices(spec).mounts]
        told = shimwire.read_json(self._folder / MOUNTS) or {}
        return [jobroot.Mount(**m) for m in told.get("mounts", [])]

    def _devices(self, spec: Spec) -> cdi.Devices:
        """What its devices add to a job with an image: without one it has the machine's own libraries. Raises EngineError."""
        try:
            return cdi.find(tuple(spec.devices) if spec.image else ())
        except ImageError as e:
            raise EngineError(e.kind, str(e)) from e

    def _make_points(self, root: Path, extra: Sequence[jobroot.Mount]) -> None:
        """In an image, what lies outside of the job's scratch has to be mounted on something."""
        try:
            tree.mount_points(root, str(self._base), [m for m in extra if not m.target.startswith(f"{self._base}/")])
        except ImageError as e:
            raise EngineError(e.kind, str(e)) from e

    def digest(self, spec: Spec | None = None) -> str:
        """Of the image of the job that runs, or of one that is to come; "" = none, or not known yet. Raises StoreError."""
        if spec is not None:
            return self.images.digest(spec)
        root = self.root
        return root.digest if root is not None else ""

    def place(self, mounts: Sequence[jobroot.Mount]) -> Callable[[str], str]:
        """Where on this machine lies what the job sees under a path."""
        return _placing(mounts, self.path)

    def to_come(self, scratch: str, spec: Spec) -> Callable[[str], str] | None:
        """The same for a job that is to come; None while its root is not here. Raises EngineError, StoreError."""
        root = self.images.here(spec)
        if root is None and spec.image:
            return None
        return _placing(self.mounts(scratch, spec), root.path if root is not None else "")

    @property
    def path(self) -> str:
        """Of the job's root on this machine; "" = the machine's own."""
        root = self.root
        return root.path if root is not None else ""

    def beginning(self, spec: Spec, scratch: Path) -> Beginning:
        """How the command begins; its folder below the scratch is made. Raises OSError, trees.UnsafePath."""
        own = "work" if spec.folder in ("", ".") else "work/" + "/".join(trees.parts(spec.folder))
        jobroot.make_folder(scratch / own)
        folder, root, account = f"{self._base}/{own}", self.root, self.account(spec)
        if root is None:
            return Beginning(list(spec.command), folder, account)
        jobroot.make_folder(scratch / "run")
        words = root.config.words(spec.entry_point, spec.command)
        if not words:
            raise OSError(0, f"the image {spec.image} names no program: add command to the job file")
        # A job that speaks of files has a folder of its own for them; else the program begins where its image says.
        speaks = spec.inputs or spec.fetches or spec.outputs or spec.folder not in ("", ".")
        there = folder if speaks or not root.config.folder else os.path.normpath("/" + root.config.folder.lstrip("/"))
        devices = self._devices(spec)
        cdi.lay_links(devices, scratch / "run")
        return Beginning(words, there, account, devices.added_to(root.config.environment))

    def account(self, spec: Spec) -> Account:
        """As whom the job begins. Raises UnknownUser."""
        if (root := self.root) is None:
            return _account(spec.user)
        if spec.user == UNPRIVILEGED:
            return unprivileged(find_account(Path(root.path), root.config.user))
        return find_account(Path(root.path), spec.user or root.config.user)


def _placing(mounts: Sequence[jobroot.Mount], path: str) -> Callable[[str], str]:
    return lambda seen: jobroot.on_machine(seen, mounts, path)


def _account(user: str | None) -> Account:
    """An account of the machine; root where none is named, as in jobs of before. Raises UnknownUser."""
    if user is None or user == UNPRIVILEGED:
        return ROOT if user is None else NOBODY
    try:
        found = pwd.getpwnam(user)
    except KeyError as e:
        raise UnknownUser(f"the user {user!r} does not exist on this machine: name one that its image has") from e
    return Account(found.pw_uid, found.pw_gid, os.getgrouplist(user, found.pw_gid), user)
