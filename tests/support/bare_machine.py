"""What user-data fetches and starts in tests: a runtime of three lines, which notes how it was started."""

from __future__ import annotations

import io
import tarfile
import time
from pathlib import Path

AGENT = b"""#!/bin/sh
if [ "$1" = --redeem ]; then
  [ "$(cat "$3")" != "$(cat "$5/agent.json" 2>/dev/null)" ] || exit 0
  echo "redeemed" >"$5/host_key"
  exec cat "$3" >"$5/agent.json"
fi
{
  for a in "$@"; do printf '%s\\n' "$a"; done
  while read -r k v; do [ "$k" != SigIgn: ] || echo "ignores $v"; done </proc/$$/status
} >"$0.new"
mv "$0.new" "$0.args"
"""


def runtime_tarball() -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as tar:
        info = tarfile.TarInfo("bin/spotsurfer-agent")
        info.size, info.mode = len(AGENT), 0o755
        tar.addfile(info, io.BytesIO(AGENT))
    return out.getvalue()


def started_with(base: Path, sha: str) -> list[str]:
    args = base / "runtime" / "current" / "bin" / "spotsurfer-agent.args"
    end = time.monotonic() + 10
    while not args.exists():
        assert time.monotonic() < end, (base / "agent.log").read_text()
        time.sleep(0.02)
    assert (base / "runtime" / "current").resolve() == base / "runtime" / sha
    return args.read_text().splitlines()
