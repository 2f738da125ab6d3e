"""Paths: the configuration file, the data folder, the API's socket.

Root's files lie in the system's folders, those of other users where the XDG base directory specification puts them.

Apart from `settings`, because the command line needs only these and must start quickly.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from spotsurfer.model.errors import ConfigError

# Not /var/lib/spotsurfer: that is the agent's folder on machines, and boxes mount their disk there.
DATA_SYSTEM = "/var/lib/spotsurfer-controller"
CONFIG_SYSTEM = "/etc/spotsurfer/config.toml"
CONFIG_LOCAL = "spotsurfer.toml"
SOCKET_NAME = "api.sock"


def find_config(explicit: Path | None = None) -> Path | None:
    """The configuration file in force: --config, $SPOTSURFER_CONFIG, ./spotsurfer.toml, the user's, the system's, or none.

    The user's is ~/.config/spotsurfer/config.toml, the system's /etc/spotsurfer/config.toml.

    Raises ConfigError if a named file is absent.
    """
    named = explicit or (Path(os.environ["SPOTSURFER_CONFIG"]) if os.environ.get("SPOTSURFER_CONFIG") else None)
    if named is not None:
        if _is_there(named, named.is_dir):
            raise ConfigError(f"Configuration file {named} is a folder: name a file in it.")
        if not _is_there(named, named.is_file):
            raise ConfigError(f"Configuration file {named} is not there: name another one, or call spotsurfer init {named}.")
        return named
    usual = (Path(CONFIG_LOCAL), _user_config(), Path(CONFIG_SYSTEM))
    return next((p for p in usual if _is_there(p, p.is_file)), None)


def _is_there(path: Path, look: Callable[[], bool]) -> bool:
    try:
        return look()
    except OSError as e:
        raise ConfigError(f"Configuration file {path} can't be looked for: {e.strerror}.") from None


def usual_config() -> Path:
    """The path of this user's configuration that is found from every folder; for root it is the system's."""
    return Path(CONFIG_SYSTEM) if os.geteuid() == 0 else _user_config()


def _user_config() -> Path:
    return _user_folder("XDG_CONFIG_HOME", ".config") / "config.toml"


def usual_data_dir() -> Path:
    """The data folder if no setting names one: the system's if this user may write there, else the user's own.

    Root may write there, and the user of a service that was given that folder.
    """
    if os.geteuid() == 0 or os.access(DATA_SYSTEM, os.W_OK):
        return Path(DATA_SYSTEM)
    return _user_folder("XDG_DATA_HOME", ".local/share")


def _user_folder(variable: str, below_home: str) -> Path:
    """XDG's rule: a relative path in the variable counts as none."""
    named = Path(os.environ.get(variable, ""))
    return (named if named.is_absolute() else Path.home() / below_home) / "spotsurfer"


def read_config(path: Path | None) -> dict[str, Any]:
    """The tables of a configuration file; raises ConfigError with file and line if it is not TOML."""
    if path is None:
        return {}
    try:
        return tomllib.loads(path.read_text())
    except tomllib.TOMLDecodeError as e:
        raise ConfigError(f"Configuration file {path} is not valid TOML: {e}.") from None
    except UnicodeDecodeError:
        raise ConfigError(f"Configuration file {path} is no text (UTF-8).") from None
    except OSError as e:
        raise ConfigError(f"Configuration file {path} can't be read: {e.strerror}.") from None


def client_socket(explicit: Path | None = None) -> Path:
    """The socket on which the controller of this configuration answers.

    If nothing names one and this user runs none, it is the socket of the system's controller, if that exists.
    """
    socket = _controller_key("socket", explicit)
    if socket:
        return Path(socket)
    if named := _controller_key("data_dir", explicit):
        return Path(named).expanduser() / SOCKET_NAME
    own, system = usual_data_dir(), Path(DATA_SYSTEM)
    # Not Path.exists(), which raises for a folder that this user may not enter.
    return (own if os.access(own / SOCKET_NAME, os.F_OK) or not system.is_dir() else system) / SOCKET_NAME


def data_dir(explicit: Path | None = None) -> Path:
    """The controller's data folder."""
    named = _controller_key("data_dir", explicit)
    return Path(named).expanduser() if named else usual_data_dir()


def _controller_key(key: str, explicit: Path | None) -> str:
    section = read_config(find_config(explicit)).get("controller", {})
    return str(
        os.environ.get(f"SPOTSURFER_CONTROLLER__{key.upper()}") or (isinstance(section, dict) and section.get(key)) or ""
    )
