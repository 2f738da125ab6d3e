"""The interface of a cloud, and of its queue of interruption events as a second witness."""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import Protocol

from spotsurfer.model.job import InstanceId
from spotsurfer.model.market import Market, Offer, Pool
from spotsurfer.model.prices import ALWAYS, EgressPrices, ListPrice
from spotsurfer.ports.clock import Clock

# ---- Witness: a queue of the cloud's events, as a second source besides the agents on machines


class NoticeKind(StrEnum):
    """The kind of a notice about an instance."""

    INTERRUPTION = "interruption"  # the cloud will reclaim it
    REBALANCE = "rebalance"  # the cloud is more likely to reclaim it than others
    RETIREMENT = "retirement"  # its host will be taken out of service, some day
    STATE = "state"  # its state changed: the next listing shows how


@dataclass(frozen=True, slots=True)
class Notice:
    """One event about one instance. `age_seconds` is by the cloud's own clock, which is never compared with ours."""

    instance: InstanceId
    sign: NoticeKind
    age_seconds: float
    text: str  # for people


@dataclass(frozen=True, slots=True)
class QueueMessage:
    """One message of the queue. `receipt` settles it; `unreadable` says why it could not be parsed."""

    receipt: str
    notices: Sequence[Notice] = ()
    unreadable: str = ""


class Witness(Protocol):
    """Messages come once or more often, in any order, and stay until they are settled.

    Methods may raise model.errors.ProviderError and its children.
    """

    def read(self) -> Sequence[QueueMessage]:
        """The present messages, at most a hundred or so, without waiting. Messages not settled come again after a while."""
        ...

    def settle(self, letters: Sequence[QueueMessage]) -> None:
        """Mark these messages as handled, so that they don't come again."""
        ...


KEPT_TAG = "spotsurfer:kept"  # of a machine that takes further jobs: "yes"
MACHINE_BASE = "/var/lib/spotsurfer"  # the agent's folder on machines
USER_DATA_BYTES_MAX = 16 << 10  # before base64; EC2's limit, which all providers keep


@dataclass(frozen=True, slots=True)
class BillingRule:
    """How a provider bills an instance that is launched from `begins` on, until the next rule."""

    minimum_seconds: float = 60.0
    reclaimed_first_hour_free: bool = False
    begins: datetime = ALWAYS
    source: str = ""


@dataclass(frozen=True, slots=True)
class Capabilities:
    """Abilities as data, never `isinstance`."""

    notice_seconds: float  # between notice and reclaim; 0 = no notice
    metadata_dialect: str  # "aws" | "azure" | "gcp": what the agent speaks
    billing: Sequence[BillingRule] = (BillingRule(),)  # oldest first
    prices: Sequence[ListPrice] = ()  # of all but machines and transfer
    rebalance: str = "ignore"  # "ignore" | "checkpoint" | "move": reaction to the cloud's advice to leave a machine
    shares_gpus: bool = False  # all its machines have the same GPUs, as machines of one host do
    egress: EgressPrices = field(default_factory=EgressPrices)
    keeps: bool = False  # several jobs may share a machine, each with its own rights in the store
    stores: Sequence[str] = ()  # kinds of stores (schemes) for which it makes credentials; () = its machines need none


class InstanceState(StrEnum):
    """The state of an instance, by the cloud."""

    PENDING = "pending"
    RUNNING = "running"
    STOPPING = "stopping"
    GONE = "gone"  # ended; it may stay in listings for a while


@dataclass(frozen=True, slots=True)
class InstanceView:
    """An instance as the cloud shows it. `reclaimed` is true only if the cloud says that it reclaimed the instance."""

    id: InstanceId
    token: str
    pool: Pool
    market: Market
    state: InstanceState
    launched_at: datetime
    ended_at: datetime | None = None
    reclaimed: bool = False
    tags: Mapping[str, str] = field(default_factory=dict)
    address: str | None = None  # inside its network
    public_address: str | None = None  # if it has one


@dataclass(frozen=True, slots=True)
class Listing:
    """All instances of our family. Absence is evidence only if `complete`."""

    instances: Sequence[InstanceView]
    complete: bool


@dataclass(frozen=True, slots=True)
class LaunchPlan:
    """One instance. `user_data` is a program for the machine's first boot, of USER_DATA_BYTES_MAX at most."""

    token: str
    pool: Pool
    market: Market
    user_data: str
    tags: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class BootBucket:
    """A place in the machines' cloud with `runtime/` and `access/`, for machines whose own rights don't reach the store."""

    url: str
    options: Mapping[str, str]  # of the controller, in obstore's names
    machine_options: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class StoreAccess:
    """How an instance reaches the store: handed to the agent in its user-data, so the same at each call for an attempt.

    If it is `renewed`, `options` hold no credential, only public values (region, endpoint …). Then the machine itself has
    rights (an instance role) to read only `runtime/` and `access/` of the store, or of `boot` if the store lies in another
    cloud, and its other rights come from `Provider.credentials`, sealed, under `access/`.
    """

    url: str
    options: Mapping[str, str]  # in obstore's names
    inputs: Mapping[str, Mapping[str, str]] = field(default_factory=dict)  # access to inputs, by the prefix of their address
    renewed: bool = False
    boot: BootBucket | None = None


@dataclass(frozen=True, slots=True)
class Credentials:
    """Rights for a limited time. They are never logged, and stored only sealed for the one attempt that gets them."""

    values: Mapping[str, str] = field(repr=False)  # in obstore's names: access_key_id, secret_access_key, token
    expires_at: datetime  # as the cloud says


@dataclass(frozen=True, slots=True)
class ProviderHost:
    """The arguments of a provider besides its own settings: `make(settings, host)` is the entry point's signature."""

    family: str  # of the controller; a tag on every instance, so that a sweep ends only its own instances
    data_dir: Path  # on the controller's host, for the provider's own files
    store_url: str  # as the controller sees the store
    clock: Clock


class Provider(Protocol):
    """Instances and their prices. Every method may raise model.errors.ProviderError and its children.

    None of them waits for a machine: they order, and `describe` shows the result.
    """

    name: str

    @property
    def capabilities(self) -> Capabilities:
        """What it can do; may change when the cloud turns out to know less than was hoped for."""
        ...

    @property
    def witness(self) -> Witness | None:
        """The second witness of interruptions, besides the agents; None = there is none."""
        ...

    @property
    def boot(self) -> BootBucket | None:
        """Where its machines begin if the store lies in another cloud; None = in the store."""
        ...

    def offers(self) -> Sequence[Offer]:
        """Pools that may be tried now, with prices. A pool listed here may still refuse."""
        ...

    def launch(self, plan: LaunchPlan) -> InstanceView:
        """Order one instance. The same token always yields the same instance, also after a crash of the caller.

        Raises NoCapacity, QuotaExceeded, Throttled, ProviderDenied, Invalid. A token whose instance has already ended
        yields that ended instance, never a second one.
        """
        ...

    def terminate(self, instance: InstanceId) -> None:
        """Order its end. Success means *ordered*, not gone: `describe` shows that. An unknown or ended one is no error."""
        ...

    def describe(self) -> Listing:
        """All instances of this controller family, ended ones for at least some minutes."""
        ...

    def outlet(self, instance: InstanceId) -> socket.socket:
        """A TCP socket, not connected yet, from which the instance's address can be reached. The caller closes it.

        Makes no call to the cloud. Raises ProviderError if the instance can't be reached now.
        """
        ...

    def store_access(self, job: str, attempt: int, machine: str = "") -> StoreAccess:
        """The store as an instance of this attempt sees it, limited to what the attempt may touch; the store is one of ours.

        `machine`: launch token of a machine that is kept, on which the attempt is; without a job: what the machine may read
        itself, which is the orders for its slots. Only asked for if the provider `keeps` machines.
        Makes no call, and answers the same each time: it becomes part of the user-data, which a repeated order may not change.
        """
        ...

    def check_inputs(self, job: str, inputs: Sequence[str]) -> None:
        """Check, before a job is accepted, that credentials for all these inputs can be made for its attempts.

        Makes no call. Raises Invalid with the remedy if they can't.
        """
        ...

    def credentials(self, job: str, attempt: int, inputs: Sequence[str], home: str = "") -> Credentials:
        """New credentials for this attempt, whose machine may be another provider's. Called only if its `store_access` is
        `renewed`; never cached.

        They allow the attempt's keys of `spotsurfer_wire.object_keys` (`home`: the scope of the folder that the job works in),
        to list `jobs/<job>/`, and to read those `inputs` that do not lie in the store (addresses as in the specification:
        `s3://bucket/path`, with a slash or a pattern at the end for several files). A missing object that may be read must
        read as *absent*, not as forbidden: on S3 that takes `s3:ListBucket` without a condition that a plain GET fails.

        They should live for an hour or more: before half of that is over, the controller asks for the next ones. Each call
        may yield others; old ones stay valid until they expire. Raises Throttled, ProviderDenied, ProviderError.
        """
        ...
