"""The clouds of one controller: which provider has a machine, and which one makes credentials for the store.

The store lies in one cloud. A machine of another cloud can't read it with its own rights. So at its boot it reads a bucket of
its own cloud (`Provider.boot`), where it finds credentials for the store, which the provider of the store's cloud made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from urllib.parse import urlsplit

from spotsurfer.ledger.facts import Rules
from spotsurfer.model.errors import ConfigError, ProviderError
from spotsurfer.model.job import Attempt
from spotsurfer.model.market import Pool
from spotsurfer.model.prices import Override, Place, Tariff
from spotsurfer.ports.provider import Capabilities, Credentials, Provider, StoreAccess

NO_ABILITIES = Capabilities(notice_seconds=0.0, metadata_dialect="")  # of a provider that the settings no longer name


class Clouds:
    """Providers by name, each behind a circuit breaker of its own, in the order of the settings."""

    def __init__(self, providers: Iterable[Provider], store_url: str, region: str = "") -> None:
        """`region`: of the store; "" = as S3's options say, or unknown.

        Raises ConfigError if nobody makes credentials for the store that a provider's machines need.
        """
        self._by_name = {p.name: p for p in providers}
        self._scheme = urlsplit(store_url).scheme
        self._keepers = {name: self._keeper(p, store_url) for name, p in self._by_name.items()}
        self.tariff = self._tariff(region)

    def _keeper(self, provider: Provider, store_url: str) -> Provider:
        """Who makes the credentials with which a provider's machines use the store."""
        if not provider.capabilities.stores or self._scheme in provider.capabilities.stores:
            return provider
        found = next((p for p in self._by_name.values() if self._scheme in p.capabilities.stores), None)
        if found is None:
            raise ConfigError(
                f"store.url is {store_url!r}, and no provider in use makes credentials for it, which machines of "
                f"{provider.name} need; name the one of its cloud in [provider] name as well, or use a store like "
                f"{provider.capabilities.stores[0]}://bucket/prefix"
            )
        return found

    def __iter__(self) -> Iterator[Provider]:
        return iter(self._by_name.values())

    def having(self, ability: Callable[[Capabilities], bool]) -> frozenset[str]:
        """The names of those that are able to do something."""
        return frozenset(p.name for p in self if ability(p.capabilities))

    def at(self, name: str) -> Provider:
        """The provider of this name; "", of a machine that no listing has shown yet, is the only one there is.

        Raises ProviderError if the settings no longer name it.
        """
        if not name and len(self._by_name) == 1:
            return next(iter(self))
        if name not in self._by_name:
            raise ProviderError(
                f"[provider] name lists no {name!r}, which has machines of ours; name it again until they are gone"
            )
        return self._by_name[name]

    def capabilities(self, pool: Pool) -> Capabilities:
        """What the provider of a pool can do."""
        try:
            return self.at(pool.provider).capabilities
        except ProviderError:
            return NO_ABILITIES

    def rules(self, overrides: Sequence[Override] = (), controller_usd_micros_per_hour: int = 0) -> Rules:
        """How everything is billed, with an operator's own prices."""
        able = {p.name: p.capabilities for p in self}
        return Rules(
            {name: c.billing for name, c in able.items()},
            {name: c.prices for name, c in able.items()},
            self.tariff,
            overrides,
            controller_usd_micros_per_hour,
        )

    # ---- the store

    def store_access(self, attempt: Attempt, machine: str = "") -> StoreAccess:
        """The store as this attempt's machine sees it; `machine`: its token, if it is kept. Raises ProviderError for an unknown
        provider."""
        return self._access(self.at(attempt.pool.provider), attempt.job, attempt.number, machine)

    def machine_access(self, attempt: Attempt) -> StoreAccess:
        """What the machine of an attempt may read itself, if it is kept. Raises ProviderError for an unknown provider."""
        return self._access(self.at(attempt.pool.provider), "", 0, attempt.token)

    def _access(self, provider: Provider, job: str, attempt: int, machine: str = "") -> StoreAccess:
        keeper = self._keepers[provider.name]
        access = keeper.store_access(job, attempt, machine) if machine else keeper.store_access(job, attempt)
        return access if keeper is provider else replace(access, boot=provider.boot)

    def _tariff(self, region: str) -> Tariff:
        egress = {p.name: p.capabilities.egress for p in self}
        keeper = next((p for p in self if self._scheme in p.capabilities.stores), None)
        if keeper is None:  # a folder of this host
            return Tariff(Place(), egress)
        return Tariff(Place(keeper.name, region or keeper.store_access("any", 1).options.get("region", "")), egress)

    def views_of_store(self) -> list[StoreAccess]:
        """The store as the machines of each provider see it."""
        return [self._access(p, "any", 1) for p in self]

    def check_inputs(self, job: str, inputs: Sequence[str]) -> None:
        """See Provider: by all who may have to make credentials for a job."""
        for name in dict.fromkeys(keeper.name for keeper in self._keepers.values()):
            self._by_name[name].check_inputs(job, inputs)

    def credentials(self, attempt: Attempt, inputs: Sequence[str], home: str = "") -> Credentials:
        """See Provider: by the one of the store's cloud."""
        return self._keepers[self.at(attempt.pool.provider).name].credentials(attempt.job, attempt.number, inputs, home)
