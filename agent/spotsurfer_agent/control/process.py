"""One agent process: puts the parts together and runs the loop. The only place that knows which engine there is."""

from __future__ import annotations

import logging
import signal
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

from spotsurfer_wire.chunks.budget import Limits
from spotsurfer_wire.crypto import Keys
from spotsurfer_wire.linux import memory, syscalls
from spotsurfer_wire.messages import AgentConfig

from spotsurfer_agent import __version__
from spotsurfer_agent.control import respawn
from spotsurfer_agent.control.loop import Agent, Surroundings
from spotsurfer_agent.control.metadata_service import Dialect
from spotsurfer_agent.control.notices import Watcher
from spotsurfer_agent.control.state_file import StateFile
from spotsurfer_agent.engines.choice import JobEngine
from spotsurfer_agent.engines.job_host import Origin
from spotsurfer_agent.engines.none import UnfitEngine
from spotsurfer_agent.host import network
from spotsurfer_agent.host.tools import ToolMissing, Tools
from spotsurfer_agent.host.usage import Gpus, Sampler
from spotsurfer_agent.ports.engine import Engine
from spotsurfer_agent.prepare.images.registry import ImageRules
from spotsurfer_agent.prepare.inputs.delivery import JobInputs
from spotsurfer_agent.shim import output
from spotsurfer_agent.shim.client import GROUPS
from spotsurfer_agent.store import traffic
from spotsurfer_agent.store.cache import DiskCache
from spotsurfer_agent.store.credentials import REPORTED, StoreAccess, wait_for_first
from spotsurfer_agent.store.layers import RetryingStore, WriteFence

log = logging.getLogger(__name__)
CACHE, TRAFFIC = "cache", "traffic"  # in the agent's folder: objects fetched ahead, and what was counted


def run(base: Path, config: AgentConfig, dialect: Dialect, beat: Callable[[], None] | None = None) -> bool:
    """Run the agent in this process: True when the attempt is over, False when told to make room for another process.

    `beat` shows that it is alive; None = its respawner told how. Raises WrongKey if the configuration's key is no valid one.
    """
    syscalls.leave_no_core()
    memory.share_heap()
    state = StateFile(base / "agent-state.json", config.job, config.attempt)
    began = state.memory.began
    keys = Keys.of_hex(config.key, config.lineage or config.job, config.encrypt)
    cache = DiskCache(base / CACHE, config.cache_bytes)
    cache.clear()  # what another process left was not made durable
    counted = base / TRAFFIC / f"{config.job}.{config.attempt}"
    way, beat = StoreAccess.of(config, str(counted)), beat or respawn.beater()
    if way.purse is not None and not began:  # a job that runs must be looked after at once
        wait_for_first(way.purse, beat)
    given = Surroundings(
        way.open(),
        lambda gate: _make_engine(base, config, way, gate, keys, began),
        Watcher(dialect),
        state,
        keys,
        cache,
        JobInputs.of(base, config, way.purse),
        Sampler(base / "job" / GROUPS, gpus=Gpus().newest, printed=partial(output.written_bytes, base / "job" / "log")),
        beat=beat,
        reported=(base / REPORTED).touch,
        traffic=lambda: traffic.total(counted),
    )
    agent = Agent(config, given)
    signal.signal(signal.SIGTERM, lambda *_: agent.stop())
    signal.signal(signal.SIGINT, lambda *_: agent.stop())
    signal.signal(signal.SIGUSR1, lambda *_: agent.look_now())
    log.info("agent %s of attempt %s/%d begins", __version__, config.job, config.attempt)
    over = agent.run()
    log.info("the attempt is over: %s" if over else "another agent takes over from state %s", agent.state.name)
    return over


def _make_engine(base: Path, config: AgentConfig, way: StoreAccess, store: WriteFence, keys: Keys, began: bool) -> Engine:
    """The engine; without its tools a stand-in, so that the agent can still report why it is of no use."""
    prefix = Path(sys.executable).parent.parent / "prefix"  # of the runtime that this interpreter belongs to
    try:
        tools = Tools.find(prefix if prefix.is_dir() else None)
        if config.walled:
            network.wall_off(tools)
        origin = Origin(way, config.key, config.lazy, cache=str(base / CACHE))
        memory, threads = config.checkpoint_memory_bytes, config.checkpoint_threads
        limits, patient = Limits.of_settings(memory, threads, config.compression), RetryingStore(store)

        engine = JobEngine(base, config.job, patient, tools, origin, keys)
        engine.limits, engine.memory_bytes = limits, memory
        engine.keeps.most_bytes = config.shared_bytes
        engine.world.images.rules = ImageRules(
            config.image_cache_bytes, tuple(config.insecure_registries), authorities=config.registry_authorities
        )
        return engine
    except (ToolMissing, OSError) as e:
        return UnfitEngine(str(e), began)
