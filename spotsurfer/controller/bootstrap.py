"""User-data: the program that a fresh machine runs at its first boot, and that ends with a running agent.

It expects as little as can be of the image: a POSIX shell, tar, gzip, sha256sum and one of curl, wget, python3. What it fetches
is trusted by its hash alone. It holds no secret but the store access that the instance needs anyway, written for
root only.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit

import obstore
from obstore.exceptions import BaseError
from obstore.store import GCSStore, S3Store, from_url
from spotsurfer_agent import protocol
from spotsurfer_agent.protocol import AgentConfig

from spotsurfer.model.errors import ConfigError

USER_DATA_BYTES_MAX = 16 << 10  # of AWS; others allow more
BASE = "/var/lib/spotsurfer"
FETCH_TRIES = 40  # with growing pauses about fifteen minutes: a network that is not up by then will not be


def user_data(
    config: AgentConfig, runtime_sha256: str, runtime_url: str, base: str = BASE, power_off: str | None = None
) -> str:
    """The program, as text. `runtime_url` is fetched without credentials.

    `power_off` is the command that ends the machine; without one the agent tells process 1, in the way that suits it.
    Raises ConfigError where it would be longer than a cloud takes.
    """
    values = {
        "sha256": runtime_sha256,
        "url": runtime_url,
        "base": base,
        "tries": str(FETCH_TRIES),
        "power_off": power_off or "",
    }
    text = PROGRAM.replace("@VALUES@", "\n".join(f"{k}={shlex.quote(v)}" for k, v in values.items()))
    text = text.replace("@CONFIG@", protocol.encode(config).decode("ascii"))  # one line of ASCII that begins with a brace
    if len(text.encode()) > USER_DATA_BYTES_MAX:
        raise ConfigError(
            f"user-data would take {len(text.encode())} bytes, a cloud takes {USER_DATA_BYTES_MAX}: shorten store options"
        )
    return text


def presigned_get(url: str, options: Mapping[str, str], key: str, seconds: float) -> str:
    """An address from which anybody can read the object for so long: an instance has no client for the store yet.

    `url` and `options` are those of `open_store`, as the instance sees the store.
    Raises ConfigError where the store can't do that.
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


# What is between @ signs is put in above; everything else is plain sh.
PROGRAM = """#!/bin/sh
# Fetches the spotsurfer agent, checks it, starts it.
set -u
umask 077
@VALUES@

say() { echo "spotsurfer: $*" >&2; }

end() {
  say "$*: the machine is ended"
  if [ -n "$power_off" ]; then sh -c "$power_off"; exit 1; fi
  read -r first </proc/1/comm || first=
  case $first in
    systemd) systemctl poweroff ;;
    init | busybox) poweroff ;;
    *) kill -TERM 1 ;;
  esac
  exit 1
}

fetch() {
  if command -v curl >/dev/null 2>&1; then
    curl -fsS --connect-timeout 10 --max-time 600 -o "$1" "$url"
  elif command -v wget >/dev/null 2>&1; then
    wget -q -T 60 -t 1 -O "$1" "$url"
  elif command -v python3 >/dev/null 2>&1; then
    python3 -c 'import shutil, sys, urllib.request as u
with u.urlopen(sys.argv[1], timeout=60) as r, open(sys.argv[2], "wb") as f: shutil.copyfileobj(r, f)' "$url" "$1"
  else
    end "none of curl, wget, python3 is there"
  fi
}

matches() {
  set -- $(sha256sum "$1" 2>/dev/null) none
  [ "$1" = "$sha256" ]
}

mkdir -p "$base/runtime" || end "$base can't be made"
chmod 755 "$base" "$base/runtime"
runtime=$base/runtime/$sha256
if [ ! -x "$runtime/bin/spotsurfer-agent" ]; then
  tarball=$base/runtime/fetched.tar.gz
  n=0
  until fetch "$tarball" && matches "$tarball"; do
    n=$((n + 1))
    [ "$n" -lt "$tries" ] || end "the runtime $sha256 can't be fetched"
    say "try $n failed, again soon"
    if [ "$n" -lt 20 ]; then sleep "$n"; else sleep 30; fi
  done
  rm -rf "$runtime.new"
  mkdir "$runtime.new" || end "$runtime.new can't be made"
  (umask 022 && tar -xzf "$tarball" -C "$runtime.new" --no-same-owner) || end "the runtime can't be unpacked"
  chmod 755 "$runtime.new"
  mv "$runtime.new" "$runtime" || end "$runtime can't be made"
  rm -f "$tarball"
fi
rm -f "$base/runtime/current"
ln -s "$runtime" "$base/runtime/current" || end "$base/runtime/current can't be made"

cat >"$base/agent.json.new" <<'END_OF_CONFIGURATION' || end "the configuration can't be written"
@CONFIG@
END_OF_CONFIGURATION
mv "$base/agent.json.new" "$base/agent.json" || end "the configuration can't be written"

set -- --respawn --config "$base/agent.json" --base "$base"
[ -z "$power_off" ] || set -- "$@" --power-off "$power_off"
(
  trap '' HUP
  exec "$base/runtime/current/bin/spotsurfer-agent" "$@"
) </dev/null >>"$base/agent.log" 2>&1 &
say "the agent is started, its log is $base/agent.log"
"""
