"""An image from its name to an unpacked tree on this machine: resolve, pin, fetch, unpack, put in place; each once."""

from __future__ import annotations

import contextlib
import errno
import logging
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from spotsurfer_agent.images import pincheck, tree
from spotsurfer_agent.images.errors import ImageError, Kind
from spotsurfer_agent.images.pin import Pin, Pins
from spotsurfer_agent.images.reference import Reference
from spotsurfer_agent.images.registry import Access, Registry, architecture
from spotsurfer_agent.images.shelf import LAYOUT, Root, Shelf
from spotsurfer_agent.protocol import Spec
from spotsurfer_agent.storeport import ObjectStore
from spotsurfer_agent.tools import Tools

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Rules:
    """How images are fetched and kept."""

    cache_bytes: int = 0  # all images of a machine; 0 = half of its disk
    insecure: tuple[str, ...] = ()  # registries that may speak without TLS
    patience_seconds: float = 30.0  # a registry that does not answer is asked again for so long
    authorities: str = ""  # certificates in PEM that registries are trusted by, besides the machine's own


class Images:
    """What one job needs of them on one machine. Safe to use from several threads."""

    def __init__(
        self, base: Path, job: str, store: ObjectStore, tools: Tools, auth: Callable[[], bytes | None] = lambda: None
    ) -> None:
        """`auth` gives the job's containers-auth.json."""
        self._base, self._tools, self._auth, self.rules = base, tools, auth, Rules()
        self._pins, self._shelf = Pins(store, job), Shelf(base)
        self._lock = threading.Lock()

    def digest(self, spec: Spec) -> str:
        """The digest of the job's image as far as it is known without asking a registry; "" = the machine's own root, or
        not known yet. Raises StoreError, ProtocolError.
        """
        if not spec.image:
            return ""
        found = self._pins.read()
        return found.digest if found is not None else ""

    def here(self, spec: Spec) -> Root | None:
        """The job's image where it is unpacked here already. Raises StoreError, ProtocolError."""
        digest = self.digest(spec)
        return self._shelf.get(digest) if digest else None

    def ready(self, spec: Spec, progress: Callable[[str], None] = lambda _: None) -> Root | None:
        """The job's image, unpacked here; None for a job that has none. Raises ImageError, StoreError, ProtocolError."""
        if not spec.image:
            return None
        with self._lock:
            try:
                return self._ready(spec, progress)
            except OSError as e:
                full = e.errno in (errno.ENOSPC, errno.EDQUOT)
                why = "the machine's disk is full" if full else f"the machine's disk does not take it ({e.strerror or e})"
                raise ImageError(Kind.MACHINE, f"{why}: the image {spec.image} does not fit: ask for a larger disk") from e

    def _ready(self, spec: Spec, progress: Callable[[str], None]) -> Root:
        reference, known = _parsed(spec.image), self._pins.read()
        if known is not None:
            pincheck.check(known, architecture())
            if (here := self._shelf.get(known.digest)) is not None:
                return here
        with self._shelf.alone(), self._registry() as registry:
            progress("asking for the image")
            found = known or self._resolved(registry, reference, spec.image)
            if (here := self._shelf.get(found.digest)) is not None:
                return here
            return self._brought(registry, reference, found, progress)

    def _resolved(self, registry: Registry, reference: Reference, name: str) -> Pin:
        found = registry.find(reference)
        log.info("%s is %s", name, found.digest)
        return self._pins.write(name, found.digest, architecture(), found.packed_bytes)

    def _brought(self, registry: Registry, reference: Reference, wanted: Pin, progress: Callable[[str], None]) -> Root:
        self._shelf.room(wanted.packed_bytes, wanted.digest, self.rules.cache_bytes)
        with self._shelf.aside(wanted.digest) as made:
            progress("fetching the image")
            config = registry.config(reference, wanted.digest)
            registry.fetch(reference, wanted.digest, made / LAYOUT)
            progress("unpacking the image")
            tree.unpack(self._tools, made / LAYOUT, made / tree.ROOT, reference)
            tree.mount_points(made / tree.ROOT, str(self._base))
            tree.working_folder(made / tree.ROOT, config.folder)
            return self._shelf.put(made, wanted.digest, config)

    @contextlib.contextmanager
    def _registry(self) -> Iterator[Registry]:
        with self._shelf.aside("sha256:registry") as folder:
            rules = self.rules
            yield Registry(self._tools, folder, Access(rules.insecure, self._auth(), rules.patience_seconds, rules.authorities))


def _parsed(name: str) -> Reference:
    try:
        return Reference.parse(name)
    except ValueError as e:
        raise ImageError(Kind.WRONG, f"image {e}") from e
