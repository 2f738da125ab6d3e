"""Where things lie: the configuration file, the data folder, the API's socket.

Apart from `settings`, because the command line needs only these and must start quickly.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from spotsurfer.model.errors import ConfigError

DATA_DIR = "/var/lib/spotsurfer-controller"
CONFIG_SYSTEM = "/etc/spotsurfer/config.toml"
CONFIG_LOCAL = "spotsurfer.toml"
SOCKET_NAME = "api.sock"


def find_config(explicit: Path | None = None, environment: Mapping[str, str] | None = None) -> Path | None:
    """The configuration file in force: --config, $SPOTSURFER_CONFIG, ./spotsurfer.toml, /etc/spotsurfer/config.toml, or none.

    Raises ConfigError when a file that was named is not there.
    """
    env = os.environ if environment is None else environment
    named = explicit or (Path(env["SPOTSURFER_CONFIG"]) if env.get("SPOTSURFER_CONFIG") else None)
    if named is not None:
        if not named.is_file():
            raise ConfigError(f"Configuration file {named} is not there: name another one, or copy config.example.toml to it.")
        return named
    return next((p for p in (Path(CONFIG_LOCAL), Path(CONFIG_SYSTEM)) if p.is_file()), None)


def read_config(path: Path | None) -> dict[str, Any]:
    """The tables of a configuration file; raises ConfigError with file and line where it is not TOML."""
    if path is None:
        return {}
    try:
        return tomllib.loads(path.read_text())
    except tomllib.TOMLDecodeError as e:
        raise ConfigError(f"Configuration file {path} is not valid TOML: {e}.") from None
    except (OSError, UnicodeDecodeError) as e:
        raise ConfigError(f"Configuration file {path} can't be read: {e}.") from None


def client_socket(explicit: Path | None = None, environment: Mapping[str, str] | None = None) -> Path:
    """The socket where the controller of this configuration answers."""
    socket = _controller_key("socket", explicit, environment)
    return Path(socket) if socket else data_dir(explicit, environment) / SOCKET_NAME


def data_dir(explicit: Path | None = None, environment: Mapping[str, str] | None = None) -> Path:
    """The controller's data folder."""
    return Path(_controller_key("data_dir", explicit, environment) or DATA_DIR).expanduser()


def _controller_key(key: str, explicit: Path | None, environment: Mapping[str, str] | None) -> str:
    env = os.environ if environment is None else environment
    section = read_config(find_config(explicit, env)).get("controller", {})
    return str(env.get(f"SPOTSURFER_CONTROLLER__{key.upper()}") or (isinstance(section, dict) and section.get(key)) or "")
