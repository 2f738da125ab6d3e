"""What a box prints, kept in its folder within bounds."""

from __future__ import annotations

import os
from pathlib import Path

BYTES_MAX = 4 << 20
NAME = "console.log"


def copy_console(source: int, folder: Path) -> None:
    """Append everything from the pipe `source` to console.log until its end; at 4 MiB the file becomes console.log.1."""
    path = folder / NAME
    try:
        while data := os.read(source, 65536):
            if path.exists() and path.stat().st_size > BYTES_MAX:
                path.replace(folder / f"{NAME}.1")
            with path.open("ab") as file:
                file.write(data)
    except FileNotFoundError:
        return  # the folder was removed under us
    finally:
        os.close(source)
