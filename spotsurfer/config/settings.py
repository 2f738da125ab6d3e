"""The operator's settings: a TOML file, overridden by SPOTSURFER_* variables; one class for each section.

This file holds names, types, defaults and checks. config.example.toml explains each key; a test loads it. Variables are
SPOTSURFER_<SECTION>__<KEY>, e.g. SPOTSURFER_LIMITS__BUDGET_USD=25.
"""

from __future__ import annotations

import ipaddress
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, get_args

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict, SettingsError

from spotsurfer.common import plugins
from spotsurfer.common.input_errors import did_you_mean, line_of
from spotsurfer.common.units import parse_seconds
from spotsurfer.config.budgets_section import BudgetSection, distinct
from spotsurfer.config.costs_section import CostsSection
from spotsurfer.config.licences_section import Pools
from spotsurfer.config.notify_section import NotifySection
from spotsurfer.config.oidc_section import OidcSection
from spotsurfer.config.paths import SOCKET_NAME, find_config, read_config, usual_data_dir
from spotsurfer.config.section import AbsolutePath, Interval, Seconds, Section, UsdMicros
from spotsurfer.core.scheduling.rightsizing import SizeRules
from spotsurfer.model.errors import ConfigError
from spotsurfer.model.job import SIZE_OFF
from spotsurfer.model.snapshot import Limits

# ---- Sections


def _one_of(*known: str) -> AfterValidator:
    """One of these words, with letters of any case."""

    def check(value: str) -> str:
        word = value.lower()
        if word not in known:
            raise ValueError(f"is {word!r}. {did_you_mean(word, known)}")
        return word

    return AfterValidator(check)


Network = Annotated[str, _one_of("private", "public")]  # which address of a machine is used


# ---- Sections


def _ports(value: str) -> str:
    found = re.fullmatch(r"(\d{1,5})-(\d{1,5})", value)
    if found is None or not 1 <= int(found[1]) <= int(found[2]) <= 65535:
        raise ValueError(f'is {value!r}, expected the first and the last port, like "20500-20999"')
    return value


class FrontSection(Section):
    """[front]: addresses on which ports of jobs are answered."""

    address: str = "127.0.0.1"
    ports: Annotated[str, AfterValidator(_ports)] = "20500-20999"
    wait: Interval = 600.0
    connections_max: int = Field(default=512, ge=1, le=100_000)
    machines: Network = "private"

    @property
    def range(self) -> range:
        """All ports."""
        first, _, last = self.ports.partition("-")
        return range(int(first), int(last) + 1)


def _whole_windows(value: float) -> float:
    if value not in (10.0, 20.0, 30.0, 60.0):
        raise ValueError(f"is {value:g} seconds, expected 10, 20, 30 or 60: whole windows of usage that make up a minute")
    return value


class SizeSection(Section):
    """[size]: how running jobs may move to other types, if a size policy decides about them."""

    look_seconds: Annotated[Interval, AfterValidator(_whole_windows)] = 60.0
    moves_per_hour: int = Field(default=12, ge=3)
    cool_down_seconds: Seconds = 0.0
    cpu_factor: float = Field(default=4.0, ge=1)
    memory_factor: float = Field(default=4.0, ge=1)
    history: bool = True

    def as_rules(self) -> SizeRules:
        """The same values as `SizeRules`, for decisions."""
        return SizeRules(**self.model_dump())


class SshSection(Section):
    """[ssh]: logging in to machines. Without a user nobody can."""

    user: Annotated[str, Field(pattern=r"^[a-z_][a-z0-9_.-]*$")] | None = None
    key_file: AbsolutePath | None = None
    port: int = Field(default=22, ge=1, le=65535)
    address: Network = "private"
    nudge: bool = False


def _listens(value: str) -> str:
    listen_address(value)
    return value


class ControllerSection(Section):
    """[controller]: this process."""

    data_dir: AbsolutePath = Field(default_factory=usual_data_dir)
    socket: AbsolutePath | None = None
    listen: Annotated[str, AfterValidator(_listens)] | None = None
    token_file: AbsolutePath | None = None
    tls_certificate: AbsolutePath | None = None
    tls_key: AbsolutePath | None = None
    tick_seconds: Interval = 4.0
    hurry_seconds: Interval = 0.25
    offers_seconds: Interval = 30.0
    log_level: Annotated[str, _one_of("debug", "info", "warning", "error")] = "info"
    log_format: Annotated[str, _one_of("auto", "json", "text")] = "auto"


def _networks(value: tuple[str, ...]) -> tuple[str, ...]:
    for one in value:
        try:
            ipaddress.ip_network(one)
        except ValueError:
            raise ValueError(f'is {one!r}, expected addresses or networks, like "127.0.0.1" or "10.0.0.0/24"') from None
    return value


class AccessSection(Section):
    """[access]: who may use the API, besides the controller's own user and the token file."""

    operators: tuple[str, ...] = ()
    socket_group: str | None = None
    proxy_header: Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9-]*$")] | None = None
    proxy_addresses: Annotated[tuple[str, ...], AfterValidator(_networks)] = ("127.0.0.1", "::1")
    oidc: OidcSection | None = None


def _store_url(value: str) -> str:
    if not re.match("(?:file|memory|s3|gs|az|abfs)://", value):
        raise ValueError(f"is {value!r}, expected a URL like file:///srv/store, s3://bucket/prefix, gs://… or az://…")
    return value


class StoreSection(Section):
    """[store]: shared storage."""

    url: Annotated[str, AfterValidator(_store_url)] | None = None
    options: dict[str, str] = Field(default_factory=dict)
    region: str = ""
    key_file: AbsolutePath | None = None


class LimitsSection(Section):
    """[limits]: limits that no job may exceed, and tolerated times of silence."""

    instances_max: int = Field(default=20, ge=1)
    gpus_max: int | None = Field(default=None, ge=0)
    hourly_max_usd: Annotated[UsdMicros, Field(gt=0)] | None = None
    ageing_seconds: Interval = 600.0
    stay_seconds: Interval = 120.0
    budget_usd: UsdMicros | None = None
    price_max_usd: Annotated[UsdMicros, Field(gt=0)] | None = None
    instance_types: tuple[Annotated[str, Field(min_length=1)], ...] = ()
    lease_seconds: Interval = 60.0
    lease_margin_seconds: Seconds = 15.0
    boot_limit_seconds: Interval = 600.0
    listing_lag_seconds: Seconds = 30.0
    deadline_reserve_seconds: Seconds = 300.0
    drain_reserve_seconds: Seconds = 300.0
    restore_failures_max: int = Field(default=1, ge=1)
    launch_failures_max: int = Field(default=20, ge=1)
    last_report_seconds: Seconds = 10.0
    refusal_seconds: Seconds = 1800.0
    release_again_seconds: Interval = 60.0
    warm_wait_seconds: Seconds = 300.0
    keep_seconds: Seconds = 300.0
    idle_seconds: Seconds = 60.0
    precopy_gain_seconds: Seconds = 1.0
    cooldown_seconds: Interval | None = None
    cancel_never_satisfied: bool = False
    time_limit: Annotated[str, _one_of("end", "deadline")] = "end"
    kill_wait_seconds: Seconds = 30.0

    def as_limits(self) -> Limits:
        """The same values as `Limits`, for `decide`."""
        money = {f"{name}_micros": getattr(self, name) for name in ("budget_usd", "price_max_usd", "hourly_max_usd")}
        return Limits(**self.model_dump(exclude={"budget_usd", "price_max_usd", "hourly_max_usd", "cooldown_seconds"}), **money)


class AgentSection(Section):
    """[agent]: how often agents look and report; part of their start configuration."""

    poll_seconds: Interval = 5.0
    report_seconds: Interval = 30.0
    notice_seconds: Annotated[float, BeforeValidator(parse_seconds), Field(gt=0)] = 1.0
    drain_margin_seconds: Seconds = 5.0
    limit_seconds: Seconds = 0.0
    ready_limit_seconds: Interval = 3600.0
    hurry_seconds: Interval = 0.25
    cache_bytes: int = Field(default=0, ge=0)
    checkpoint_interval: Interval | None = None


class CheckpointSection(Section):
    """[checkpoint]: resources that a machine spends on making and reading checkpoints, and their form."""

    memory_bytes: int = Field(default=0, ge=0)
    threads: int = Field(default=0, ge=0, le=64)
    shared_bytes: int = Field(default=1 << 30, ge=0)
    compression: Annotated[str, _one_of("auto", "none", "lz4", "zstd")] = "auto"
    encrypt: bool = False
    lazy: bool = True


class ImagesSection(Section):
    """[images]: container images that jobs bring along."""

    cache_bytes: int = Field(default=0, ge=0)
    authorities: list[AbsolutePath] = Field(default_factory=list)
    insecure_registries: list[Annotated[str, Field(pattern=r"^[A-Za-z0-9.-]+(:[0-9]+)?$")]] = Field(default_factory=list)


class InputsSection(Section):
    """[inputs]: downloads for jobs; `options` by the beginning of an address, longer ones win; in obstore's names."""

    cache_bytes: int = Field(default=0, ge=0)
    options: dict[str, dict[str, str]] = Field(default_factory=dict)


class RetentionSection(Section):
    """[retention]: which checkpoints are kept."""

    newest: int = Field(default=3, ge=1)
    ended: Seconds = 7 * 86400.0
    wait: Seconds = 600.0
    every: Interval = 60.0


class SharedSection(Section):
    """[shared]: file systems that users' hosts and machines have in common."""

    paths: tuple[AbsolutePath, ...] = ()


class _Chosen(BaseModel):
    """A section that names a plug-in and holds free tables for it (and for others, kept for later)."""

    model_config = ConfigDict(extra="allow", frozen=True)

    @model_validator(mode="after")
    def _only_tables(self) -> _Chosen:
        for key, value in (self.model_extra or {}).items():
            if not isinstance(value, dict):
                raise ValueError(f"has the unknown key {key!r}. {did_you_mean(key, ['name'])}")
        return self

    def table_of(self, name: str) -> dict[str, Any]:
        """The free table of one plug-in; empty when none is written."""
        return dict((self.model_extra or {}).get(name, {}))


def _distinct(value: str | tuple[str, ...]) -> str | tuple[str, ...]:
    if not value or (isinstance(value, tuple) and len(set(value)) < len(value)):
        raise ValueError(f"is {value!r}, expected a provider, or a list with each of them once")
    return value


class ProviderSection(_Chosen):
    """[provider]: the sources of machines; [provider.<name>] goes to that provider unchanged."""

    name: Annotated[str | tuple[str, ...], AfterValidator(_distinct)] = "local"

    @property
    def names(self) -> tuple[str, ...]:
        """All of them."""
        return (self.name,) if isinstance(self.name, str) else self.name


class PolicySection(_Chosen):
    """[policy]: the policies of each kind by name; [policy.<name>] holds the parameters of one."""

    name: str = "cheapest"
    purchase: str = "surf"
    interval: str = "surf"
    size: str = SIZE_OFF


class HooksSection(Section):
    """[hooks]: commands on the controller's host."""

    on_end: list[str] = Field(default_factory=list)
    allow_remote: bool = False


class SecretsSection(Section):
    """[secrets]: secrets of jobs that the controller fetches with its own credentials."""

    allow_remote: bool = False


class RuntimeSection(Section):
    """[runtime]: the agent's tarball."""

    mirror: str | None = None
    path: AbsolutePath | None = None


class Settings(BaseSettings):
    """All settings. Variables of the environment override the values given here, and those override the defaults."""

    model_config = SettingsConfigDict(
        env_prefix="SPOTSURFER_", env_nested_delimiter="__", extra="forbid", frozen=True, env_ignore_empty=True
    )
    controller: ControllerSection = Field(default_factory=ControllerSection)
    access: AccessSection = Field(default_factory=AccessSection)
    store: StoreSection = Field(default_factory=StoreSection)
    limits: LimitsSection = Field(default_factory=LimitsSection)
    agent: AgentSection = Field(default_factory=AgentSection)
    checkpoint: CheckpointSection = Field(default_factory=CheckpointSection)
    images: ImagesSection = Field(default_factory=ImagesSection)
    inputs: InputsSection = Field(default_factory=InputsSection)
    shared: SharedSection = Field(default_factory=SharedSection)
    retention: RetentionSection = Field(default_factory=RetentionSection)
    provider: ProviderSection = Field(default_factory=ProviderSection)
    policy: PolicySection = Field(default_factory=PolicySection)
    size: SizeSection = Field(default_factory=SizeSection)
    hooks: HooksSection = Field(default_factory=HooksSection)
    secrets: SecretsSection = Field(default_factory=SecretsSection)
    front: FrontSection = Field(default_factory=FrontSection)
    ssh: SshSection = Field(default_factory=SshSection)
    runtime: RuntimeSection = Field(default_factory=RuntimeSection)
    costs: CostsSection = Field(default_factory=CostsSection)
    notify: NotifySection = Field(default_factory=NotifySection)
    licences: Pools = Field(default_factory=dict)
    budgets: Annotated[tuple[BudgetSection, ...], AfterValidator(distinct)] = ()

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],  # noqa: ARG003 - the library's signature
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Environment over file; no other source."""
        return env_settings, init_settings

    @model_validator(mode="after")
    def _lease_is_long_enough(self) -> Settings:
        need = 2 * max(self.agent.poll_seconds, self.agent.report_seconds)
        if self.limits.lease_seconds < need:
            raise ValueError(
                f"[limits] lease_seconds is {self.limits.lease_seconds:g}, but must be at least twice [agent] poll_seconds and "
                f"report_seconds ({need:g}): a shorter one would freeze healthy jobs"
            )
        return self

    @model_validator(mode="after")
    def _tick_is_short_enough(self) -> Settings:
        tick, lease = self.controller.tick_seconds, self.limits.lease_seconds
        if 2 * tick > lease:
            raise ValueError(
                f"[controller] tick_seconds is {tick:g}, but must be at most half of [limits] lease_seconds ({lease:g}): "
                "machines that fell silent would be noticed too late"
            )
        return self

    @property
    def socket_path(self) -> Path:
        """The socket of the API on this host."""
        return self.controller.socket or self.controller.data_dir / SOCKET_NAME

    @property
    def token_path(self) -> Path:
        """File with the token that TCP clients must show."""
        return self.controller.token_file or self.controller.data_dir / "token"

    @property
    def key_path(self) -> Path:
        """File with the secret that names, seals and encrypts checkpoints."""
        return self.store.key_file or self.controller.data_dir / "store.key"

    @property
    def runtime_dir(self) -> Path:
        """Folder in which the agent's runtime is built and looked for, by default in the data folder."""
        return self.runtime.path or self.controller.data_dir / "runtime"

    @property
    def store_url(self) -> str:
        """The store, by default a folder of the data folder."""
        return self.store.url or (self.controller.data_dir / "store").as_uri()


@dataclass(frozen=True, slots=True)
class _Source:
    """The sources of values, so that an error message can name the place of a wrong one."""

    path: Path | None
    text: str
    environment: Mapping[str, str]

    def where(self, key: tuple[str, ...]) -> str:
        """The variable, or file and line, that holds `key`."""
        variable = "SPOTSURFER_" + "__".join(key).upper()
        names = {name.upper() for name in self.environment}
        if variable in names:
            return f"Environment variable {variable}"
        section = ".".join(part for part in key[:-1] if not part.isdigit())
        place = f"[{section}] {key[-1]}" if section else f"[{key[-1]}]"
        line = line_of(self.text, key)
        return f"{self.path}{f' line {line}' if line else ''}: {place}" if self.path else place


def load_settings(explicit: Path | None = None) -> Settings:
    """Settings from the file in force and the environment.

    Raises ConfigError: one sentence that names file, line and key, or the variable, and what was expected.
    """
    path = find_config(explicit)
    tables = read_config(path)
    source = _Source(path, path.read_text() if path else "", os.environ)
    _check_variables(os.environ)
    try:
        settings = Settings(**tables)
    except ValidationError as e:
        raise ConfigError(_sentence(e, source)) from None
    except (SettingsError, TypeError) as e:
        raise ConfigError(f"The environment can't be read as settings: {e}. Write SPOTSURFER_<SECTION>__<KEY>=value.") from None
    _check_plugins(settings, source)
    return settings


def listen_address(text: str) -> tuple[str, int]:
    """Host and port of "127.0.0.1:8470" or "[::1]:8470"; raises ValueError."""
    match = re.fullmatch(r"(?:\[([0-9a-fA-F:]+)\]|([^:\s]+)):(\d{1,5})", text)
    if match is None or int(match.group(3)) > 65535:
        raise ValueError(f'is {text!r}, expected "address:port", e.g. "127.0.0.1:8470"')
    return match.group(1) or match.group(2), int(match.group(3))


def _sentence(error: ValidationError, source: _Source) -> str:
    first, *others = error.errors()
    key = tuple(str(x) for x in first["loc"] if not str(x).startswith("function-"))
    more = f" ({len(others)} more after this.)" if others else ""
    if first["type"] == "extra_forbidden":
        what = "section" if len(key) == 1 else "key"
        return f"{source.where(key)} is an unknown {what}. {did_you_mean(key[-1], _known(key[:-1]))}{more}"
    cause = first.get("ctx", {}).get("error")
    if first["type"] in ("model_type", "dict_type"):
        text = f"is {first['input']!r}, expected a table"
    else:
        text = str(cause) if cause else f"is {first['input']!r}: {first['msg'].lower()}"
    end = "" if text.endswith((".", "?")) else "."
    if key:
        return f"{source.where(key)} {text}{end}{more}"
    return f"{source.path}: {text}{end}{more}" if source.path else f"{text[0].upper()}{text[1:]}{end}{more}"


def _known(section: tuple[str, ...]) -> list[str]:
    if not section:
        return list(Settings.model_fields)
    kind: Any = Settings.model_fields[section[0]].annotation
    if get_args(kind):  # [[section]]
        kind, section = get_args(kind)[0], section[1:]
    for name in section[1:]:
        if isinstance(kind, type) and issubclass(kind, BaseModel) and name in kind.model_fields:
            kind = next(iter(get_args(kind.model_fields[name].annotation)), None)  # a list of tables: of one of them
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        return [f.alias or name for name, f in kind.model_fields.items()]
    return []


def _check_variables(environment: Mapping[str, str]) -> None:
    """Refuses unknown sections: the library ignores such variables, and a typing error must not go unseen."""
    for name in environment:
        section, nested, _ = name.upper().removeprefix("SPOTSURFER_").partition("__")
        if name.upper().startswith("SPOTSURFER_") and nested and section.lower() not in Settings.model_fields:
            hint = did_you_mean(section.lower(), Settings.model_fields)
            raise ConfigError(f"Environment variable {name} names an unknown section. {hint}")


def _check_plugins(settings: Settings, source: _Source) -> None:
    """A table or name that belongs to no installed plug-in is a typing error."""
    groups = (plugins.POLICIES, plugins.PURCHASE, plugins.INTERVAL, plugins.SIZE, plugins.PROVIDERS)
    policy, purchase, interval, size, providers = (frozenset(plugins.plugins(g)) for g in groups)
    wanted = [
        *(("provider", "name", name, providers) for name in settings.provider.names),
        ("policy", "name", settings.policy.name, policy),
        ("policy", "purchase", settings.policy.purchase, purchase),
        ("policy", "interval", settings.policy.interval, interval),
        ("policy", "size", settings.policy.size, size | {SIZE_OFF}),
        *(("provider", name, name, providers) for name in settings.provider.model_extra or {}),
        *(("policy", name, name, policy | purchase | interval | size) for name in settings.policy.model_extra or {}),
    ]
    for section, key, name, known in wanted:
        if name not in known:
            where = source.where((section, key))
            raise ConfigError(f"{where} names {name!r}, and no such {section} is installed. {did_you_mean(name, known)}")
