"""What the clouds' listings show, each cloud's as of its last answer: one that can't be listed hides nothing of the others."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from spotsurfer.model.job import InstanceId
from spotsurfer.ports.provider import InstanceState, InstanceView, Provider


@dataclass(slots=True)
class _Listed:
    """Of one provider. `at`: of the last complete listing."""

    views: dict[InstanceId, InstanceView] = field(default_factory=dict)
    complete: bool = False
    at: datetime | None = None


class Listings:
    """One per controller; changed by the tick's thread only."""

    def __init__(self, every: timedelta) -> None:
        """`every`: at least between two listings of a cloud, as long as the last one is complete and nothing changed."""
        self._every = every
        self._by_provider: defaultdict[str, _Listed] = defaultdict(_Listed)
        self._of_token: Mapping[str, list[InstanceView]] = {}

    def due(self, provider: str, now: datetime, sooner: timedelta) -> bool:
        """Whether it is time to list this cloud. `sooner`: at least between two listings, if that is less than usual."""
        known = self._by_provider[provider]
        return not known.complete or known.at is None or now - known.at >= min(self._every, sooner)

    def spoil(self, provider: str) -> None:
        """Something changed there: the listing is not complete any more."""
        self._by_provider[provider].complete = False

    def ask(self, provider: Provider, now: datetime) -> None:
        """List this cloud. Raises ProviderError; then the last listing stands, and is not complete."""
        known = self._by_provider[provider.name]
        known.complete = False
        listing = provider.describe()
        fresh = {v.id: v for v in listing.instances}
        known.views = fresh if listing.complete else {**known.views, **fresh}
        known.complete = listing.complete
        if listing.complete:
            known.at = now
        of_token = defaultdict[str, list[InstanceView]](list)
        for view in self._all():
            of_token[view.token].append(view)
        self._of_token = dict(of_token)  # in one assignment: other threads read it meanwhile

    def _all(self) -> Iterator[InstanceView]:
        for known in self._by_provider.values():
            yield from known.views.values()

    def times(self) -> dict[str, datetime | None]:
        """By provider: when it was last listed as a whole; None = now only in part."""
        return {name: known.at if known.complete else None for name, known in self._by_provider.items()}

    def living(self) -> list[InstanceView]:
        """All machines that have not ended."""
        return [v for v in self._all() if v.state is not InstanceState.GONE]

    def instance_of(self, token: str, known: InstanceId | None) -> InstanceView | None:
        """The machine of a launch token; `known`: its id, if its order was answered.

        A token alone is not enough: a machine that a person orders like ours copies its tags, and so its token.
        """
        some = self._of_token.get(token, [])
        if known is not None:
            return next((v for v in some if v.id == known), None)
        return min(some, key=lambda v: (v.state is InstanceState.GONE, v.launched_at), default=None)
