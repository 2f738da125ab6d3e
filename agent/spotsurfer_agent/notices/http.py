"""A small HTTP client for metadata services: no proxy, no redirect, short limits."""

from __future__ import annotations

import http.client
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

from spotsurfer_agent.notices.port import NoticeError

TIMEOUT_SECONDS = 2.0
ANSWER_BYTES_MAX = 64 << 10


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer, whatever its status."""

    status: int
    text: str
    date: str  # the service's own clock, empty where it does not say


def ask(base_url: str, method: str, path: str, headers: Mapping[str, str]) -> Answer:
    """One request on a connection of its own. Raises NoticeError."""
    url = urlsplit(base_url)
    connection = http.client.HTTPConnection(url.hostname or "", url.port or 80, timeout=TIMEOUT_SECONDS)
    try:
        connection.request(method, url.path.rstrip("/") + path, headers=dict(headers))
        response = connection.getresponse()
        text = response.read(ANSWER_BYTES_MAX).decode(errors="replace")
        return Answer(response.status, text, response.getheader("Date") or "")
    except (OSError, http.client.HTTPException, ValueError) as e:
        raise NoticeError(f"the metadata service at {base_url} does not answer: {e}") from e
    finally:
        connection.close()
