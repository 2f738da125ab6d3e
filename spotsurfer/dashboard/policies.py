"""The policies that run, as the settings name them, with each setting's value and meaning."""

from __future__ import annotations

from spotsurfer.common import plugins
from spotsurfer.config.settings import Settings
from spotsurfer.dashboard.site import Policy
from spotsurfer.model.job import SIZE_OFF
from spotsurfer.ports.policies import parameters_of

KINDS = (
    ("Which machine", plugins.POLICIES, "name"),
    ("Spot, on demand, or wait", plugins.PURCHASE, "purchase"),
    ("When to save", plugins.INTERVAL, "interval"),
    ("Which size", plugins.SIZE, "size"),
)


def chosen(settings: Settings) -> list[Policy]:
    """One of each kind. Raises ConfigError for a name that is not installed."""
    return [_policy(settings, kind, group, getattr(settings.policy, field)) for kind, group, field in KINDS]


def _policy(settings: Settings, kind: str, group: str, name: str) -> Policy:
    if group == plugins.SIZE and name == SIZE_OFF:
        return Policy(kind, "off", ())
    if group == plugins.INTERVAL and settings.agent.checkpoint_interval is not None:
        return Policy(kind, f"every {settings.agent.checkpoint_interval:g} s", ())
    table = settings.policy.table_of(name)
    rows = [(p.name, str(table.get(p.name, p.default)), p.text) for p in parameters_of(plugins.plugin(group, name))]
    return Policy(kind, name, rows)
