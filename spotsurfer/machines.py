"""What a new machine is told, in its user-data and beside it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from spotsurfer_agent import objectkeys
from spotsurfer_agent.access import withheld
from spotsurfer_agent.protocol import AgentConfig
from sqlalchemy import Engine

from spotsurfer import authorities
from spotsurfer.controller import bootstrap
from spotsurfer.controller.logins import Logins
from spotsurfer.controller.rehearsal import of_job
from spotsurfer.model.job import Attempt
from spotsurfer.ports.provider import Provider, StoreAccess
from spotsurfer.settings import LimitsSection, Settings
from spotsurfer.state import jobs as rows
from spotsurfer.storekey import StoreKey


@dataclass
class Machines:
    """Of one controller. All that it says of an attempt is the same each time, as long as the settings are."""

    settings: Settings
    engine: Engine
    provider: Provider
    key: StoreKey
    runtime_sha256: str
    logins: Logins
    _trusted: str = field(init=False)  # certificates of registries

    def __post_init__(self) -> None:
        self._trusted = authorities.read(self.settings.images.authorities)

    def user_data(self, attempt: Attempt) -> str:
        """What it runs at its first boot. Where its access to the store is renewed, no secret but the voucher is in it."""
        access = self.provider.store_access(attempt.job, attempt.number)
        config, login = self._config(attempt, access), self.logins.of_user_data(attempt)
        if access.renewed:
            config, _ = withheld.split(config, self.key.voucher_of(attempt.job, attempt.number))
            login = replace(login, host_key="") if login is not None else None
        source = bootstrap.source(access, objectkeys.runtime_key(self.runtime_sha256), config.metadata_url)
        return bootstrap.user_data(config, self.runtime_sha256, source, login)

    def left_out(self, attempt: Attempt) -> bytes:
        """What the voucher opens: the keys of the job's lineage and of this machine, and how inputs are reached. Sealed."""
        config = self._config(attempt, self.provider.store_access(attempt.job, attempt.number))
        opens, login = self.key.voucher_of(attempt.job, attempt.number), self.logins.of_user_data(attempt)
        _, kept = withheld.split(config, opens)
        host_key: Mapping[str, str] = {withheld.HOST_KEY: f"{login.host_key.strip()}\n"} if login is not None else {}
        return withheld.sealed({**kept, **host_key}, opens, attempt.job, attempt.number)

    def _config(self, attempt: Attempt, access: StoreAccess) -> AgentConfig:
        with self.engine.connect() as connection:
            job = rows.load_job(connection, attempt.job)
        config = of_job(_general(self.settings, self.provider, attempt, access), job)
        secret = self.key.secret_of(config.lineage or config.job)
        encrypt = config.encrypt or job.spec.must_encrypt
        opens = self.key.access_secret_of(attempt.job, attempt.number).hex() if access.renewed else ""
        return replace(config, key=secret, encrypt=encrypt, registry_authorities=self._trusted, access_secret=opens)


def _keep_seconds(limits: LimitsSection) -> float:
    """The controller lets a machine go that keeps a job; its agent ends it only when it has heard of nobody for much longer."""
    return limits.keep_seconds + limits.lease_seconds if limits.keep_seconds else 0.0


def _general(settings: Settings, provider: Provider, attempt: Attempt, access: StoreAccess) -> AgentConfig:
    agent, checkpoint = settings.agent, settings.checkpoint
    return AgentConfig(
        job=attempt.job,
        attempt=attempt.number,
        store_url=access.url,
        store_options=dict(access.options),
        metadata_dialect=provider.capabilities.metadata_dialect,
        poll_seconds=agent.poll_seconds,
        report_seconds=agent.report_seconds,
        notice_seconds=agent.notice_seconds,
        lease_seconds=settings.limits.lease_seconds if attempt.lease_seconds is None else attempt.lease_seconds,
        limit_seconds=agent.limit_seconds,
        ready_limit_seconds=agent.ready_limit_seconds,
        drain_margin_seconds=agent.drain_margin_seconds,
        notice_window_seconds=provider.capabilities.notice_seconds,
        warm_wait_seconds=settings.limits.warm_wait_seconds,
        keep_seconds=_keep_seconds(settings.limits),
        hurry_seconds=agent.hurry_seconds,
        cache_bytes=agent.cache_bytes,
        image_cache_bytes=settings.images.cache_bytes,
        input_cache_bytes=settings.inputs.cache_bytes,
        input_options={**{k: dict(v) for k, v in access.inputs.items()}, **settings.inputs.options},
        insecure_registries=list(settings.images.insecure_registries),
        encrypt=checkpoint.encrypt,
        checkpoint_memory_bytes=checkpoint.memory_bytes,
        checkpoint_threads=checkpoint.threads,
        compression=checkpoint.compression,
        lazy=checkpoint.lazy,
    )
