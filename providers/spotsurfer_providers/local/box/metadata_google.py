"""The metadata service of a box in Google's dialect: values below `instance/`, and waiting for changes.

The provider `local` has no such boxes. A cloud that is made of boxes may have them, as the tests' Compute Engine has.

Sources: "Access the metadata server" and "Predefined metadata keys" of Compute Engine's documentation.
"""

from __future__ import annotations

import http.server
import json
import re
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from urllib.parse import parse_qs, urlsplit

from spotsurfer_wire.google_vm import NOTICE_ATTRIBUTE

from spotsurfer.model.market import Market
from spotsurfer_providers.local.box.metadata_server import MetadataServer
from spotsurfer_providers.local.box.records import BoxRecord

# ---- Service

ROOT = "/computeMetadata/v1/instance"
FLAVOR = "Metadata-Flavor"


@dataclass
class Metadata:
    """The content of the service."""

    values: dict[str, Any]  # all that `?recursive=true` tells, in its names
    texts: dict[str, str] = field(default_factory=dict)  # what only its own path tells, as tokens: path -> text
    action_at: datetime | None = None  # when the VM is taken
    version: int = 1
    news: threading.Condition = field(default_factory=threading.Condition)

    def __post_init__(self) -> None:
        self.values = {"preempted": "FALSE", "maintenanceEvent": "NONE", **self.values}

    def warn(self, at: datetime) -> None:
        """The VM is taken then. A second word never gives more time. Google tells no time."""
        self.action_at = min(at, self.action_at or at)
        self.tell({"preempted": "TRUE"})

    def advise(self, at: datetime) -> None:
        """Nothing: Google gives no such advice."""

    def change(self, entries: Mapping[str, str]) -> None:
        """New texts, by path."""
        self.texts = {**self.texts, **entries}

    def tell(self, values: Mapping[str, Any]) -> None:
        """New values; whoever waits is answered."""
        with self.news:
            self.values.update(values)
            self.version += 1
            self.news.notify_all()

    def wait(self, etag: str | None, seconds: float) -> None:
        """Until there is something else than what has this tag."""
        with self.news:
            self.news.wait_for(lambda: str(self.version) != etag, seconds)

    def lookup(self, name: str) -> str | None:
        """The text at a path below `instance/`, None: there is none."""
        if name in self.texts:
            return self.texts[name]
        found: Any = self.values
        for part in name.split("/"):
            found = found.get(_camel(part), found.get(part)) if isinstance(found, dict) else None
        return None if found is None or isinstance(found, dict) else str(found)

    def server(self, listening: Any) -> MetadataServer[Metadata]:
        """Its server on an already listening socket."""
        return MetadataServer(listening, self, MetadataHandler)


def _camel(part: str) -> str:
    """`maintenance-event` is `maintenanceEvent` among the values."""
    return re.sub(r"-(.)", lambda m: m[1].upper(), part)


class MetadataHandler(http.server.BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"
    server: MetadataServer[Metadata]  # pyright: ignore[reportIncompatibleVariableOverride]
    timeout = 600
    disable_nagle_algorithm = True
    server_version = "Metadata Server for VM"
    sys_version = ""

    def log_message(self, format: str, *args: Any) -> None:
        """Logs nothing: agents wait here all the time."""

    def do_GET(self) -> None:
        """A value, or all of them; maybe when there is something new."""
        url, metadata = urlsplit(self.path), self.server.metadata
        query = {k: v[0] for k, v in parse_qs(url.query).items()}
        if self.headers.get(FLAVOR) != "Google" or "X-Forwarded-For" in self.headers:
            self._reply(403, "")
            return
        if query.get("wait_for_change") == "true":
            metadata.wait(query.get("last_etag"), float(query.get("timeout_sec", 3600)))
        name = url.path.removeprefix(ROOT).strip("/")
        if not url.path.startswith(ROOT):
            self._reply(404, "")
        elif name:
            text = metadata.lookup(name)
            self._reply(404 if text is None else 200, text or "", "application/text")
        else:
            with metadata.news:  # what is told and its tag belong together
                told, tag = json.dumps(metadata.values), metadata.version
            self._reply(200, told, "application/json", tag)

    def _reply(self, status: int, text: str, kind: str = "text/html", tag: int = 0) -> None:
        data = text.encode()
        self.send_response(status)
        self.send_header(FLAVOR, "Google")
        self.send_header("Content-Type", kind)
        self.send_header("ETag", str(tag or self.server.metadata.version))
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


# ---- Content of a new box


def metadata_of(record: BoxRecord, now: datetime) -> Metadata:
    """Everything but the notice, which comes later. The record's additions without a slash in their path replace values."""
    del now
    spot = record.market == Market.SPOT
    attributes = {"startup-script": record.user_data}
    if spot:
        attributes[NOTICE_ATTRIBUTE] = f"{record.notice_seconds:g}"
    values = {
        "name": record.id,
        "hostname": f"{record.id}.local",
        "zone": f"projects/0/zones/{record.zone}",
        "machineType": f"projects/0/machineTypes/{record.instance_type}",
        "scheduling": {"preemptible": str(spot).upper(), "automaticRestart": "FALSE", "onHostMaintenance": "TERMINATE"},
        "tags": [],
        "attributes": attributes,
        **{name: text for name, text in record.metadata.items() if "/" not in name},
    }
    return Metadata(values, {path: text for path, text in record.metadata.items() if "/" in path})
