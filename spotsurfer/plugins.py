"""Plug-ins are found by entry point: name -> maker."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib.metadata import entry_points
from typing import Any

from spotsurfer.model.errors import ConfigError

PROVIDERS = "spotsurfer.providers"
DOCTOR = "spotsurfer.doctor"  # checks of providers
POLICIES = "spotsurfer.policies"  # placement: which machine
PLACEMENT = "spotsurfer.placement"  # which pool, for a job that may move at will
INTERVAL = "spotsurfer.interval"  # when to save next
PURCHASE = "spotsurfer.purchase"  # spot, on-demand or wait
SIZE = "spotsurfer.size"  # on which type a running job should be
TRAINING = "spotsurfer.training"  # models of markets from records
CATALOGS = "spotsurfer.catalogs"  # types of machines with prices of a past date
# What there are policies for.
KINDS = {"machine": POLICIES, "purchase": PURCHASE, "placement": PLACEMENT, "interval": INTERVAL, "size": SIZE}


def plugin(group: str, name: str) -> Callable[..., Any]:
    """The entry point `name` of a group; raises ConfigError with the names there are."""
    found = {e.name: e for e in entry_points(group=group)}
    if name not in found:
        raise ConfigError(f"{group} has no {name!r}: choose one of {', '.join(sorted(found)) or 'none'}")
    make: Callable[..., Any] = found[name].load()
    return make


def made(group: str, name: str, settings: Mapping[str, object]) -> Any:
    """What the entry point makes of these settings; raises ConfigError where there is none or it refuses them."""
    make = plugin(group, name)
    try:
        return make(settings)
    except ValueError as e:
        raise ConfigError(str(e)) from e


def plugins(group: str) -> list[str]:
    """Names of all that are installed in a group."""
    return [e.name for e in entry_points(group=group)]
