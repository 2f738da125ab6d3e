"""User-data: the program that a fresh machine runs at its first boot, and that ends with a running agent.

It needs very little of the image: a POSIX shell, tar, gzip, sha256sum and one of curl, wget, python3 (curl, if the store is
read with the machine's own rights). It trusts fetched files by their hash alone.

If access to the store is renewed, the program depends on the attempt and the settings, never on the time, because a repeated
order must equal the first. Its only secret then is a voucher (see `spotsurfer_agent.store.credentials`). If access is not
renewed (boxes, which belong to this host), it holds credentials, the key of the job's lineage and the machine's host key,
written for root only.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import obstore
from obstore.exceptions import BaseError
from obstore.store import GCSStore, S3Store, from_url
from spotsurfer_wire import json_codec
from spotsurfer_wire.messages import AgentConfig

from spotsurfer.model.errors import ConfigError
from spotsurfer.ports.provider import MACHINE_BASE, USER_DATA_BYTES_MAX, StoreAccess

FETCH_TRIES = 40  # with growing pauses about fifteen minutes: a network that is down for longer stays down
REPORT_SECONDS = 1800  # a machine ends itself if its agent wrote no report by then
PRESIGNED_SECONDS = 3600
GOOGLE_STORAGE = "https://storage.googleapis.com"
PROGRAM = (Path(__file__).parent / "boot.sh").read_text()


@dataclass(frozen=True, slots=True)
class Source:
    """The source of the runtime. `rights`: those of the machine's own with which it asks, "" = anybody may read it."""

    url: str
    rights: str = ""  # "signed": by its role's keys, for `region` (AWS); "bearer": its service account's token (Google)
    region: str = ""
    metadata_url: str = "http://169.254.169.254"


@dataclass(frozen=True, slots=True)
class Login:
    """The SSH user's key and the machine's host key."""

    user: str
    authorized_key: str  # one line, as in authorized_keys(5); "" = not managed here
    host_key: str  # OpenSSH's text form of an Ed25519 key


@dataclass(frozen=True, slots=True)
class MachineConventions:
    """Conventions that differ between kinds of machines.

    `power_off` is the command that ends the machine; without one the agent signals process 1, as that one expects.
    """

    base: str = MACHINE_BASE
    power_off: str = ""
    report_seconds: int = REPORT_SECONDS  # 0 = a missing report never ends the machine


def user_data(
    config: AgentConfig,
    runtime_sha256: str,
    source: Source,
    login: Login | None = None,
    place: MachineConventions | None = None,
) -> str:
    """The program, as text. Raises ConfigError if it is longer than a cloud accepts."""
    at = place or MachineConventions()
    values = {
        "sha256": runtime_sha256,
        "url": source.url,
        "rights": source.rights,
        "region": source.region,
        "metadata": source.metadata_url,
        "base": at.base,
        "tries": str(FETCH_TRIES),
        "power_off": at.power_off,
        "report_seconds": str(at.report_seconds),
        "redeem": "yes" if config.voucher else "",
        "ssh_user": login.user if login else "",
        "ssh_key": login.authorized_key if login else "",
    }
    parts = {
        "@VALUES@": "\n".join(f"{k}={shlex.quote(v)}" for k, v in values.items()),
        "@CONFIG@": json_codec.encode(config).decode("ascii"),  # one line of ASCII that begins with a brace
        "@HOST_KEY@": login.host_key.strip() if login else "",
        "@UNIT@": unit(at),
    }
    # Each mark is a line of its own, so marks in inserted text have no effect.
    text = "".join(f"{parts.get(line, line)}\n" for line in PROGRAM.splitlines())
    if len(text.encode()) > USER_DATA_BYTES_MAX:
        raise ConfigError(
            f"user-data would take {len(text.encode())} bytes, a cloud takes {USER_DATA_BYTES_MAX}: shorten store options, or "
            "have certificates of registries in the machines' image instead of [images] authorities"
        )
    return text


def unit(place: MachineConventions) -> str:
    """The agent's unit for systemd.

    `KillMode=mixed` kills the leftover processes of a stopped agent, so that two agents never look after one job. The job is
    not affected: its shim lives in a scope of its own (`spotsurfer_agent.host.cgroup`).
    """
    words = ["--respawn", "--config", f"{place.base}/agent.json", "--base", place.base]
    words += ["--power-off", place.power_off] if place.power_off else []
    command = " ".join(_quoted(w) for w in (f"{place.base}/runtime/current/bin/spotsurfer-agent", *words))
    log = f"append:{place.base}/agent.log".replace("%", "%%")
    return f"""[Unit]
Description=spotsurfer agent: looks after the job of this machine
Wants=network-online.target
After=network-online.target
StartLimitIntervalSec=0
[Service]
Type=exec
ExecStart={command}
Restart=on-failure
RestartSec=1
KillMode=mixed
TimeoutStopSec=30
OOMScoreAdjust=-900
Delegate=yes
TasksMax=infinity
UMask=0077
StandardOutput={log}
StandardError={log}
[Install]
WantedBy=multi-user.target"""


def _quoted(word: str) -> str:
    """A word of a unit's command line: systemd.service(5), "Command lines"."""
    text = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$")
    return f'"{text}"'


def source(access: StoreAccess, key: str, metadata_url: str = Source("").metadata_url) -> Source:
    """How a machine with this access fetches the object. Raises ConfigError if it can't."""
    if not access.renewed:
        return Source(presigned_get(access.url, access.options, key, PRESIGNED_SECONDS))
    url, options = (access.url, access.options) if access.boot is None else (access.boot.url, access.boot.machine_options)
    address = plain_address(url, options, key)
    if urlsplit(url).scheme == "gs":
        return Source(address, "bearer", metadata_url=metadata_url)
    return Source(address, "signed", options.get("region", "us-east-1"), metadata_url)


def plain_address(url: str, options: Mapping[str, str], key: str) -> str:
    """The object's address as obstore forms it, for a request with the machine's own rights. Raises ConfigError."""
    parts = urlsplit(url)
    if parts.scheme not in ("s3", "s3a", "gs"):
        raise ConfigError(f"machines fetch with their own rights from s3:// and gs:// only, not from {parts.scheme}://")
    bucket, path = parts.netloc, quote("/".join(x for x in (parts.path.strip("/"), key) if x), safe="/-_.~")
    if parts.scheme == "gs":
        return f"{(options.get('base_url') or GOOGLE_STORAGE).rstrip('/')}/{bucket}/{path}"
    endpoint = (options.get("endpoint") or "").rstrip("/")
    hosted = options.get("virtual_hosted_style_request") == "true"
    if endpoint:
        return f"{endpoint}/{path}" if hosted else f"{endpoint}/{bucket}/{path}"
    region = options.get("region", "us-east-1")
    host = f"s3.{region}.amazonaws.com"  # elsewhere (China) obstore needs an endpoint, too
    # The certificate of the other form does not cover a bucket name with dots.
    return f"https://{host}/{bucket}/{path}" if "." in bucket else f"https://{bucket}.{host}/{path}"


def presigned_get(url: str, options: Mapping[str, str], key: str, seconds: float) -> str:
    """An address from which anybody can read the object for `seconds`: an instance has no client for the store yet.

    `url` and `options` are those of `open_store`, as the instance sees the store.
    Raises ConfigError if the store can't do that.
    """
    plain: Any = dict(options)
    scheme = urlsplit(url).scheme
    if scheme not in ("s3", "gs"):
        raise ConfigError(f"instances can't fetch from a store at {scheme}://: use s3:// or gs://")
    client: Any = {"allow_http": plain.pop("allow_http", "false") == "true"}
    try:
        store = from_url(url, config=plain or None, client_options=client)
        assert isinstance(store, S3Store | GCSStore)
        return str(obstore.sign(store, "GET", key, timedelta(seconds=seconds)))
    except (BaseError, ValueError) as e:
        raise ConfigError(f"no address can be signed for {key}: {e}") from e
