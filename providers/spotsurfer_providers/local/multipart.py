"""Uploads in parts, as clients send large files. What is known of them lives as long as the box's supervisor."""

from __future__ import annotations

import os
import secrets
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from spotsurfer_providers.local.objects import Entry, Objects
from spotsurfer_providers.local.s3_text import S3Error

PARTS_MAX = 10_000


@dataclass
class _Upload:
    key: str
    parts: dict[int, tuple[Path, str]] = field(default_factory=dict)  # number -> staged file, tag


class Uploads:
    """The uploads that have begun and not ended."""

    def __init__(self, objects: Objects) -> None:
        self._objects = objects
        self._open: dict[str, _Upload] = {}
        self._lock = threading.Lock()

    def begin(self, key: str) -> str:
        """The id of a new upload."""
        name = secrets.token_hex(16)
        with self._lock:
            self._open[name] = _Upload(key)
        return name

    def add(self, name: str, key: str, number: int, staged: Path, file: BinaryIO) -> str:
        """Keep a staged file as a part, instead of one of the same number; its tag. Raises S3Error."""
        if not 1 <= number <= PARTS_MAX:
            raise S3Error(400, "InvalidArgument", f"parts are numbered from 1 to {PARTS_MAX}")
        file.close()
        tag = secrets.token_hex(16)
        with self._lock:
            old = self._find(name, key).parts.get(number)
            self._open[name].parts[number] = (staged, tag)
        if old is not None:
            old[0].unlink(missing_ok=True)
        return tag

    def complete(self, name: str, key: str, wanted: Sequence[tuple[int, str]], *, only_if_absent: bool) -> Entry:
        """Make the parts one object. Raises S3Error, Exists or OSError; the upload is still there then."""
        with self._lock:
            upload = self._find(name, key)
        have = [upload.parts.get(number) for number, _ in wanted]
        if not wanted or [p and p[1] for p in have] != [tag for _, tag in wanted] or sorted(wanted) != list(wanted):
            raise S3Error(400, "InvalidPart", "parts are missing, of another upload, or out of order")
        staged, file = self._objects.stage()
        try:
            for part in have:
                assert part is not None
                _append(file, part[0])
            entry = self._objects.commit(staged, file, key, only_if_absent=only_if_absent)
        finally:
            self._objects.drop(staged, file)
        self.abort(name, key)
        return entry

    def abort(self, name: str, key: str) -> None:
        """Forget an upload and its parts. Raises S3Error."""
        with self._lock:
            upload = self._find(name, key)
            del self._open[name]
        for staged, _ in upload.parts.values():
            staged.unlink(missing_ok=True)

    def _find(self, name: str, key: str) -> _Upload:
        upload = self._open.get(name)
        if upload is None or upload.key != key:
            raise S3Error(404, "NoSuchUpload", "there is no such upload of this object")
        return upload


def _append(file: BinaryIO, part: Path) -> None:
    """Copy within the kernel; shared blocks where the file system can."""
    with part.open("rb") as source:
        left = os.fstat(source.fileno()).st_size
        while left > 0:
            left -= os.copy_file_range(source.fileno(), file.fileno(), left)
