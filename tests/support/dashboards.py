"""The dashboard of a made-up fleet on a real socket, and people who log in to it."""

from __future__ import annotations

import contextlib
import re
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
from fastapi import FastAPI
from playwright.sync_api import Browser, BrowserContext, Page, sync_playwright
from support import levels
from support.made_up_fleet import made_up

from spotsurfer.config.settings import Settings
from spotsurfer.controller.wiring import Controller
from spotsurfer.dashboard.policies import chosen
from spotsurfer.dashboard.sessions import COOKIE
from spotsurfer.ingress.listener import listening
from spotsurfer.model.access import Role
from spotsurfer.web.app import make_app
from spotsurfer.web.guard import Door
from spotsurfer.web.server import Endpoint, serve

FILE_TOKEN = "a-token-of-some-length"
FORM_KEY = re.compile(r'name="form_key" value="([0-9a-f]+)"')
CHROMIUM = "/usr/bin/chromium"


@dataclass
class Dashboard:
    """Answers on `url` from `start` to `stop`, always on the same port."""

    controller: Controller
    app: FastAPI
    port: int = 0
    cookies: dict[tuple[str, Role], str] = field(default_factory=dict)
    _stop: threading.Event | None = None
    _thread: threading.Thread | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        socket = listening("127.0.0.1", self.port)
        self.port, self.app.state.stopping = socket.getsockname()[1], False
        self._stop, ready = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=serve, args=([Endpoint(self.app, socket)], self._stop, ready.set))
        self._thread.start()
        assert ready.wait(10)

    def stop(self) -> None:
        assert self._stop is not None and self._thread is not None
        self._stop.set()
        self._thread.join(15)
        assert not self._thread.is_alive()

    def token(self, name: str, role: Role) -> str:
        return self.controller.access.make_token(name, role, None)[1]

    def cookie(self, name: str, role: Role) -> str:
        """The name of a session of this person."""
        if (name, role) not in self.cookies:
            answer = httpx.post(f"{self.url}/login", data={"token": self.token(name, role)})
            assert answer.status_code == 303, answer.text
            self.cookies[name, role] = answer.cookies[COOKIE]
        return self.cookies[name, role]

    def client(self, name: str, role: Role) -> httpx.Client:
        """A browser's requests without a browser."""
        headers = {"Cookie": f"{COOKIE}={self.cookie(name, role)}", "Accept": "text/html"}
        return httpx.Client(base_url=self.url, headers=headers, timeout=30)

    def context(self, browser: Browser, name: str = "root", role: Role = Role.OPERATOR, **options: Any) -> BrowserContext:
        """A logged-in browser."""
        context = browser.new_context(**options)
        context.set_default_timeout(20_000)
        cookie = self.cookie(name, role)
        context.add_cookies([{"name": COOKIE, "value": cookie, "url": self.url, "httpOnly": True, "sameSite": "Strict"}])
        return context


@contextlib.contextmanager
def dashboard(folder: Path, count: int) -> Iterator[Dashboard]:
    """A controller with so many made-up jobs."""
    levels.only_for_real_tests("a server")
    with made_up(folder, count) as controller:
        app = make_app(controller.service, Door(FILE_TOKEN, controller.access), policies=chosen(Settings()))
        made = Dashboard(controller, app)
        made.start()
        try:
            yield made
        finally:
            made.stop()


@contextlib.contextmanager
def chromium() -> Iterator[Browser]:
    """Debian's browser."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu", "--disable-extensions"]
        )
        try:
            yield browser
        finally:
            browser.close()


def form_key(client: httpx.Client, path: str) -> str:
    """What the form on this page brings along."""
    found = FORM_KEY.search(client.get(path).text)
    assert found is not None, path
    return found[1]


def until(page: Page, expression: str, seconds: float = 20.0) -> None:
    """Wait until the expression is true there. The pages' own rules forbid a waiting script."""
    end = time.monotonic() + seconds
    while not page.evaluate(expression):
        assert time.monotonic() < end, expression
        page.wait_for_timeout(50)


def heard(page: Page) -> list[str]:
    """What the console says from now on, and errors of scripts."""
    said: list[str] = []
    page.on("console", lambda m: said.append(f"{m.type}: {m.text}") if m.type in ("error", "warning") else None)
    page.on("pageerror", lambda e: said.append(f"error: {e}"))
    return said
