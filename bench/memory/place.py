"""A controller of its own in a new folder, for a measurement: started and stopped as a program, its boxes given back."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from spotsurfer.demo.environment import Stage

CONFIG = """\
[controller]
data_dir = "{data}"
tick_seconds = {tick_seconds}
log_format = "json"
[limits]
instances_max = {instances_max}
[provider.local]
pools = ["local-a/m6i.large"]
"""


@contextlib.contextmanager
def controller(
    tick_seconds: float = 1.0, instances_max: int = 12, before: Callable[[Path], None] = lambda _: None
) -> Iterator[Stage]:
    """A running controller with the local provider. `before` gets the data folder before the controller starts. Needs root."""
    with tempfile.TemporaryDirectory(prefix="spotsurfer-bench-") as path:
        folder = Path(path)
        config, data = folder / "spotsurfer.toml", folder / "data"
        config.write_text(CONFIG.format(data=data, tick_seconds=tick_seconds, instances_max=instances_max))
        data.mkdir()
        before(data)
        stage = Stage(config, folder)
        try:
            stage.start()
            yield stage
        finally:
            stage.stop()
            stage.clean()
