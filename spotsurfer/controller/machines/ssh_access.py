"""SSH to machines, from the controller's side: the keys in user-data, where to log in, and nudges.

A nudge makes an agent look at once instead of at its next poll. Nothing depends on it: threads of its own send it, and a failed
one is ignored.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import structlog
from sqlalchemy import Engine

from spotsurfer.config.settings import SshSection
from spotsurfer.controller.machines.bootstrap import Login
from spotsurfer.model.errors import ConfigError, Conflict, SpotsurferError
from spotsurfer.model.job import HOLDS, OVER, Attempt, AttemptState, InstanceId, JobId
from spotsurfer.ports.provider import InstanceView
from spotsurfer.ports.service import Machine
from spotsurfer.ssh import connection, session
from spotsurfer.state import jobs as rows

log = structlog.get_logger()
NUDGES_AT_ONCE = 8
NUDGE_SECONDS = 5.0


class Logins:
    """The SSH access to machines."""

    def __init__(
        self,
        ssh: SshSection,
        seed_of: Callable[[str, int], bytes],
        engine: Engine,
        instance_of: Callable[[str, InstanceId | None], InstanceView | None],
    ) -> None:
        """`seed_of` an attempt: its machine's host key. Raises ConfigError if the key file can't be used."""
        self._ssh, self._public = ssh, ssh.address == "public"
        self._seed_of, self._engine, self._instance_of = seed_of, engine, instance_of
        self._authorized = _authorized(ssh.key_file) if ssh.user and ssh.key_file else ""
        self._pool = ThreadPoolExecutor(NUDGES_AT_ONCE, "nudge") if ssh.user and ssh.nudge else None
        self._under_way: set[tuple[str, int]] = set()
        self._lock = threading.Lock()

    def of_user_data(self, attempt: Attempt) -> Login | None:
        """The login for this attempt's user-data, the same each time; None if SSH is off."""
        if self._ssh.user is None:
            return None
        seed = self._seed_of(attempt.job, attempt.number)
        text = connection.private_text(seed, f"{attempt.job}.{attempt.number}")
        return Login(self._ssh.user, self._authorized, text)

    def machine(self, job: JobId) -> Machine:
        """Where to log in to the machine that the job is on, else to the newest that comes. Raises NotFound, Conflict."""
        if self._ssh.user is None:
            raise Conflict("nobody logs in to machines here: its operator can set [ssh] user")
        with self._engine.connect() as c:
            one = rows.find_job(c, job)
            there = [a for a in rows.attempts(c, [one.id])[one.id] if a.state not in (*OVER, AttemptState.PLANNED)]
        chosen = next((a for a in there if a.state in HOLDS), there[-1] if there else None)
        if chosen is None:
            raise Conflict(f"job {one.id} has no machine now; `spotsurfer show {one.id}` says why")
        return self._target(chosen)

    def _target(self, a: Attempt) -> Machine:
        seen = self._instance_of(a.token, a.instance)
        address = (seen.public_address if self._public else seen.address) if seen is not None else None
        if address is None:
            kind = "public" if self._public else "private"
            raise Conflict(f"the machine of {a.job}, attempt {a.number}, has no {kind} address (yet); see [ssh] address")
        first = self._first(a)
        key = connection.public_line(self._seed_of(first.job, first.number))
        return Machine(a.number, a.instance or "", address, self._ssh.port, self._ssh.user or "", key)

    def _first(self, a: Attempt) -> Attempt:
        """The attempt for which its machine was bought: by that one's key it is known."""
        if not a.slot:
            return a
        with self._engine.connect() as c:
            return rows.tenants(c, [a.token])[a.token][0]

    def nudge(self, a: Attempt) -> None:
        """Make the agent look now. Returns at once; one nudge a machine at a time."""
        key = (a.job, a.number)
        with self._lock:
            if self._pool is None or key in self._under_way:
                return
            self._under_way.add(key)
        self._pool.submit(self._nudge, a)

    def _nudge(self, a: Attempt) -> None:
        try:
            at = self._target(a)
            client = connection.connect(at, self._ssh.key_file, NUDGE_SECONDS)
            try:
                session.nudge(client, at.user)
            finally:
                client.close()
        except SpotsurferError as e:
            log.info("nudge.failed", job=a.job, attempt=a.number, error=str(e))
        finally:
            with self._lock:
                self._under_way.discard((a.job, a.number))


def _authorized(path: Path) -> str:
    try:
        return connection.authorized_line(path.read_bytes(), str(path))
    except OSError as e:
        raise ConfigError(f"[ssh] key_file {path} can't be read: {e.strerror}") from e
