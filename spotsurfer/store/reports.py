"""Agents' reports: one listing shows all changes; only changed ones are read."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from spotsurfer_agent import protocol
from spotsurfer_agent.protocol import ProtocolError, Report
from spotsurfer_agent.store import ObjectStore, StoreError


@dataclass(frozen=True, slots=True)
class Heard:
    """A report and when, on our clock, its sequence last changed. `notice_at` is when its notice was first read."""

    report: Report
    version: str
    changed_at: datetime
    notice_at: datetime | None = None


class Reports:
    """What the agents last said of which the store still has a report: that of an attempt that is over is removed there.

    Silence is only evidence while *we* can hear: time in which the listing failed is not counted against anybody, or a store
    outage would look like the death of the whole fleet.
    """

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._heard: dict[tuple[str, int], Heard] = {}
        self._listened_at: datetime | None = None
        self._unnoted: set[tuple[str, int]] = set()
        self.unreadable: dict[str, str] = {}  # key -> why

    def listen(self, now: datetime) -> set[tuple[str, int]]:
        """Read what changed; the (job, attempt) of reports that changed since they were `noted`.

        Raises StoreError, silence then stands still, and what was read nevertheless is told the next time.
        """
        try:
            listed = self._store.list(protocol.live_prefix())
            self._read_changed({x.key: x.version for x in listed}, now)
        except StoreError:
            self._deaf(now)
            raise
        self._listened_at = now
        return set(self._unnoted)

    def noted(self, changed: Iterable[tuple[str, int]]) -> None:
        """These were written down as they are now."""
        self._unnoted.difference_update(changed)

    def heard(self, job: str, attempt: int) -> Heard | None:
        """The newest report of an attempt."""
        return self._heard.get((job, attempt))

    def _deaf(self, now: datetime) -> None:
        gap = now - self._listened_at if self._listened_at else timedelta(0)
        self._listened_at = now
        self._heard = {k: replace(h, changed_at=h.changed_at + gap) for k, h in self._heard.items()}

    def _read_changed(self, listed: dict[str, str], now: datetime) -> None:
        keys = {k: protocol.live_key(*k) for k in self._heard}
        self._heard = {k: h for k, h in self._heard.items() if keys[k] in listed or k in self._unnoted}
        known = {keys[k]: h.version for k, h in self._heard.items()}
        for key, version in listed.items():
            if known.get(key) == version:
                continue
            report = self._read(key)
            if report is not None:
                self._take(report, version, now)
                self._unnoted.add((report.job, report.attempt))

    def _read(self, key: str) -> Report | None:
        data = self._store.get(key)
        if data is None:
            return None
        try:
            report = protocol.decode(Report, data)
        except ProtocolError as e:
            self.unreadable[key] = str(e)
            return None
        # A report may only speak for the attempt whose key it was written under.
        return report if protocol.live_key(report.job, report.attempt) == key else None

    def _take(self, report: Report, version: str, now: datetime) -> None:
        before = self._heard.get((report.job, report.attempt))
        news = before is None or report.sequence != before.report.sequence
        same_notice = (
            before is not None
            and report.notice is not None
            and before.report.notice is not None
            and before.report.notice.id == report.notice.id
        )
        self._heard[report.job, report.attempt] = Heard(
            report,
            version,
            now if before is None or news else before.changed_at,
            before.notice_at if before is not None and same_notice else (now if report.notice else None),
        )
