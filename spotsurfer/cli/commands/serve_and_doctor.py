"""`serve`, `reload` and `doctor`: what an operator does on the controller's host."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from spotsurfer.cli.common import SESSION, Config, examples
from spotsurfer.cli.printing import complain, put, put_json, table, tell
from spotsurfer.model.errors import HostUnfit, SpotsurferError

if TYPE_CHECKING:
    from spotsurfer.config.settings import AccessSection, Settings
    from spotsurfer.controller.wiring import Controller
    from spotsurfer.doctor.checks import Finding
    from spotsurfer.web.guard import Proxy
    from spotsurfer.web.oidc import Oidc
    from spotsurfer.web.server import Endpoint

LOOPBACK = ("127.", "::1", "localhost")  # prefixes of addresses that only this host reaches


def add(app: typer.Typer) -> None:
    """Register the commands of this file."""
    app.command(epilog=examples("spotsurfer serve", "spotsurfer serve --config /etc/spotsurfer/config.toml"))(serve)
    app.command(epilog=examples("spotsurfer reload", "systemctl reload spotsurfer"))(reload)
    app.command(
        epilog=examples(
            "spotsurfer doctor", "spotsurfer doctor --config ~/spotsurfer.toml --json", "spotsurfer doctor --notify"
        )
    )(doctor)


def serve(
    config: Config = None, once: Annotated[bool, typer.Option("--once", help="One look at the world, then end.")] = False
) -> None:
    """Run the controller until SIGTERM or Ctrl-C. Jobs go on without it. SIGHUP does what `reload` does."""
    from spotsurfer_wire.linux.memory import return_memory

    return_memory()  # before there are threads
    import structlog

    from spotsurfer.common import log_setup
    from spotsurfer.controller.wiring import build
    from spotsurfer.web.server import on_hangup
    from spotsurfer.web.server import serve as answer

    settings = SESSION.settings(config)
    log_setup.set_up(settings.controller.log_level, settings.controller.log_format)
    on_hangup(lambda: None)  # until it can reload
    controller = build(settings)
    controller.reloader.load = lambda: SESSION.settings(config)
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
        on_hangup(controller.reloader.reload)
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
    from spotsurfer.web.guard import Door
    from spotsurfer.web.server import Endpoint, tcp_socket, tls_context, unix_socket

    rules, makers, operators = settings.access, Makers(), frozenset(settings.access.operators)
    here, policies = Door(access=controller.access, operators=operators), chosen(settings)
    own = make_app(controller.service, here, makers=makers, policies=policies)
    found = [Endpoint(own, unix_socket(settings.socket_path, rules.socket_group))]
    listen, tls = settings.controller.listen, tls_context(settings.controller.tls_certificate, settings.controller.tls_key)
    if listen is not None:
        app = make_app(
            controller.service,
            Door(load_token(settings.token_path), controller.access, _proxy(rules), operators, _oidc(rules)),
            makers=makers,
            allow_on_end=settings.hooks.allow_remote,
            allow_fetch=settings.secrets.allow_remote,
            policies=policies,
        )
        found.append(Endpoint(app, tcp_socket(listen), tls))

    _reload(controller, found)
    for place, advice in _open_to_network(listen if tls is None else None, settings.front.address):
        structlog.get_logger(room="serve").warning("serve.open-to-network", listen=place, advice=advice)
    return found


def _proxy(rules: AccessSection) -> Proxy | None:
    from spotsurfer.web.guard import Proxy

    networks = [ipaddress.ip_network(x) for x in rules.proxy_addresses]
    return None if rules.proxy_header is None else Proxy(rules.proxy_header, networks)


def _oidc(rules: AccessSection) -> Oidc | None:
    from spotsurfer.ports.clock import SystemClock
    from spotsurfer.web.oidc import Oidc

    return None if rules.oidc is None else Oidc(rules.oidc.as_rules(), SystemClock().now)


def _reload(controller: Controller, endpoints: Sequence[Endpoint]) -> None:
    """What else may change while the controller runs: who is let in, what they may bring along, and what is logged."""
    from spotsurfer.common import log_setup

    states = [e.app.state for e in endpoints]
    over_tcp = [state for state in states if state.door.token is not None]

    def doors(new: Settings) -> Callable[[], None]:
        proxy, operators, oidc = _proxy(new.access), frozenset(new.access.operators), _oidc(new.access)

        def begin() -> None:
            for state in states:
                state.door.operators = operators
            for state in over_tcp:
                state.door.proxy, state.door.oidc = proxy, oidc

        return begin

    def remote(new: Settings) -> Callable[[], None]:
        def begin() -> None:
            for state in over_tcp:
                state.allow_on_end, state.allow_fetch = new.hooks.allow_remote, new.secrets.allow_remote

        return begin

    def level(new: Settings) -> Callable[[], None]:
        return lambda: log_setup.set_up(new.controller.log_level, new.controller.log_format)

    controller.reloader.on({f"access.{key}" for key in ("operators", "proxy_header", "proxy_addresses", "oidc")}, doors)
    controller.reloader.on({"hooks.allow_remote", "secrets.allow_remote"}, remote)
    controller.reloader.on({"controller.log_level", "controller.log_format"}, level)


def _open_to_network(listen: str | None, front: str) -> Iterator[tuple[str, str]]:
    """Endpoints that other hosts can reach, each with a note. `listen`: address and port; `front`: an address."""
    from spotsurfer.config.settings import listen_address

    if listen is not None and not listen_address(listen)[0].startswith(LOOPBACK):
        yield listen, "HTTP without TLS: put a TLS proxy or an SSH tunnel in front"
    if not front.startswith(LOOPBACK):
        yield front, "whoever reaches a job's port there can wake the job, and speaks to the job itself"


def reload() -> None:
    """Let the controller read its configuration again: what may change while it runs counts at once. The rest is named.

    It reads the file that it was started with. A wrong one changes nothing, and the line is named.
    """
    answer = SESSION.client().post("/v1/reload")
    put_json(answer)
    put(f"Changed: {', '.join(answer['changed'])}." if answer["changed"] else "Nothing changed.")
    if answer["restart"]:
        put(f"Changes with the next start of the controller: {', '.join(answer['restart'])}.")


def doctor(
    config: Config = None,
    notify: Annotated[bool, typer.Option("--notify", help="Send a test message to the addresses of [notify], too.")] = False,
) -> None:
    """Say what this machine can and can't do, and the remedy; exit code 7 if something needed is missing.

    The agent's runtime is built if nothing else is missing: only its CRIU can say whether this kernel will do.
    """
    from spotsurfer.doctor.checks import OF_RUNTIME, examine, with_page

    settings = SESSION.settings(config)
    findings = [*examine(settings), *(map(with_page, _told(settings)) if notify else ())]
    if {"runtime"} <= {f.check for f in findings if f.level == "fail"} <= OF_RUNTIME:
        from spotsurfer.agent_runtime import provision

        try:
            provision.ready(settings, tell)
            findings = [*examine(settings), *(f for f in findings if f.check == "notify")]
        except SpotsurferError as e:
            complain(str(e))
    bad = [f for f in findings if f.level == "fail"]
    put_json({"fit": not bad, "findings": [asdict(f) for f in findings]})
    table(["", "check", "finding"], [[f.level, f.check, _told_of(f)] for f in findings])
    if bad:
        raise HostUnfit(f"{len(bad)} of {len(findings)} checks failed: {', '.join(f.check for f in bad)}.")
    put("This machine is fit.")


def _told_of(found: Finding) -> str:
    return f"{found.text}{f' → {found.remedy}' if found.remedy else ''}{f' ({found.page})' if found.page else ''}"


def _told(settings: Settings) -> Iterator[Finding]:
    """Whether a test message reached the addresses of [notify]."""
    from spotsurfer.controller.notifications.messages import apprise_sender
    from spotsurfer.core.notifications import Message
    from spotsurfer.doctor.checks import Finding

    addresses = settings.notify.addresses()
    if not addresses:
        yield Finding("warn", "[notify] names no addresses", "write some there", "notify")
    elif apprise_sender(addresses)(Message("spotsurfer: a test", "Whoever reads this will hear of jobs in trouble.")):
        yield Finding("ok", f"[notify] sent a message to {len(addresses)} of {len(addresses)} addresses", check="notify")
    else:
        yield Finding("fail", "[notify] could not send to all addresses", "look at the lines above", "notify")
