"""`serve` and `doctor`: what an operator does on the controller's host."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from spotsurfer.cli.common import SESSION, Config, examples
from spotsurfer.cli.printing import complain, put, put_json, table, tell
from spotsurfer.model.errors import HostUnfit, SpotsurferError

if TYPE_CHECKING:
    from spotsurfer.config.settings import Settings
    from spotsurfer.controller.wiring import Controller
    from spotsurfer.web.server import Endpoint

LOOPBACK = ("127.", "::1", "localhost")  # prefixes of addresses that only this host reaches


def add(app: typer.Typer) -> None:
    """Register the commands of this file."""
    app.command(epilog=examples("spotsurfer serve", "spotsurfer serve --config /etc/spotsurfer/config.toml"))(serve)
    app.command(epilog=examples("spotsurfer doctor", "spotsurfer doctor --config ~/spotsurfer.toml --json"))(doctor)


def serve(
    config: Config = None, once: Annotated[bool, typer.Option("--once", help="One look at the world, then end.")] = False
) -> None:
    """Run the controller until SIGTERM or Ctrl-C. Jobs go on without it."""
    from spotsurfer_wire.linux.memory import return_memory

    return_memory()  # before there are threads
    import structlog

    from spotsurfer.common import log_setup
    from spotsurfer.controller.wiring import build
    from spotsurfer.web.server import outlive_terminal
    from spotsurfer.web.server import serve as answer

    settings = SESSION.settings(config)
    log_setup.set_up(settings.controller.log_level, settings.controller.log_format)
    outlive_terminal()
    controller = build(settings)
    if once:
        try:
            controller.loop.tick()
        finally:
            controller.stop()
        return
    log = structlog.get_logger(room="serve")
    try:
        endpoints = _endpoints(settings, controller)
        controller.start()
        log.info("serve.started", data_dir=str(settings.controller.data_dir), store=settings.store_url)
        answer(endpoints, controller.stopped, lambda: log.info("serve.listening", socket=str(settings.socket_path)))
        log.info("serve.stopping")
    finally:
        controller.stop()
    log.info("serve.stopped")
    if controller.failure:
        raise controller.failure[0]


def _endpoints(settings: Settings, controller: Controller) -> list[Endpoint]:
    import structlog

    from spotsurfer.dashboard.policies import chosen
    from spotsurfer.web.access import Makers
    from spotsurfer.web.app import load_token, make_app
    from spotsurfer.web.guard import Door, Proxy
    from spotsurfer.web.server import Endpoint, tcp_socket, tls_context, unix_socket

    rules, makers, operators = settings.access, Makers(), frozenset(settings.access.operators)
    here, policies = Door(access=controller.access, operators=operators), chosen(settings)
    own = make_app(controller.service, here, makers=makers, policies=policies)
    found = [Endpoint(own, unix_socket(settings.socket_path, rules.socket_group))]
    listen, tls = settings.controller.listen, tls_context(settings.controller.tls_certificate, settings.controller.tls_key)
    if listen is not None:
        networks = [ipaddress.ip_network(x) for x in rules.proxy_addresses]
        proxy = None if rules.proxy_header is None else Proxy(rules.proxy_header, networks)
        app = make_app(
            controller.service,
            Door(load_token(settings.token_path), controller.access, proxy, operators),
            makers=makers,
            allow_on_end=settings.hooks.allow_remote,
            allow_fetch=settings.secrets.allow_remote,
            policies=policies,
        )
        found.append(Endpoint(app, tcp_socket(listen), tls))
    for place, advice in _open_to_network(listen if tls is None else None, settings.front.address):
        structlog.get_logger(room="serve").warning("serve.open-to-network", listen=place, advice=advice)
    return found


def _open_to_network(listen: str | None, front: str) -> Iterator[tuple[str, str]]:
    """Endpoints that other hosts can reach, each with a note. `listen`: address and port; `front`: an address."""
    from spotsurfer.config.settings import listen_address

    if listen is not None and not listen_address(listen)[0].startswith(LOOPBACK):
        yield listen, "HTTP without TLS: put a TLS proxy or an SSH tunnel in front"
    if not front.startswith(LOOPBACK):
        yield front, "whoever reaches a job's port there can wake the job, and speaks to the job itself"


def doctor(config: Config = None) -> None:
    """Say what this machine can and can't do, and the remedy; exit code 7 if something needed is missing.

    The agent's runtime is built if nothing else is missing: only its CRIU can say whether this kernel will do.
    """
    from spotsurfer.doctor.checks import OF_RUNTIME, examine

    settings = SESSION.settings(config)
    findings = examine(settings)
    if {"runtime"} <= {f.check for f in findings if f.level == "fail"} <= OF_RUNTIME:
        from spotsurfer.agent_runtime import provision

        try:
            provision.ready(settings, tell)
            findings = examine(settings)
        except SpotsurferError as e:
            complain(str(e))
    bad = [f for f in findings if f.level == "fail"]
    put_json({"fit": not bad, "findings": [asdict(f) for f in findings]})
    table(["", "check", "finding"], [[f.level, f.check, f.text + (f" → {f.remedy}" if f.remedy else "")] for f in findings])
    if bad:
        raise HostUnfit(f"{len(bad)} of {len(findings)} checks failed: {', '.join(f.check for f in bad)}.")
    put("This machine is fit.")
