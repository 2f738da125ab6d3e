"""What is done on a machine over SSH: nudging its agent, following output, starting an agent where there is no user-data.

Each is one plain command of sh. Who is not root there becomes it by sudo without a password.
"""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from spotsurfer.model.errors import MachineUnreachable
from spotsurfer.ports.provider import MACHINE_BASE as BASE
from spotsurfer.ssh import session

if TYPE_CHECKING:
    import paramiko

# The agent reads head and desired at once (`process.run`); its number is written by its respawner.
NUDGE = 'read -r pid <"$base/agent.pid" && kill -USR1 "$pid"'
# Segments are named by the offset of their first byte; the newest one grows, and another may begin.
# Our end of the input is closed when we go: then nobody reads any more.
FOLLOW = """cd "$base/job/log" || exit 1
at=$from
exec 3<&0
{ cat >/dev/null; kill $$ 2>/dev/null; } <&3 &
while :; do
  for f in "$stream"-*; do
    [ -e "$f" ] || continue
    begin=${f#"$stream"-}
    while [ "${begin#0}" != "$begin" ]; do begin=${begin#0}; done
    begin=${begin:-0}
    size=$(stat -c %s "$f")
    if [ "$at" -ge "$begin" ] && [ "$at" -lt $((begin + size)) ]; then
      tail -c "+$((at - begin + 1))" "$f" | head -c $((begin + size - at)) || exit 1
      at=$((begin + size))
    fi
  done
  sleep 0.2
done"""


def as_root(user: str, script: str, base: str = BASE, **values: str) -> str:
    """A command line that runs `script` as root with these variables."""
    set_up = "".join(f"{k}={shlex.quote(v)}\n" for k, v in {"base": base, **values}.items())
    command = f"sh -c {shlex.quote(set_up + script)}"
    return command if user == "root" else f"sudo -n {command}"


def nudge(client: paramiko.SSHClient, user: str, base: str = BASE) -> None:
    """The agent looks now. Raises MachineUnreachable, also where there is no agent."""
    said: list[bytes] = []
    if session.run(client, as_root(user, NUDGE, base), said.append, said.append) != 0:
        raise MachineUnreachable(f"the agent can't be nudged: {b''.join(said).decode(errors='replace').strip()}")


def follow(client: paramiko.SSHClient, user: str, stream: str, start: int, out: session.Write, base: str = BASE) -> int:
    """Hand on what the job prints from that offset, as it prints it, until the connection ends; the command's exit code."""
    values = {"from": str(start), "stream": stream}
    return session.run(client, as_root(user, FOLLOW, base, **values), out, lambda _: None, feed=None)


def install(client: paramiko.SSHClient, user: str, user_data: str) -> None:
    """Start an agent on a machine that takes no user-data: the same program, over the connection's standard input.

    Raises MachineUnreachable with what it said.
    """
    said: list[bytes] = []
    take = 'f=$(mktemp) && cat >"$f" && sh "$f"; code=$?; rm -f "$f"; exit $code'
    if session.run(client, as_root(user, take), said.append, said.append, user_data.encode()) != 0:
        text = b"".join(said).decode(errors="replace").strip()
        raise MachineUnreachable(f"the agent can't be started there: {text[-500:]}")
