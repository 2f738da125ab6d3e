"""An application without sockets: each request runs in an event loop of its own."""

from __future__ import annotations

import asyncio

import httpx
from fastapi import FastAPI


class InProcess(httpx.BaseTransport):
    """For `httpx.Client(transport=…)`; `address` is what the application takes for the client's."""

    def __init__(self, app: FastAPI, address: str = "127.0.0.1") -> None:
        self._app, self._address = app, address

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        async def sent() -> httpx.Response:
            transport = httpx.ASGITransport(self._app, raise_app_exceptions=False, client=(self._address, 1))
            content = request.read()
            async with httpx.AsyncClient(transport=transport) as client:
                answer = await client.request(request.method, request.url, headers=request.headers, content=content)
            return httpx.Response(answer.status_code, headers=answer.headers, content=answer.content)

        return asyncio.run(sent())


def client_of(app: FastAPI, address: str = "127.0.0.1") -> httpx.Client:
    """A client of the application."""
    return httpx.Client(transport=InProcess(app, address), base_url="http://x")
