"""Runs a server: its socket, its signals, and the drain at the end."""

import asyncio
import contextlib
import signal
import socket
from collections.abc import Callable, Generator

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from assay.errors import ConfigError
from assay.serve.app import build_app
from assay.serve.metrics import Metrics
from assay.serve.service import Service
from assay.serve.settings import Settings, is_loopback

BACKLOG = 2048
KEEP_ALIVE_S = 75
"""How long an idle connection is kept for its client's next request."""


def bind(host: str, port: int) -> socket.socket:
    """A listening socket; raises `ConfigError` where the address is taken or is none."""
    if not 0 <= port <= 65535:
        raise ConfigError(f"assay serve: --port {port}: a port is 0 to 65535; 0 takes a free one")
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listening = socket.socket(family, kind, protocol)
        try:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind(address)
            listening.listen(BACKLOG)
        except BaseException:
            listening.close()
            raise
    except OSError as error:
        raise ConfigError(
            f"assay serve: {host}:{port}: cannot listen there: {error}; choose another --port (0 takes a free one)"
        ) from error
    listening.setblocking(False)
    return listening


async def serve(
    service: Service,
    settings: Settings,
    *,
    metrics: Metrics,
    listening: socket.socket,
    host: str,
    on_ready: Callable[[], None],
) -> None:
    """Answer requests until SIGTERM or SIGINT, then those under way for `drain_s`, then return.

    A second signal answers at once what is under way.
    """
    app = build_app(service, settings, metrics=metrics, check_host=is_loopback(host))
    config = uvicorn.Config(
        app,
        http=_patient(settings.headers_s),
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        date_header=True,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=int(settings.drain_s) + 1,
        proxy_headers=False,
    )
    server = _Server(config, on_ready)
    loop = asyncio.get_running_loop()

    def stop() -> None:
        if server.should_exit:
            service.end()
            return
        server.should_exit = True
        service.drain()
        loop.call_later(settings.drain_s, service.end)

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop)
    try:
        await server.serve(sockets=[listening])
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)


class _Server(uvicorn.Server):
    """Says when it listens, and leaves the signals to `serve`."""

    def __init__(self, config: uvicorn.Config, on_ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._on_ready = on_ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._on_ready()

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield


def _patient(headers_s: float) -> type[H11Protocol]:
    """The protocol of uvicorn, which ends a connection that has not said within `headers_s` what it wants."""

    class Patient(H11Protocol):
        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            self._waiting = self.loop.call_later(headers_s, self._give_up)

        def connection_lost(self, exc: Exception | None) -> None:
            self._waiting.cancel()
            super().connection_lost(exc)

        def _give_up(self) -> None:
            if self.scope is None:  # pyright: ignore[reportUnnecessaryComparison] # no request has begun
                self.transport.close()

    return Patient
