"""Plug-ins, found by entry point, and optional libraries, with the sentence to print if one is missing."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import entry_points, requires
from typing import Any

from spotsurfer.model.errors import ConfigError, HostUnfit

# ---- Groups of entry points; each maps a name to a maker.

PROVIDERS = "spotsurfer.providers"
SECRETS = "spotsurfer.secrets"  # secret services of clouds, by the kind of a secret
DOCTOR = "spotsurfer.doctor"  # checks of providers
HOSTS = "spotsurfer.hosts"  # providers whose machines are boxes on this host, and what it must have
POLICIES = "spotsurfer.policies"  # placement: which machine
PLACEMENT = "spotsurfer.placement"  # which pool, for a job that may move at will
INTERVAL = "spotsurfer.interval"  # when to save next
PURCHASE = "spotsurfer.purchase"  # spot, on-demand or wait
SIZE = "spotsurfer.size"  # the best type for a running job
TRAINING = "spotsurfer.training"  # models of markets from records
CATALOGS = "spotsurfer.catalogs"  # types of machines with prices of a past date
# Groups of policies by kind.
KINDS = {"machine": POLICIES, "purchase": PURCHASE, "placement": PLACEMENT, "interval": INTERVAL, "size": SIZE}


def plugin(group: str, name: str) -> Callable[..., Any]:
    """The entry point `name` of a group; raises ConfigError that lists the installed names."""
    found = {e.name: e for e in entry_points(group=group)}
    if name not in found:
        raise ConfigError(f"{group} has no {name!r}: choose one of {', '.join(sorted(found)) or 'none'}")
    make: Callable[..., Any] = found[name].load()
    return make


def made(group: str, name: str, settings: Mapping[str, object]) -> Any:
    """The object that the entry point makes of these settings; raises ConfigError if it is absent or refuses them."""
    make = plugin(group, name)
    try:
        return make(settings)
    except ValueError as e:
        raise ConfigError(str(e)) from e


def plugins(group: str) -> list[str]:
    """Names of all entry points in a group."""
    return [e.name for e in entry_points(group=group)]


# ---- Optional libraries: extras of this package bring them.

OURS = "spotsurfer"  # each of this project's packages begins with it


@contextmanager
def needed_for(what: str, extra: str) -> Iterator[None]:
    """Wraps the import of libraries that this extra brings. Raises HostUnfit with the command that installs them."""
    try:
        yield
    except ModuleNotFoundError as e:
        if (e.name or OURS).startswith(OURS):
            raise
        raise HostUnfit(f"{what} needs the extra '{extra}', which is not installed here: {install_command(extra)}") from None


def install_command(extra: str) -> str:
    """The command that installs the libraries in this program's environment. It names them: no index has this package."""
    marked = re.compile(rf"""(.+?)\s*;\s*extra\s*==\s*['"]{re.escape(extra)}['"]""")
    wanted = [m[1] for m in map(marked.fullmatch, requires("spotsurfer") or []) if m is not None]
    return shlex.join([sys.executable, "-m", "pip", "install", *wanted])
