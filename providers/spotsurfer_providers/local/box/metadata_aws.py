"""The metadata service of a box in AWS's dialect, with version 2 tokens only, and its content."""

from __future__ import annotations

import http.server
import json
import secrets
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any
from urllib.parse import unquote, urlsplit

from spotsurfer_providers.local.box.metadata_server import MetadataServer
from spotsurfer_providers.local.box.network import BOX_ADDRESS
from spotsurfer_providers.local.box.records import BoxRecord

# ---- Service

TTL_SECONDS_MAX = 21600
_TOKENS_MAX = 10_000
_BASE = "/latest/meta-data"


@dataclass
class Metadata:
    """The content of the service. The two notices appear when the supervisor sets them."""

    fixed: Mapping[str, str]  # path below meta-data -> text
    tags: Mapping[str, str]
    user_data: str
    identity: Mapping[str, Any]
    action_at: datetime | None = None  # when the instance is reclaimed
    rebalance_at: datetime | None = None  # when the recommendation came
    tokens: dict[str, float] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def warn(self, at: datetime) -> None:
        """The instance is reclaimed then. A second word never gives more time."""
        self.action_at = min(at, self.action_at or at)

    def advise(self, at: datetime) -> None:
        """The instance should be left."""
        self.rebalance_at = self.rebalance_at or at

    def change(self, entries: Mapping[str, str]) -> None:
        """New texts, by path below meta-data."""
        self.fixed = {**self.fixed, **entries}

    def server(self, listening: Any) -> MetadataServer[Metadata]:
        """Its server on an already listening socket."""
        return MetadataServer(listening, self, MetadataHandler)

    def lookup(self, path: str) -> str | None:
        """The text at a path, or None if there is none (yet)."""
        path = path.rstrip("/")
        if path == "/latest/user-data":
            return self.user_data or None
        if path == "/latest/dynamic/instance-identity/document":
            return json.dumps(self.identity, indent=2)
        if not path.startswith(_BASE):
            return None
        name = path.removeprefix(_BASE).lstrip("/")
        return self._notice(name) or self._tag(name) or self.fixed.get(name) or self._folder(name)

    def _notice(self, name: str) -> str | None:
        if name == "spot/instance-action" and self.action_at:
            return json.dumps({"action": "terminate", "time": _text(self.action_at)})
        if name == "spot/termination-time" and self.action_at:
            return _text(self.action_at)
        if name == "events/recommendations/rebalance" and self.rebalance_at:
            return json.dumps({"noticeTime": _text(self.rebalance_at)})
        return None

    def _tag(self, name: str) -> str | None:
        if name == "tags/instance":
            return "\n".join(self.tags) or None
        head, _, key = name.partition("tags/instance/")
        return self.tags.get(unquote(key)) if not head and key else None

    def _folder(self, name: str) -> str | None:
        """A folder lists its entries."""
        start = name + "/" if name else ""
        below = (k[len(start) :].partition("/") for k in self.fixed if k.startswith(start))
        return "\n".join(sorted({head + slash for head, slash, _ in below})) or None

    def new_token(self, ttl_seconds: int) -> str:
        """A token that lasts `ttl_seconds`."""
        now = time.monotonic()
        with self.lock:
            if len(self.tokens) >= _TOKENS_MAX:
                self.tokens = {t: end for t, end in self.tokens.items() if end > now}
            token = secrets.token_urlsafe(40)
            self.tokens[token] = now + ttl_seconds
        return token

    def knows(self, token: str | None) -> bool:
        """Whether a token is valid."""
        return token is not None and self.tokens.get(token, 0.0) > time.monotonic()


class MetadataHandler(http.server.BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"
    server: MetadataServer[Metadata]  # pyright: ignore[reportIncompatibleVariableOverride]
    timeout = 600
    disable_nagle_algorithm = True
    server_version = "EC2ws"
    sys_version = ""

    def log_message(self, format: str, *args: Any) -> None:
        """Logs nothing: agents ask each second."""

    def do_PUT(self) -> None:
        """A token."""
        if urlsplit(self.path).path.rstrip("/") != "/latest/api/token":
            self._reply(404)
            return
        ttl = self.headers.get("X-aws-ec2-metadata-token-ttl-seconds", "")
        if "X-Forwarded-For" in self.headers:
            self._reply(403)  # through a proxy: a request of somebody else
        elif not (ttl.isascii() and ttl.isdigit() and 1 <= int(ttl) <= TTL_SECONDS_MAX):
            self._reply(400)
        else:
            self._reply(200, self.server.metadata.new_token(int(ttl)), ttl=ttl)

    def do_GET(self) -> None:
        """Anything else."""
        if "X-Forwarded-For" in self.headers:
            self._reply(403)
            return
        if not self.server.metadata.knows(self.headers.get("X-aws-ec2-metadata-token")):
            self._reply(401)
            return
        text = self.server.metadata.lookup(urlsplit(self.path).path)
        self._reply(404 if text is None else 200, text or "")

    def _reply(self, status: int, text: str = "", ttl: str = "") -> None:
        data = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", "text/plain")
        self.send_header("Content-Length", str(len(data)))
        if ttl:
            self.send_header("X-Aws-Ec2-Metadata-Token-Ttl-Seconds", ttl)
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(data)


def _text(at: datetime) -> str:
    return at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


# ---- Content of a new box

ACCOUNT = "000000000000"
IMAGE = "ami-local"


def metadata_of(record: BoxRecord, now: datetime) -> Metadata:
    """Everything but the notices, which come later."""
    host_name = f"{record.id}.local"
    zone_id = f"{record.zone}-id"
    fixed = {
        "ami-id": IMAGE,
        "instance-id": record.id,
        "instance-type": record.instance_type,
        "instance-life-cycle": "spot" if record.market == "spot" else "on-demand",
        "placement/region": record.region,
        "placement/availability-zone": record.zone,
        "placement/availability-zone-id": zone_id,
        "local-ipv4": BOX_ADDRESS,
        "local-hostname": host_name,
        "hostname": host_name,
        "events/maintenance/history": "[]",
        "events/maintenance/scheduled": "[]",
        **record.metadata,
    }
    identity: dict[str, Any] = {
        "accountId": ACCOUNT,
        "architecture": "x86_64",
        "availabilityZone": record.zone,
        "imageId": fixed["ami-id"],
        "instanceId": fixed["instance-id"],
        "instanceType": record.instance_type,
        "pendingTime": now.strftime("%Y-%m-%dT%H:%M:%SZ"),
        "privateIp": BOX_ADDRESS,
        "region": record.region,
        "version": "2017-09-30",
    }
    return Metadata(fixed=fixed, tags=record.tags, user_data=record.user_data, identity=identity)
