"""Credentials of this machine: fetched, renewed in time, and the store opened with them."""

from __future__ import annotations

import contextlib
import datetime
import http.client
import json
import logging
import os
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from spotsurfer_wire import clock, json_codec, object_keys
from spotsurfer_wire.json_codec import ProtocolError
from spotsurfer_wire.messages import AgentConfig
from spotsurfer_wire.sealed_objects import CONFIG, HOST_KEY, BadHandout, Handout, unseal_handout
from spotsurfer_wire.store.obstore import ObstoreStore, fsync, has_credentials, open_store
from spotsurfer_wire.store.port import FileStore, ObjectStore, RightsUnreachable, StoreError

from spotsurfer_agent.store.traffic import Counter, CountingStore

log = logging.getLogger(__name__)

# ---- Credentials: the ones that were handed out, renewed in time
#
# The controller writes them to one object of the store (or of a bucket in this machine's cloud, if the store lies in another
# one), which this machine reads with its instance role. Before half of their lifetime is over, the controller writes newer
# ones. So the agent reads the object again after each eighth of that lifetime, and at once after a refusal. Only durations
# count: a machine's clock may be wrong, and the store decides whether credentials are still good.
#
# Nothing here waits or ends the job. Without credentials the agent itself refuses every request. Then it can't report, its
# lease lapses and its job stands frozen until newer ones are there. Exactly that happens if the controller is away for longer
# than half of a lifetime.

SHARE = 8  # reads of the object in one lifetime of its credentials
AGAIN_SECONDS = 2.0  # between reads while there are none, and after a refusal
LONGEST_SECONDS = 600.0
_LONG_AGO = datetime.datetime(2000, 1, 1, tzinfo=datetime.UTC)


class NoCredentials(Exception):
    """None were handed out yet."""


@dataclass(frozen=True, slots=True)
class Claim:
    """Whose credentials they are, and what opens them."""

    job: str
    attempt: int
    secret: str = field(repr=False)  # 64 hexadecimal digits


class Credentials:
    """The credentials of one process; called by obstore before each request. Safe to use from several threads."""

    def __init__(
        self,
        claim: Claim,
        store: Callable[[], ObjectStore],
        first: Handout | None = None,
        now: Callable[[], float] = clock.monotonic,
    ) -> None:
        """`store` opens the store with the machine's own rights; it is called once, when it is needed."""
        self.claim, self._open, self._now = claim, store, now
        self._store: ObjectStore | None = None
        self.held = first  # the current credentials
        self._next = now() + (_interval(first) if first is not None else 0.0)
        self._looked_at = float("-inf")
        self._lock = threading.Lock()
        self._looking = False
        self._said = ""

    def __call__(self) -> Any:
        """What obstore calls a credential of this store. Never waits: a thread fetches newer ones if they are due.

        Raises NoCredentials.
        """
        self._look_beside()
        held = self.held
        if held is None:
            raise NoCredentials(f"no credentials were handed out yet to {self.claim.job}, attempt {self.claim.attempt}")
        # Marked as expired, so that obstore asks again before each request and uses newer ones at once.
        return {**held.values, "expires_at": _LONG_AGO}

    def refused(self) -> None:
        """The store refused them: look for newer ones."""
        self._next = min(self._next, self._looked_at + AGAIN_SECONDS)

    def look(self) -> bool:
        """Read the object now; True if credentials are held afterwards. Never raises: trouble is logged once."""
        self._looked_at = now = self._now()
        self._next = now + AGAIN_SECONDS
        try:
            if self._store is None:
                self._store = self._open()
            data = self._store.get(object_keys.handout_key(self.claim.job, self.claim.attempt))
            if data is None:
                self._say("no credentials are in the store (yet)")
                return self.held is not None
            handout = unseal_handout(data, bytes.fromhex(self.claim.secret), self.claim.job, self.claim.attempt)
            if handout != self.held:
                log.info("credentials of %s, good for %.0f s", handout.issued_at, handout.life_seconds)
            self.held, self._said = handout, ""
            self._next = self._looked_at + _interval(handout)
        except BadHandout as e:
            self._say(str(e))
        except Exception as e:  # after any error the next look may succeed, and nobody waits for this one
            self._say(f"the credentials can't be read: {e}".partition("\n")[0])
        return self.held is not None

    def _say(self, text: str) -> None:
        if text != self._said:
            log.warning("%s", text)
        self._said = text

    def _look_beside(self) -> None:
        with self._lock:
            if self._looking or self._now() < self._next:
                return
            self._looking = True
        threading.Thread(target=self._looked, name="credentials", daemon=True).start()

    def _looked(self) -> None:
        try:
            self.look()
        finally:
            self._looking = False

    def carry(self) -> dict[str, Any]:
        """Data from which another process of this machine makes its own Credentials. Secret."""
        return {"claim": asdict(self.claim), "first": asdict(self.held) if self.held is not None else None}


def _interval(handout: Handout) -> float:
    return min(max(handout.life_seconds / SHARE, AGAIN_SECONDS), LONGEST_SECONDS)


# ---- Access: how processes of a machine open the store, with user-data's options or with credentials that are handed out

USUAL_METADATA = AgentConfig("", 0, "").metadata_url
GOOGLE_ACCOUNT = "/computeMetadata/v1/instance/service-accounts/default/token"  # "Authenticate workloads", Compute Engine
GOOGLE_SECONDS = 5.0
WAIT_SECONDS = 20.0  # for the first credentials; later the loop asks for them


@dataclass(frozen=True, slots=True)
class BootStore:
    """What this machine reads with its own rights: the store, or a bucket in its cloud if the store lies in another one."""

    url: str
    options: Mapping[str, str] = field(default_factory=dict)
    metadata_url: str = USUAL_METADATA

    @classmethod
    def of(cls, config: AgentConfig) -> BootStore:
        """From the machine's configuration."""
        if config.boot_url:
            return cls(config.boot_url, config.boot_options, config.metadata_url)
        return cls(config.store_url, config.store_options, config.metadata_url)

    def open(self) -> ObstoreStore:
        """With the machine's own rights."""
        return own_store(self.url, self.options, self.metadata_url)


@dataclass(frozen=True, slots=True)
class StoreAccess:
    """Access to the store for one process; `boot` is where its credentials come from, `counted` where it counts its traffic."""

    url: str
    options: Mapping[str, str] = field(default_factory=dict)
    purse: Credentials | None = None
    boot: BootStore | None = None
    counted: str = ""  # a folder; "" = nowhere

    @classmethod
    def of(cls, config: AgentConfig, counted: str = "") -> StoreAccess:
        """From the machine's configuration."""
        if not config.access_secret:
            return cls(config.store_url, config.store_options, counted=counted)
        boot = BootStore.of(config)
        purse = Credentials(Claim(config.job, config.attempt, config.access_secret), boot.open)
        return cls(config.store_url, config.store_options, purse, boot, counted)

    def open(self) -> FileStore:
        """The store with this attempt's rights."""
        opened = open_store(self.url, self.options, self.purse)
        return CountingStore(opened, Counter(Path(self.counted))) if self.counted else opened

    def carry(self) -> dict[str, Any]:
        """JSON data from which another process of this machine makes its own access. Secret."""
        purse = self.purse.carry() if self.purse is not None else None
        boot = asdict(self.boot) if self.boot is not None else None
        return {"url": self.url, "options": dict(self.options), "purse": purse, "boot": boot, "counted": self.counted}

    @classmethod
    def carried(cls, told: Mapping[str, Any]) -> StoreAccess:
        """The reverse of `carry`."""
        kept, boot = told["purse"], BootStore(**told["boot"]) if told["boot"] is not None else None
        url, options, counted = told["url"], told["options"], told["counted"]
        if kept is None or boot is None:
            return cls(url, options, counted=counted)
        first = Handout(**kept["first"]) if kept["first"] is not None else None
        return cls(url, options, Credentials(Claim(**kept["claim"]), boot.open, first), boot, counted)


def own_store(url: str, options: Mapping[str, str], metadata_url: str) -> ObstoreStore:
    """The store with the machine's own rights, as its metadata service tells them."""
    plain = {name: value for name, value in options.items() if not has_credentials({name: value})}
    if urlsplit(url).scheme == "gs":
        return open_store(url, plain, GoogleAccount(metadata_url))
    # Without a key, obstore asks the metadata service (IMDSv2).
    return open_store(url, plain | ({"metadata_endpoint": metadata_url} if metadata_url != USUAL_METADATA else {}))


@dataclass(frozen=True, slots=True)
class GoogleAccount:
    """The service account of this VM of Google, whose tokens the metadata server keeps and renews.

    obstore would ask it by a name of Google's network, and take a user's key that lies in the image before that.
    """

    metadata_url: str

    def __call__(self) -> Any:
        """A `GCSCredential`. Raises RightsUnreachable, NoCredentials."""
        connection = http.client.HTTPConnection(urlsplit(self.metadata_url).netloc, timeout=GOOGLE_SECONDS)
        try:
            with contextlib.closing(connection):
                connection.request("GET", GOOGLE_ACCOUNT, headers={"Metadata-Flavor": "Google"})
                answer = connection.getresponse()
                if answer.status == 404:
                    raise NoCredentials("this VM has no service account")
                return {"token": json.loads(answer.read())["access_token"], "expires_at": _LONG_AGO}
        except (OSError, http.client.HTTPException, ValueError, KeyError, TypeError) as e:
            raise RightsUnreachable(f"the metadata server gives no token: {type(e).__name__}: {e}") from e

    def refused(self) -> None:
        """Does nothing: each request asks for the token."""


def wait_for_first(
    purse: Credentials,
    beat: Callable[[], None],
    seconds: float = WAIT_SECONDS,
    now: Callable[[], float] = clock.monotonic,
    wait: Callable[[float], None] = time.sleep,
) -> bool:
    """Give the controller a moment to hand out the first credentials; False if it took longer, which is no failure."""
    end = now() + seconds
    while not purse.look():
        beat()
        if now() >= end:
            return False
        wait(AGAIN_SECONDS / 2)
    return True


# ---- Vouchers: for secrets that a machine needs and its user-data must not contain
#
# They are fetched once, kept on the machine's own disk, and then removed from the store. Everybody who may describe machines
# in an account may read their user-data, as long as they run. So user-data carries only a voucher: a key of this one attempt,
# for one object in the store, which the controller removes as soon as the agent has reported. From then on the voucher opens
# nothing.

REPORTED = "reported"  # in the agent's folder: its existence keeps the machine from ending itself (the controller's boot.sh)


def redeem(config: AgentConfig, folder: Path) -> None:
    """Fetch what user-data left out, with the machine's own role, and write it below `folder`, durably and only for root.

    The configuration is written last: if that of this attempt is there, everything is, and nothing is fetched. One of another
    attempt comes with a disk that was copied from another machine: it is removed first, with that machine's other files.
    Raises StoreError if the object is not available (yet), BadHandout for one of another machine, OSError.
    """
    if _is_here(config, folder):
        return
    for name in (CONFIG, HOST_KEY, REPORTED):
        (folder / name).unlink(missing_ok=True)
    key = object_keys.voucher_key(config.job, config.attempt)
    data = BootStore.of(config).open().get(key)
    if data is None:
        raise StoreError(f"{key} is not there (yet)")
    kept = unseal_handout(data, bytes.fromhex(config.voucher), config.job, config.attempt).values
    options = json.loads(kept["input_options"])
    whole = replace(config, key=kept["key"], access_secret=kept["access_secret"], input_options=options, voucher="")
    if kept.get(HOST_KEY):
        write_durably(folder / HOST_KEY, kept[HOST_KEY].encode())
    write_durably(folder / CONFIG, json_codec.encode(whole))


def _is_here(config: AgentConfig, folder: Path) -> bool:
    try:
        there = json_codec.decode(AgentConfig, (folder / CONFIG).read_bytes())
    except (FileNotFoundError, ProtocolError):
        return False
    return (there.job, there.attempt) == (config.job, config.attempt)


def write_durably(path: Path, data: bytes) -> None:
    """Write or replace a file that only root reads. Raises OSError."""
    fresh = path.with_name(f"{path.name}.fresh")
    fresh.unlink(missing_ok=True)
    fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(fd, "wb") as f:
        f.write(data)
        f.flush()
        os.fsync(f.fileno())
    fresh.replace(path)
    fsync(path.parent)
