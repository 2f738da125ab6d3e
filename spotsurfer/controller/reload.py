"""Takes up a changed configuration while the controller runs: what may change, at once; the rest is named."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection
from typing import Any

import structlog
from pydantic import BaseModel

from spotsurfer.config.settings import Settings, load_settings
from spotsurfer.model.errors import SpotsurferError
from spotsurfer.ports.service import Reloaded

log = structlog.get_logger()
Use = Callable[[Settings], Callable[[], None]]  # makes what a part needs of new settings; the function that it returns uses it


class Reloader:
    """Compares the file in force with what is in use. Everything is made before anything is used: a bad file changes nothing.

    What needs a restart is named again each time.
    """

    def __init__(self, settings: Settings, tell: Callable[[str], None] = lambda _: None) -> None:
        """`tell`: of what changed."""
        self.settings, self._in_use, self._tell = settings, _flat(settings), tell
        self._uses: list[tuple[frozenset[str], Use]] = []
        self._one_at_a_time = threading.Lock()
        self.load: Callable[[], Settings] = load_settings  # the configuration in force

    def on(self, keys: Collection[str], use: Use) -> None:
        """These keys, "section.key" or "section", may change; `use` takes up all of them."""
        self._uses.append((frozenset(keys), use))

    def reload(self) -> Reloaded:
        """Read the configuration again. Raises ConfigError with file and line, and then nothing has changed."""
        with self._one_at_a_time:
            try:
                new = self.load()
                wanted = _flat(new)
                differ = {key for key in wanted if wanted[key] != self._in_use.get(key)}
                changing = [(keys & differ, use(new)) for keys, use in self._uses if keys & differ]
            except SpotsurferError as e:
                log.error("config.refused", error=str(e))
                raise
            for keys, begin in changing:
                begin()
                self._in_use |= {key: wanted[key] for key in keys}
            changed = sorted({key for keys, _ in changing for key in keys})
            restart = sorted(differ - set(changed))
            self.settings = new
            log.info("config.reloaded", changed=changed, restart=restart)
            if changed:
                self._tell(f"the configuration was read again; changed: {', '.join(changed)}")
            return Reloaded(changed, restart)


def _flat(settings: Settings) -> dict[str, Any]:
    """All values by "section.key", or by "section" if that is a list."""
    found: dict[str, Any] = {}
    for name in Settings.model_fields:
        section = getattr(settings, name)
        if isinstance(section, BaseModel):
            values = {**{key: getattr(section, key) for key in type(section).model_fields}, **(section.model_extra or {})}
            found |= {f"{name}.{key}": value for key, value in values.items()}
        else:
            found[name] = section
    return found
