"""Where the server is: a process of ours that is started again when it dies, or one that somebody else runs.

The host knows which weights are to be served, so that a new life of the server begins with them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from assay.errors import EngineError
from assay_engines.vllm.files import check_weights
from assay_engines.vllm.options import VLLMOptions
from assay_engines.vllm.probing import read_probe
from assay_engines.vllm.routes import Lost, Routes, Served
from assay_engines.vllm.server import Server, free_port, server_command, transfer_config
from assay_engines.vllm.transfer import Transfer

log = logging.getLogger("assay.engines")
_LOOK_S = 0.25
_ALIVE_S = 2.0
"""A server whose core died ends itself within about a second."""


@dataclass
class Life:
    """One life of a server, from answering to its death."""

    routes: Routes
    served: Served
    number: int


@dataclass
class Weights:
    """What is to be served."""

    folder: Path
    version: int


class OwnHost:
    """A server that this engine starts, watches and ends."""

    def __init__(
        self, python: Path, options: VLLMOptions, *, dtype: str, on_cpu: bool, open_log: Callable[[], Path]
    ) -> None:
        """Nothing is started before `begin`."""
        self._python = python
        self._options = options
        self._dtype = dtype
        self._on_cpu = on_cpu
        self._open_log = open_log
        self._log: Path | None = None
        self._server: Server | None = None
        self._lives = 0

    @property
    def server(self) -> Server | None:
        """The process, where one runs."""
        return self._server

    async def begin(self, weights: Weights) -> Life:
        """End what is left of an earlier life, start a server on these weights, and wait until it answers.

        Raises:
            EngineError: it ended or did not answer in time; with the line of its log that tells most.
        """
        await self.end()
        if self._log is None:
            self._log = self._open_log()
        port = free_port()
        command = server_command(
            self._python, weights.folder, self._options, dtype=self._dtype, port=port, on_cpu=self._on_cpu
        )
        log.info("engine 'vllm': starting the server on %s; log: %s", weights.folder, self._log)
        server = Server(command, port=port, log=self._log, kv_cache_gib=self._options.kv_cache_gib)
        self._server = server
        routes = Routes(server.url)
        clock = asyncio.get_running_loop().time
        deadline = clock() + self._options.start_s
        while not await routes.healthy():
            if not server.running:
                raise self._failed(server, "ended while it started")
            if clock() > deadline:
                await self.end()
                raise self._failed(server, f"did not answer within start_s = {self._options.start_s:g} s")
            await asyncio.sleep(_LOOK_S)
        self._lives += 1
        try:
            return await _greet(routes, weights.version, self._lives)
        except Lost as cause:
            raise self._failed(server, f"ended as soon as it had started ({cause})") from cause

    async def alive(self, life: Life) -> bool:
        """Whether this life goes on; looks long enough to see a dying server end."""
        await asyncio.sleep(_ALIVE_S)
        return self._server is not None and self._server.running and await life.routes.healthy()

    async def failed_update(self, weights: Weights, cause: Lost) -> Life:
        """A new life on the new weights: after a failed update the old one is not usable."""
        log.warning(
            "engine 'vllm': the server could not take version %d (%s); starting it again", weights.version, cause
        )
        return await self.begin(weights)

    def last_words(self) -> str:
        """What the latest life's log says, and where it is."""
        return "" if self._server is None else f"{self._server.last_words()} (log: {self._server.log})"

    async def end(self) -> None:
        """End the server and everything below it."""
        if self._server is not None:
            await asyncio.to_thread(self._server.stop)

    def _failed(self, server: Server, how: str) -> EngineError:
        return EngineError(f"engine 'vllm': the server {how}; it said: {server.last_words()}; whole log: {server.log}")


class GivenHost:
    """A server that somebody else runs on this host."""

    def __init__(self, url: str, options: VLLMOptions, transfer: Transfer) -> None:
        """Nothing is asked before `begin`; a later life of the server is given its weights by `transfer`."""
        self._url = url
        self._transfer = transfer
        self._options = options
        self._lives = 0
        self._failures = 0
        """Pushes in a row that it did not survive."""

    async def begin(self, weights: Weights) -> Life:
        """Wait until it answers; give it the weights that a run published, and those that an earlier life had.

        What it holds when it is met may be of another run, and that run may have ended inside a pause.
        """
        routes = Routes(self._url)
        clock = asyncio.get_running_loop().time
        deadline = clock() + self._options.start_s
        while not await routes.healthy():
            if clock() > deadline:
                raise EngineError(
                    f"engine 'vllm': no server answers at {self._url} after start_s = {self._options.start_s:g} s; "
                    "start it, or leave url out and assay starts one"
                )
            await asyncio.sleep(_LOOK_S)
        self._lives += 1
        try:
            if self._lives > 1 or read_probe(weights.folder) is not None:
                files = check_weights(weights.folder, {})
                await routes.pause()
                await self._transfer.push(routes, self._lives, weights.folder, files, weights.version)
            await routes.resume()
        except Lost as cause:
            return await self.failed_update(weights, cause)
        life = await self._greeted(routes, weights)
        self._failures = 0
        return life

    async def _greeted(self, routes: Routes, weights: Weights) -> Life:
        try:
            return await _greet(routes, weights.version, self._lives)
        except Lost as cause:
            raise EngineError(f"engine 'vllm': the server at {self._url} answered, then failed: {cause}") from cause

    async def alive(self, life: Life) -> bool:
        """Whether it answers."""
        await asyncio.sleep(_ALIVE_S)
        return await life.routes.healthy()

    async def failed_update(self, weights: Weights, cause: Lost) -> Life:
        """A new life of it where it is gone: only its owner can start it. Refused where it runs and took nothing."""
        routes = Routes(self._url)
        await asyncio.sleep(_ALIVE_S)
        gone = not await routes.healthy()
        await routes.aclose()
        self._failures += 1
        if gone and self._failures <= self._options.restarts:
            log.warning(
                "engine 'vllm': the server at %s was lost while it took version %d (%s); waiting for its next life",
                self._url,
                weights.version,
                cause,
            )
            return await self.begin(weights)
        raise EngineError(
            f"engine 'vllm': the server at {self._url} could not take version {weights.version}: {cause}; start it "
            "again on this host, with the plug-in assay-vllm and "
            f"--weight-transfer-config '{transfer_config(self._options)}'"
        ) from cause

    def last_words(self) -> str:
        """Nothing: its log is its owner's."""
        return f"its log is with whoever runs {self._url}"

    async def end(self) -> None:
        """Leave it running."""


async def _greet(routes: Routes, version: int, number: int) -> Life:
    """A life, once the server is known to give log-probs of the distribution that it samples from."""
    served = await routes.models()
    await routes.name_version(version)
    # With top-k 1 the distribution really sampled from gives its one token the log-prob 0; a plain softmax does not.
    body: dict[str, Any] = {"model": served.name, "token_ids": [1, 2], "request_id": f"assay-greeting-{number}"}
    body["sampling_params"] = {"max_tokens": 1, "temperature": 1.0, "top_k": 1, "logprobs": 0, "ignore_eos": True}
    async for delta in routes.generate(body):
        if any(abs(logprob) > 1e-6 for logprob in delta.logprobs):
            raise EngineError(
                f"engine 'vllm': the server at {routes.url} gives log-probs from before temperature and top-p; start "
                "it with --logprobs-mode processed_logprobs"
            )
    return Life(routes, served, number)
