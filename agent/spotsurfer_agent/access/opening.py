"""How processes of a machine open the store: with what user-data says, and where credentials are handed out, with these."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from spotsurfer_agent import clock
from spotsurfer_agent.access.handout import Handout
from spotsurfer_agent.access.purse import AGAIN_SECONDS, Claim, Purse
from spotsurfer_agent.protocol import AgentConfig
from spotsurfer_agent.store import SECRET_OPTIONS, ObstoreStore, open_store

USUAL_METADATA = AgentConfig("", 0, "").metadata_url
WAIT_SECONDS = 20.0  # for the first credentials; later the loop asks for them


@dataclass(frozen=True, slots=True)
class Way:
    """The way to the store of one process."""

    url: str
    options: Mapping[str, str] = field(default_factory=dict)
    purse: Purse | None = None
    metadata_url: str = USUAL_METADATA

    @classmethod
    def of(cls, config: AgentConfig) -> Way:
        """As the machine's configuration says."""
        if not config.access_secret:
            return cls(config.store_url, config.store_options)
        claim = Claim(config.job, config.attempt, config.access_secret)
        return cls._renewed(config.store_url, config.store_options, config.metadata_url, claim, None)

    @classmethod
    def _renewed(cls, url: str, options: Mapping[str, str], metadata_url: str, claim: Claim, first: Handout | None) -> Way:
        own = role_options(options, metadata_url)
        return cls(url, options, Purse(claim, lambda: open_store(url, own), first), metadata_url)

    def open(self) -> ObstoreStore:
        """The store with this attempt's rights."""
        return open_store(self.url, self.options, self.purse)

    def carry(self) -> dict[str, Any]:
        """What another process of this machine makes its own way of, as JSON can hold it. Secret."""
        purse = self.purse.carry() if self.purse is not None else None
        return {"url": self.url, "options": dict(self.options), "purse": purse, "metadata_url": self.metadata_url}

    @classmethod
    def carried(cls, told: Mapping[str, Any]) -> Way:
        """The way that `carry` told of."""
        url, options, purse = told["url"], told["options"], told["purse"]
        if purse is None:
            return cls(url, options)
        first = Handout(**purse["first"]) if purse["first"] is not None else None
        return cls._renewed(url, options, told["metadata_url"], Claim(**purse["claim"]), first)


def role_options(options: Mapping[str, str], metadata_url: str) -> dict[str, str]:
    """The same store by the rights of the machine itself: obstore asks the metadata service (IMDSv2) where no key is given."""
    other = {"metadata_endpoint": metadata_url} if metadata_url != USUAL_METADATA else {}
    return {k: v for k, v in options.items() if k.removeprefix("aws_") not in SECRET_OPTIONS} | other


def wait_for_first(
    purse: Purse,
    beat: Callable[[], None],
    seconds: float = WAIT_SECONDS,
    now: Callable[[], float] = clock.monotonic,
    wait: Callable[[float], None] = time.sleep,
) -> bool:
    """Give the controller a moment to hand out the first credentials; False where it took longer, which is no failure."""
    end = now() + seconds
    while not purse.look():
        beat()
        if now() >= end:
            return False
        wait(AGAIN_SECONDS / 2)
    return True
