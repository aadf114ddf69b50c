"""What every request passes before any route: Host, token, and a body that is neither too large nor too slow.

A body is read here as a whole, so that a route never waits for a slow client while it holds anything.
"""

import asyncio
import hmac
import json
import time
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from assay.serve.settings import MIB, Settings

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]
Count = Callable[[str, int, float], None]

OPEN_ROUTES = frozenset({"/healthz"})
"""Asked by whoever watches over the process, without a token."""
BODIES_AT_ONCE = 16
"""How many bodies of the largest size may be on their way in together."""
LOOPBACK_HOSTS = frozenset({"localhost", "127.0.0.1", "[::1]"})


class _RefusedError(Exception):
    """The request is answered here."""

    def __init__(self, code: int, detail: str, **headers: str) -> None:
        super().__init__(detail)
        self.code, self.detail, self.headers = code, detail, headers


class Gate:
    """An ASGI application around another one."""

    def __init__(self, app: App, settings: Settings, *, check_host: bool, routes: frozenset[str], count: Count) -> None:
        """`check_host` where only this machine can reach the server; `count` gets route, code and seconds."""
        self.app, self.settings, self.check_host = app, settings, check_host
        self.routes, self.count = routes, count
        self._held_bytes = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request through, or answer it."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        started = time.monotonic()
        code = 500

        async def counted(message: Message) -> None:
            nonlocal code
            if message["type"] == "http.response.start":
                code = message["status"]
            await send(message)

        body = b""
        try:
            self._check(scope)
            body = await self._body(scope, receive)
            await self.app(scope, _replay(body, receive), counted)
        except _RefusedError as refused:
            await _answer(counted, refused)
        finally:
            self._held_bytes -= len(body)
            route = scope["path"] if scope["path"] in self.routes else "other"
            self.count(route, code, time.monotonic() - started)

    def _check(self, scope: Scope) -> None:
        headers = {name.lower(): value for name, value in scope["headers"]}
        host = headers.get(b"host", b"").decode("latin-1")
        if self.check_host and _without_port(host) not in LOOPBACK_HOSTS:
            # A page in a browser may send requests here under a name of its own that leads to this machine.
            raise _RefusedError(421, f"this server answers for localhost; found Host {host[:80]!r}")
        if self.settings.token is None or scope["path"] in OPEN_ROUTES:
            return
        given = headers.get(b"authorization", b"")
        wanted = f"Bearer {self.settings.token}".encode()
        if not hmac.compare_digest(given, wanted):
            raise _RefusedError(
                401, "a token is needed: send the header Authorization: Bearer TOKEN", **{"WWW-Authenticate": "Bearer"}
            )

    async def _body(self, scope: Scope, receive: Receive) -> bytes:
        """The whole body, counted in `_held_bytes` until the request is answered."""
        limit = self.settings.max_body_bytes
        announced = dict(scope["headers"]).get(b"content-length", b"")
        too_large = announced.isdigit() and int(announced) > limit
        parts: list[bytes] = []
        size, more = 0, True
        try:
            async with asyncio.timeout(self.settings.body_s):
                while more and size <= 4 * limit:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise _RefusedError(400, "the connection ended before the body did")
                    chunk, more = message.get("body", b""), message.get("more_body", False)
                    size += len(chunk)
                    too_large = too_large or size > limit
                    if too_large:
                        continue  # read to its end and dropped: a client that is still writing would not hear of it
                    if self._held_bytes + len(chunk) > BODIES_AT_ONCE * limit:
                        raise _RefusedError(429, "too many bodies are on their way in", **{"Retry-After": "1"})
                    parts.append(chunk)
                    self._held_bytes += len(chunk)
            if too_large:
                raise _RefusedError(413, f"the body is larger than {limit / MIB:g} MiB; send fewer items at a time")
        except BaseException as error:
            self._held_bytes -= sum(map(len, parts))
            if isinstance(error, TimeoutError):
                raise _RefusedError(408, f"the body did not arrive within {self.settings.body_s:g} s") from None
            raise
        return b"".join(parts)


def _without_port(host: str) -> str:
    name, colon, port = host.lower().rpartition(":")
    return name if colon and port.isdigit() else host.lower()


def _replay(body: bytes, receive: Receive) -> Receive:
    """A `receive` that gives the body at once, and then waits for the end of the connection."""
    given = False

    async def replayed() -> Message:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return replayed


async def _answer(send: Send, refused: _RefusedError) -> None:
    body = json.dumps({"detail": refused.detail, "errors": []}).encode()
    headers = {"Content-Type": "application/json", "Content-Length": str(len(body)), **refused.headers}
    if refused.code in (400, 408, 413):
        headers["Connection"] = "close"
    pairs = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": refused.code, "headers": pairs})
    await send({"type": "http.response.body", "body": body})
