"""The contents of a new machine's user-data and of the sealed object beside it, trusted certificates included."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding
from spotsurfer_wire import json_codec, object_keys, sealed_objects
from spotsurfer_wire.messages import AgentConfig
from sqlalchemy import Engine

from spotsurfer.config.settings import Settings
from spotsurfer.controller.checkpoints.rehearsal import of_job
from spotsurfer.controller.machines import bootstrap
from spotsurfer.controller.machines.clouds import Clouds
from spotsurfer.controller.machines.ssh_access import Logins
from spotsurfer.model.errors import ConfigError
from spotsurfer.model.job import Attempt
from spotsurfer.ports.provider import Capabilities, StoreAccess
from spotsurfer.state import jobs as rows
from spotsurfer.store.master_key import StoreKey

# ---- Certificates: those by which machines trust registries, besides the usual ones

BYTES_MAX = 8192  # user-data of a cloud holds 16 KiB in all


def read(paths: Iterable[Path]) -> str:
    """All certificates of these files in PEM, one after the other, without the other text in the files.

    Raises ConfigError for a file that can't be read or holds none, and if they exceed the room in user-data.
    """
    text = "".join(_certificates(path) for path in paths)
    if len(text) > BYTES_MAX:
        raise ConfigError(
            f"images.authorities are {len(text)} bytes, at most {BYTES_MAX} fit: name only those that registries need"
        )
    return text


def _certificates(path: Path) -> str:
    try:
        found = x509.load_pem_x509_certificates(path.read_bytes())
    except OSError as e:
        raise ConfigError(f"images.authorities: {path} can't be read: {e.strerror}") from e
    except ValueError:
        raise ConfigError(f"images.authorities: {path} holds no certificate in PEM (-----BEGIN CERTIFICATE-----)") from None
    return "".join(c.public_bytes(Encoding.PEM).decode() for c in found)


@dataclass
class Machines:
    """One per controller. Its answers about an attempt are the same each time, as long as the settings are."""

    settings: Settings
    engine: Engine
    clouds: Clouds
    key: StoreKey
    runtime_sha256: str
    logins: Logins
    _trusted: str = field(init=False)  # certificates of registries

    def __post_init__(self) -> None:
        self._trusted = read(self.settings.images.authorities)

    def user_data(self, attempt: Attempt) -> str:
        """The program of its first boot. If access to the store is renewed, its only secret is the voucher."""
        kept = self._is_kept(attempt)
        access = self.clouds.store_access(attempt, attempt.token if kept else "")
        config, login = self._config(attempt, access), self.logins.of_user_data(attempt)
        if kept:
            secret, own = self.key.order_secret_of(attempt.token).hex(), self.clouds.machine_access(attempt)
            config = replace(config, machine=attempt.token, machine_secret=secret, machine_options=dict(own.options))
        if access.renewed:
            config, _ = sealed_objects.withhold_secrets(config, self.key.voucher_of(attempt.job, attempt.number))
            login = replace(login, host_key="") if login is not None else None
        source = bootstrap.source(access, object_keys.runtime_key(self.runtime_sha256), config.metadata_url)
        return bootstrap.user_data(config, self.runtime_sha256, source, login)

    def of(self, attempt: Attempt) -> bytes:
        """The sealed order for an attempt on a machine that runs."""
        config = self._config(attempt, self.clouds.store_access(attempt, attempt.token))
        config = replace(config, machine=attempt.token)
        key = self.key.order_secret_of(attempt.token)
        return sealed_objects.seal_order(json_codec.encode(config), key, attempt.token, attempt.slot)

    def void(self, attempt: Attempt) -> bytes:
        """The sealed order by which nothing comes in the attempt's slot."""
        return sealed_objects.seal_order(b"", self.key.order_secret_of(attempt.token), attempt.token, attempt.slot)

    def _is_kept(self, attempt: Attempt) -> bool:
        with self.engine.connect() as connection:
            return rows.is_kept(connection, attempt.token)

    def left_out(self, attempt: Attempt) -> bytes:
        """The sealed part that the voucher opens: the keys of the job's lineage and of this machine, and access to inputs."""
        config = self._config(attempt, self.clouds.store_access(attempt))
        opens, login = self.key.voucher_of(attempt.job, attempt.number), self.logins.of_user_data(attempt)
        _, kept = sealed_objects.withhold_secrets(config, opens)
        host_key: Mapping[str, str] = {sealed_objects.HOST_KEY: f"{login.host_key.strip()}\n"} if login is not None else {}
        return sealed_objects.seal_withheld({**kept, **host_key}, opens, attempt.job, attempt.number)

    def _config(self, attempt: Attempt, access: StoreAccess) -> AgentConfig:
        with self.engine.connect() as connection:
            job = rows.load_job(connection, attempt.job)
        config = of_job(_general(self.settings, self.clouds.capabilities(attempt.pool), attempt, access), job)
        secret = self.key.secret_of(config.lineage or config.job)
        encrypt = config.encrypt or job.spec.must_encrypt
        opens = self.key.access_secret_of(attempt.job, attempt.number).hex() if access.renewed else ""
        config = replace(config, memory_bytes=job.spec.memory_bytes)
        return replace(config, key=secret, encrypt=encrypt, registry_authorities=self._trusted, access_secret=opens)


def _general(settings: Settings, abilities: Capabilities, attempt: Attempt, access: StoreAccess) -> AgentConfig:
    agent, checkpoint, limits = settings.agent, settings.checkpoint, settings.limits
    # By itself an agent keeps a frozen job much longer than the controller, which normally releases the machine.
    keep_seconds = limits.keep_seconds + limits.lease_seconds if limits.keep_seconds else 0.0
    return AgentConfig(
        job=attempt.job,
        attempt=attempt.number,
        store_url=access.url,
        store_options=dict(access.options),
        boot_url=access.boot.url if access.boot is not None else "",
        boot_options=dict(access.boot.machine_options) if access.boot is not None else {},
        metadata_dialect=abilities.metadata_dialect,
        poll_seconds=agent.poll_seconds,
        report_seconds=agent.report_seconds,
        notice_seconds=agent.notice_seconds,
        lease_seconds=limits.lease_seconds if attempt.lease_seconds is None else attempt.lease_seconds,
        limit_seconds=agent.limit_seconds,
        ready_limit_seconds=agent.ready_limit_seconds,
        drain_margin_seconds=agent.drain_margin_seconds,
        notice_window_seconds=abilities.notice_seconds,
        warm_wait_seconds=limits.warm_wait_seconds,
        keep_seconds=keep_seconds,
        hurry_seconds=agent.hurry_seconds,
        cache_bytes=agent.cache_bytes,
        image_cache_bytes=settings.images.cache_bytes,
        input_cache_bytes=settings.inputs.cache_bytes,
        input_options={**{k: dict(v) for k, v in access.inputs.items()}, **settings.inputs.options},
        insecure_registries=list(settings.images.insecure_registries),
        encrypt=checkpoint.encrypt,
        checkpoint_memory_bytes=checkpoint.memory_bytes,
        checkpoint_threads=checkpoint.threads,
        shared_bytes=checkpoint.shared_bytes,
        compression=checkpoint.compression,
        lazy=checkpoint.lazy,
    )
