"""Sends a folder of the submit host to the store, before jobs that work in it are submitted."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path, PurePosixPath
from urllib.parse import urlencode

from spotsurfer_wire import json_codec
from spotsurfer_wire.home_tree import FILE, HomeEntry, HomeTree

from spotsurfer.home.book import Book
from spotsurfer.home.folder import USUAL_EXCLUDE, Found, read
from spotsurfer.model.errors import InputMissing
from spotsurfer.model.job import JobSpec
from spotsurfer.ports.clock import SystemClock
from spotsurfer.web.client import Client

PIECE_BYTES = 1 << 20
THREADS = 4
TRIES = 3  # for a file that is written again while it is sent
RACY_NS = 2_000_000_000  # a file that was written so recently may be written again without a sign


def bring(client: Client, spec: JobSpec, tell: Callable[[str], None] = lambda _: None, book: Book | None = None) -> JobSpec:
    """Send what the store lacks of `spec.home`; the specification to submit, for any number of jobs.

    `tell` hears how much is sent. A specification without a home comes back as it is. Raises InputMissing, JobFileError, and
    the controller's errors. A folder that machines see, too, stays where it is.
    """
    if not spec.home or _is_shared(client, spec):
        return spec
    home, book = Path(spec.home), book or Book()
    exclude = spec.home_exclude or USUAL_EXCLUDE
    logs = {path for a in book.open() for path in (a.stdout, a.stderr) if path}
    name = ""
    for tries_left in reversed(range(TRIES)):
        found = _digested(read(home, spec.home_files, exclude, lambda source: str(source) in logs), home, book)
        tree = json_codec.encode(HomeTree([f.entry for f in found]))
        name = hashlib.sha256(tree).hexdigest()
        try:
            if _lacks(client, spec.home, [name]):
                _send(client, spec.home, found, tell)
                client.upload(_place(spec.home, name), iter([tree]), len(tree))
            break
        except InputMissing:  # a file was written again between its two readings
            if not tries_left:
                raise
    return replace(spec, home_tree=name, home_exclude=exclude)


def _is_shared(client: Client, spec: JobSpec) -> bool:
    """Whether machines have the folder: a mount of the job's, or one that the operator named."""
    if any(PurePosixPath(spec.home).is_relative_to(m.target) for m in spec.mounts):
        return True
    return bool(client.post("/v1/homes/lacks", {"home": spec.home, "digests": []})["shared"])


def _digested(found: list[Found], home: Path, book: Book) -> list[Found]:
    """With the digest of each file: only files that changed since the last time are read."""
    now_ns = int(SystemClock().now().timestamp() * 1e9)
    known, new, done = book.digests(str(home)), list[tuple[str, str, str]](), list[Found]()
    for f in found:
        if f.entry.kind != FILE:
            done.append(f)
            continue
        path = str(home / f.entry.path)
        stamp, sha256 = known.get(path, ("", ""))
        if stamp != f.stamp:
            sha256 = _sha256(f.source, f.entry)
            if now_ns - f.entry.mtime_ns > RACY_NS:
                new.append((path, f.stamp, sha256))
        done.append(replace(f, entry=replace(f.entry, sha256=sha256)))
    book.note_digests(new)
    return done


def _sha256(source: Path, entry: HomeEntry) -> str:
    digest = hashlib.sha256()
    for piece in _pieces(source, entry):
        digest.update(piece)
    return digest.hexdigest()


def _send(client: Client, home: str, found: list[Found], tell: Callable[[str], None]) -> None:
    files = {f.entry.sha256: f for f in found if f.entry.kind == FILE}
    wanted = [files[d] for d in _lacks(client, home, list(files))]
    if not wanted:
        return
    tell(f"Sending {len(wanted)} of {len(files)} files of {home}, {sum(f.entry.size for f in wanted):,} bytes …")

    def send(f: Found) -> None:
        client.upload(_place(home, f.entry.sha256), _pieces(f.source, f.entry), f.entry.size)

    with ThreadPoolExecutor(THREADS) as pool:
        for _ in pool.map(send, wanted):
            pass


def _lacks(client: Client, home: str, digests: list[str]) -> list[str]:
    return list(client.post("/v1/homes/lacks", {"home": home, "digests": digests})["lacks"])


def _place(home: str, sha256: str) -> str:
    return f"/v1/homes/files?{urlencode({'home': home, 'sha256': sha256})}"


def _pieces(source: Path, entry: HomeEntry) -> Iterator[bytes]:
    """The file as long as it was when it was listed: a log that grows is sent as it was then."""
    left = entry.size
    try:
        with source.open("rb") as file:
            while left and (piece := file.read(min(left, PIECE_BYTES))):
                left -= len(piece)
                yield piece
    except OSError as e:
        raise InputMissing(f"{source} can't be read: {e.strerror}.") from None
