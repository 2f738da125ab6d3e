"""[notify]: who is told what, by message or webhook."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator, Field

from spotsurfer.common.input_errors import did_you_mean
from spotsurfer.config.section import AbsolutePath, Seconds, Section
from spotsurfer.core.notifications import USUAL, Rules, Topic
from spotsurfer.model.errors import ConfigError
from spotsurfer.model.timeline_events import Kind

KINDS = [str(k) for k in Kind]
WEBHOOK_KINDS = tuple(map(str, (Kind.SUBMITTED, Kind.NOTICE, Kind.MOVED, Kind.STUCK, Kind.ENDED, Kind.ALERT)))


def _topic(value: object) -> object:
    if value not in list(Topic):
        raise ValueError(f"is {value!r}. {did_you_mean(str(value), [str(t) for t in Topic])}")
    return value


def _kind(value: str) -> str:
    if value not in KINDS:
        raise ValueError(f"is {value!r}. {did_you_mean(value, KINDS)}")
    return value


class WebhookTable(Section):
    """[[notify.webhooks]]: an address that gets events as JSON."""

    url: Annotated[str, Field(pattern=r"^https?://[^/?#@\s]+([/?][^\s]*)?$")]
    secret_file: AbsolutePath
    kinds: tuple[Annotated[str, AfterValidator(_kind)], ...] = WEBHOOK_KINDS

    def secret(self) -> str:
        """The text in `secret_file`. Raises ConfigError."""
        return lines_of(self.secret_file, "secret_file of [[notify.webhooks]]")[0]


class NotifySection(Section):
    """[notify]: messages to people and webhooks to programs."""

    urls: tuple[str, ...] = ()
    urls_file: AbsolutePath | None = None
    topics: tuple[Annotated[Topic, BeforeValidator(_topic)], ...] = USUAL
    gather: Seconds = 60.0
    again: Seconds = 1800.0
    reclaims_min: int = Field(default=10, ge=1)
    webhooks: tuple[WebhookTable, ...] = ()

    def addresses(self) -> list[str]:
        """All addresses of apprise; those with passwords stand in `urls_file`, one a line. Raises ConfigError."""
        return [*self.urls, *(lines_of(self.urls_file, "[notify] urls_file") if self.urls_file is not None else [])]

    def as_rules(self) -> Rules:
        """When a topic is told."""
        return Rules(self.topics, self.gather, self.again, self.reclaims_min)


def lines_of(path: Path, key: str) -> list[str]:
    """The lines of an operator's file without comments, at least one. Raises ConfigError."""
    """The lines of an operator's file without comments, at least one. Raises ConfigError."""
    try:
        lines = [line.strip() for line in path.read_text().splitlines()]
    except (OSError, UnicodeDecodeError) as e:
        raise ConfigError(f"{key} {path} can't be read: {getattr(e, 'strerror', None) or 'it is no text'}.") from None
    found = [line for line in lines if line and not line.startswith("#")]
    if not found:
        raise ConfigError(f"{key} {path} is empty.")
    return found
