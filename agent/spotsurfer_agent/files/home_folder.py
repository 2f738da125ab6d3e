"""The job's working folder of the submit host: laid out before the first start, and what the job made of it sent home.

The tree and its files were sent by the user, so this trusts neither: nothing is written through a link, and each file is
checked against its digest. At the end the job is dead, so nothing moves while its folder is compared with the tree.
"""

from __future__ import annotations

import hashlib
import os
import posixpath
import stat
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from spotsurfer_wire import home_tree, json_codec, object_keys
from spotsurfer_wire.home_tree import FILE, FOLDER, GONE, LINK, HomeChange, HomeChanges, HomeEntry, HomeTree
from spotsurfer_wire.json_codec import ProtocolError
from spotsurfer_wire.messages import Spec
from spotsurfer_wire.store.port import FileStore

from spotsurfer_agent.files.staging import FULL, WORK, FilesError, full_disk, is_nameable, shown
from spotsurfer_agent.host import root_fs

THREADS = 8
FETCHED = "inputs"  # in the agent's folder: what links to fetched inputs lead to


def lies_on_share(spec: Spec) -> bool:
    """Whether the folder is below a shared file system that the job sees under the same path: both sides have it."""
    return any(f"{spec.home}/".startswith(f"{s.target.rstrip('/')}/") for s in spec.shares if s.target.startswith("/"))


# ---- Before the first start


def place(store: FileStore, spec: Spec, scratch: str) -> None:
    """Lay the tree out in the job's empty folder. Raises FilesError("input"), StoreError."""
    if not spec.home or lies_on_share(spec):
        return
    tree, root = read_tree(store, spec), Path(scratch, WORK)
    if why := home_tree.problem(tree):
        raise FilesError("input", f"the folder {spec.home} can't be laid out: {why}: submit the job again")
    wanted = sum(e.size for e in tree.entries)
    try:
        root_fs.make_folder(root)
        free = os.statvfs(root).f_bavail * os.statvfs(root).f_frsize
        if wanted > free:
            raise FilesError("input", full_disk(wanted, free))
        _lay_out(store, spec, tree, root)
    except OSError as e:
        why = full_disk(wanted, 0) if e.errno in FULL else f"the folder {spec.home} can't be laid out: {e}"
        raise FilesError("input", why) from e


def _lay_out(store: FileStore, spec: Spec, tree: HomeTree, root: Path) -> None:
    """Folders, files, then links: nothing is written through one. Then what folders look like: new names change their times."""
    kinds = {kind: [e for e in tree.entries if e.kind == kind] for kind in (FOLDER, FILE, LINK)}
    for e in kinds[FOLDER]:
        (root / e.path).mkdir(exist_ok=True)
    with ThreadPoolExecutor(THREADS, "home") as pool:
        list(pool.map(lambda e: _fetch(store, spec, e, root / e.path), kinds[FILE]))
    for e in kinds[LINK]:
        (root / e.path).symlink_to(e.target)
        os.utime(root / e.path, ns=(e.mtime_ns, e.mtime_ns), follow_symlinks=False)
    for e in reversed(kinds[FOLDER]):
        (root / e.path).chmod(e.mode & 0o777)
        os.utime(root / e.path, ns=(e.mtime_ns, e.mtime_ns))


def read_tree(store: FileStore, spec: Spec) -> HomeTree:
    """What the job began with. Raises FilesError("input"), StoreError."""
    name = (store.get(object_keys.home_tree_key(spec.job)) or spec.home_tree.encode()).decode(errors="replace")
    if not name:
        return HomeTree()
    data = store.get(object_keys.home_file_key(spec.home_scope, name))
    try:
        if data is None or hashlib.sha256(data).hexdigest() != name:
            raise ProtocolError("it is not in the store, or damaged")
        return json_codec.decode(HomeTree, data)
    except ProtocolError as e:
        raise FilesError("input", f"the list of the folder {spec.home} can't be read ({e}): submit the job again") from e


def _fetch(store: FileStore, spec: Spec, e: HomeEntry, target: Path) -> None:
    got = store.get_file(object_keys.home_file_key(spec.home_scope, e.sha256), target)
    if got is None or _digest(target) != e.sha256:
        raise FilesError("input", f"{e.path} of the folder {spec.home} is not in the store, or damaged: submit the job again")
    target.chmod(e.mode & 0o777)
    os.utime(target, ns=(e.mtime_ns, e.mtime_ns))


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


# ---- At the end


def publish(store: FileStore, spec: Spec, attempt: int, scratch: str) -> None:
    """Send what the job changed: the files, then the list; nothing of a rehearsal. Raises StoreError, FilesError("output")."""
    if not spec.home or spec.rehearses or lies_on_share(spec):
        return
    root, own = Path(scratch, WORK), {posixpath.normpath(posixpath.join(spec.folder, path)) for path in spec.inputs}
    try:
        found = changes(read_tree(store, spec), root, spec.home_exclude, own, fetched=f"{Path(scratch).parents[1]}/{FETCHED}/")

        def send(change: HomeChange) -> None:
            store.put_file(object_keys.home_result_key(spec.job, attempt, change.now.sha256), root / change.now.path)

        new = {c.now.sha256: c for c in found.changes if c.now.kind == FILE and (c.was is None or c.was.sha256 != c.now.sha256)}
        with ThreadPoolExecutor(THREADS, "home") as pool:
            list(pool.map(send, new.values()))
    except OSError as e:
        raise FilesError("output", f"the folder {spec.home} can't be read: {e}") from e
    store.put(object_keys.home_changes_key(spec.job, attempt), json_codec.encode(found))


def changes(tree: HomeTree, root: Path, exclude: list[str], own: set[str], fetched: str) -> HomeChanges:
    """What the job made, changed and removed. Raises OSError.

    What came another way stays: the names `own`, and links that begin with `fetched`. A file of the same size and time of
    change is the same one. Removals come first, then folders, then all else by the time when it came to its name: programs
    that wait for one file find what was written before it.
    """
    was, found, passed = {e.path: e for e in tree.entries}, list[tuple[int, HomeChange]](), list[str]()
    seen = set[str]()
    for path, st in _walk(root, exclude):
        seen.add(path)
        now = _entry(root, path, st, was.get(path))
        if path in own or (now is not None and (now == was.get(path) or now.target.startswith(fetched))):
            continue
        if now is None or not is_nameable(path):
            passed.append(shown(path))
        elif now.kind != FOLDER or (was.get(path) or now).kind != FOLDER or path not in was:
            found.append((0 if now.kind == FOLDER else st.st_ctime_ns, HomeChange(now, was.get(path))))
    gone = [HomeChange(HomeEntry(e.path, GONE), e) for e in reversed(tree.entries) if e.path not in seen]
    return HomeChanges([*gone, *(change for _, change in sorted(found, key=lambda x: x[0]))], passed)


def _walk(root: Path, exclude: list[str]) -> Iterator[tuple[str, os.stat_result]]:
    """All names below, parents first; no link is followed."""
    folders = [""]
    while folders:
        folder = folders.pop()
        for name in sorted(x.name for x in (root / folder).iterdir()):
            path = f"{folder}/{name}" if folder else name
            if home_tree.excluded(path, exclude):
                continue
            st = (root / path).lstat()
            yield path, st
            if stat.S_ISDIR(st.st_mode):
                folders.append(path)


def _entry(root: Path, path: str, st: os.stat_result, was: HomeEntry | None) -> HomeEntry | None:
    """The entry as it is now; None for a pipe, a socket, or a link whose target is no text."""
    mode = stat.S_IMODE(st.st_mode) & 0o777
    if stat.S_ISDIR(st.st_mode):
        same = was is not None and was.kind == FOLDER and was.mode == mode
        return was if same else HomeEntry(path, FOLDER, mode, st.st_mtime_ns)
    if stat.S_ISLNK(st.st_mode):
        target = os.readlink(root / path)  # noqa: PTH115 -- its text, whatever it is
        same = was is not None and was.kind == LINK and was.target == target
        entry = was if same else HomeEntry(path, LINK, 0, st.st_mtime_ns, target=target)
        return entry if is_nameable(target) else None
    if not stat.S_ISREG(st.st_mode):
        return None
    facts = (FILE, mode, st.st_mtime_ns, st.st_size)
    if was is not None and (was.kind, was.mode, was.mtime_ns, was.size) == facts:
        return was
    return HomeEntry(path, *facts, sha256=_digest(root / path))
