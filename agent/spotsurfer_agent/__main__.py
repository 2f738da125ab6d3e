"""`python -m spotsurfer_agent`: the agent of one attempt, its respawner, and the switch to another version."""

from __future__ import annotations

import argparse
import json
import logging
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from spotsurfer_wire import clock, json_codec
from spotsurfer_wire.json_codec import ProtocolError
from spotsurfer_wire.messages import AgentConfig

from spotsurfer_agent import __version__
from spotsurfer_agent.control import respawn
from spotsurfer_agent.host import shim_protocol
from spotsurfer_agent.slots import keeper

log = logging.getLogger("spotsurfer_agent")

POWER_OFF = {"systemd": "systemctl poweroff", "init": "poweroff", "busybox": "poweroff"}  # by the name of process 1


class JsonLines(logging.Formatter):
    """One JSON object per line, which the log collectors of every cloud can read."""

    def format(self, record: logging.LogRecord) -> str:
        """The record as JSON."""
        line = {"at": clock.utc_text(), "level": record.levelname.lower(), "logger": record.name, "event": record.getMessage()}
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the program; returns its exit code: 0 the attempt is over, 3 replaced on request, 78 wrong configuration."""
    options = _parser().parse_args(argv)
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines())
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
    if options.switch is not None:
        return _switch(options.base, options.switch)
    try:
        waits = options.slot is not None and not options.config.exists()
        config = json_codec.decode(AgentConfig, (options.base / keeper.MACHINE if waits else options.config).read_bytes())
    except (OSError, ProtocolError) as e:
        log.error("the configuration %s can't be used: %s", options.config, e)
        return respawn.UNFIT
    if options.redeem:
        return _redeem(options.base, config)
    if options.respawn:
        return _keep(options, config) if config.machine and options.slot is None else _respawn(options, config)
    return _run(options, config, waits=waits)


def _run(options: argparse.Namespace, config: AgentConfig, *, waits: bool) -> int:
    """The agent itself. `waits`: its order is yet to come."""
    # Imported here: the respawner lives as long as the machine and needs none of these modules, which take 40 MB.
    from spotsurfer_wire import crypto

    from spotsurfer_agent.control import process
    from spotsurfer_agent.control.notices import UnknownDialect, make_dialect
    from spotsurfer_agent.slots import orders

    beat = respawn.beater()
    if waits:
        order = orders.wait_for(config, options.slot, options.config, beat)
        if order is None:
            return respawn.OVER
        config = order
    try:
        over = process.run(options.base, config, make_dialect(config.metadata_dialect, config.metadata_url), beat)
    except (crypto.WrongKey, UnknownDialect) as e:
        log.error("the configuration %s can't be used: %s", options.config, e)
        return respawn.UNFIT
    if not over:
        return respawn.REPLACE
    _power_off(options.power_off)
    return respawn.OVER


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="spotsurfer-agent", description=__doc__)
    parser.add_argument("--version", action="version", version=f"spotsurfer-agent {__version__}")
    parser.add_argument("--config", type=Path, default=Path("agent.json"), help="what user-data wrote")
    parser.add_argument("--base", type=Path, default=Path("/var/lib/spotsurfer"), help="the agent's folder on this machine")
    parser.add_argument("--power-off", help="command that ends this machine (default: as its process 1 wants it)")
    parser.add_argument("--respawn", action="store_true", help="keep an agent of the current runtime running")
    parser.add_argument("--slot", type=int, help="number of this slot of the machine; it gets its configuration by an order")
    parser.add_argument("--redeem", action="store_true", help="fetch what user-data left out of the configuration")
    parser.add_argument(
        "--switch", type=Path, metavar="RUNTIME", help="go over to the runtime unpacked there, under a running job"
    )
    return parser


def _respawn(options: argparse.Namespace, config: AgentConfig) -> int:
    program = options.base / "runtime" / "current" / "bin" / "spotsurfer-agent"
    command = [str(program), "--config", str(options.config), "--base", str(options.base)]
    command += ["--power-off", options.power_off] if options.power_off is not None else []
    command += ["--slot", str(options.slot)] if options.slot is not None else []
    plan = respawn.Plan(
        command,
        stall_seconds=config.lease_seconds / 2,
        lease_seconds=config.lease_seconds,
        power_off=lambda: _power_off(options.power_off),
        pid_file=options.base / "agent.pid",
        job=options.base / "job" / shim_protocol.STARTED,
    )
    return _run_until_told(respawn.Respawner(plan))


def _keep(options: argparse.Namespace, config: AgentConfig) -> int:
    """Keep the machine for one job after the other. In a slot, what ends the machine ends the slot."""
    program = options.base / "runtime" / "current" / "bin" / "spotsurfer-agent"
    command = [str(program), "--respawn", "--config", str(options.config), "--base", str(options.base), "--slot"]
    ways = keeper.MachineWays(lambda: _power_off(options.power_off), _enter_slot_network)
    return _run_until_told(keeper.Keeper(options.base, config, command, ways))


def _enter_slot_network(slot: int) -> None:
    from spotsurfer_agent.slots import network

    network.enter(slot)


def _run_until_told(one: respawn.Respawner | keeper.Keeper) -> int:
    signal.signal(signal.SIGTERM, lambda *_: one.leave())
    signal.signal(signal.SIGINT, lambda *_: one.leave())
    return one.run()


def _redeem(base: Path, config: AgentConfig) -> int:
    from spotsurfer_wire import sealed_objects
    from spotsurfer_wire.store.port import StoreError

    from spotsurfer_agent.store import credentials

    try:
        credentials.redeem(config, base)
    except (StoreError, sealed_objects.BadHandout, OSError) as e:
        log.error("what user-data left out can't be had: %s", e)
        return 1
    return 0


def _switch(base: Path, runtime: Path) -> int:
    try:
        told = respawn.switch(base, runtime)
    except OSError as e:
        log.error("%s", e)
        return 1
    log.info("the current runtime is %s; agent told to go: %s", runtime, told or "none ran")
    return 0


def _power_off(command: str | None) -> None:
    """End the machine: by the given command, else by telling process 1 in the way that suits it."""
    try:
        if command is None:
            first = Path("/proc/1/comm").read_text().strip()
            command = POWER_OFF.get(first)
        if command is None:
            os.kill(1, signal.SIGTERM)  # a container or a box: its first process ends, and with it everything
        else:
            subprocess.run(shlex.split(command), check=True, timeout=60)
    except (OSError, ValueError, subprocess.SubprocessError) as e:
        log.error("the machine can't be ended: %s", e)


if __name__ == "__main__":
    sys.exit(main())
