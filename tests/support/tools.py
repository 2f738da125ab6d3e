"""Images for the tests of boxes: how they are made, and a fleet whose boxes reach the registry that has them."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from support.fleet import Fleet, fleet, with_disks
from support.registry import Recipe, push, registry_at

AT = "10.77.0.1:5000"  # where boxes find it
PYTHON = Recipe(["python3", "dash", "coreutils"], {"/etc/mark": "one\n"})
SETTINGS = """\
sockets = {{ "5000" = "{socket}" }}
[images]
insecure_registries = ["10.77.0.1:5000"]
"""


def image(name: str) -> str:
    return f"docker://{AT}/{name}"


@contextmanager
def fleet_with_images(
    path: Path, recipes: Mapping[str, Recipe], disk_bytes: int = 1 << 30, interval: float = 3
) -> Iterator[Fleet]:
    """A controller and a registry with these images; its folder is `path`/registry."""
    path.mkdir(parents=True)
    for name, recipe in recipes.items():
        push(recipe, path / "registry", name, path / "made" / name.partition(":")[0])
    with tempfile.TemporaryDirectory(prefix="registry-") as short:  # a socket's path must be
        socket = Path(short, "socket")
        config = with_disks(disk_bytes) + SETTINGS.replace("{socket}", str(socket))
        with registry_at(path / "registry", socket), fleet(path / "fleet", interval, config) as made:
            yield made
