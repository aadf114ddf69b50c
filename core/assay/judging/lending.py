"""The run's sandboxes for sources in worker processes: the run's process keeps them, workers ask over a socket.

One connection is one request: a line of JSON, answered by one line for each result. A sandbox is opened at its first
use and its slots are shared by all workers; a worker that is killed hangs up, and its job is ended. The socket has no
file, answers only who knows the token that the worker was built with, and is closed with the pool.
"""

import asyncio
import contextlib
import hmac
import json
import secrets
import socket
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection, Mapping, Sequence
from typing import Any

from assay.contracts.sandbox import Guarantee, Job, RunResult
from assay.errors import AssayError, ConfigError, PluginError, SandboxError
from assay.protocols import ProgramSandbox, Sandbox

OpenSandbox = Callable[[str | None, dict[str, Any]], Sandbox]
_LINE_BYTES = 1 << 28
"""Longest request or result."""
_ERRORS: dict[str, type[AssayError]] = {kind.__name__: kind for kind in (ConfigError, PluginError, SandboxError)}


class SandboxHost:
    """Lends the sandboxes of this process; runs in a thread and an event loop of its own."""

    def __init__(self, open_sandbox: OpenSandbox) -> None:
        """Listen; no sandbox is opened before it is asked for."""
        self._open_sandbox = open_sandbox
        self._token = secrets.token_hex(16)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        name = f"assay-sandboxes-{secrets.token_hex(8)}"
        self._socket.bind(f"\0{name}")
        self._socket.listen(128)
        self.address = f"{name}:{self._token}"
        """What a worker needs to ask: the socket's name and the token."""
        self._opened: dict[str, asyncio.Task[Sandbox]] = {}
        self._loop = asyncio.new_event_loop()
        self._ended = asyncio.Event()
        self._thread = threading.Thread(
            target=self._loop.run_until_complete, args=(self._serve(),), name="assay-lending", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Hang up on everybody and close the sandboxes."""
        self._loop.call_soon_threadsafe(self._ended.set)
        self._thread.join()
        self._loop.close()

    async def _serve(self) -> None:
        calls: set[asyncio.Task[Any]] = set()

        async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task is not None
            calls.add(task)
            with contextlib.closing(writer), contextlib.suppress(ConnectionError, asyncio.CancelledError):
                await self._answer(reader, writer)
            calls.discard(task)

        server = await asyncio.start_unix_server(connected, sock=self._socket, limit=_LINE_BYTES)
        await self._ended.wait()
        server.close()
        for task in list(calls):
            task.cancel()
        await asyncio.wait([asyncio.create_task(asyncio.sleep(0)), *calls])
        for opening in self._opened.values():
            with contextlib.suppress(Exception):  # it could not be opened, which whoever asked was told
                await (await opening).aclose()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one request; whoever hangs up ends what was asked for."""
        request = json.loads(await reader.readline() or b"{}")
        if not hmac.compare_digest(str(request.get("token")), self._token):
            return

        async def work() -> None:
            try:
                async for answer in self._answers(request):
                    writer.write(json.dumps(answer).encode() + b"\n")
                    await writer.drain()
            except AssayError as error:
                writer.write(json.dumps({"error": str(error), "kind": type(error).__name__}).encode() + b"\n")
            except Exception as error:  # a sandbox of anybody's: the worker hears of it as the sandbox's failure
                text = f"sandbox: {type(error).__name__}: {error}"
                writer.write(json.dumps({"error": text, "kind": "SandboxError"}).encode() + b"\n")

        working, gone = asyncio.create_task(work()), asyncio.create_task(reader.read())
        try:
            await asyncio.wait([working, gone], return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (working, gone):
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError, ConnectionError):
                    await task

    async def _answers(self, request: Mapping[str, Any]) -> AsyncIterator[dict[str, Any]]:
        sandbox = await self._sandbox(request["name"], request["options"])
        jobs = [Job.model_validate(job) for job in request.get("jobs", ())]
        if request["op"] == "open":
            yield {
                "guarantees": sorted(sandbox.guarantees),
                "gaps": dict(getattr(sandbox, "gaps", {})),
                "programs": isinstance(sandbox, ProgramSandbox),
            }
        elif request["op"] == "run":
            yield _plain(await sandbox.run(jobs[0]))
        elif not isinstance(sandbox, ProgramSandbox):
            raise SandboxError("sandbox: it runs single programs only; use run")
        elif request["op"] == "require":
            yield {"versions": dict(await asyncio.to_thread(sandbox.require, request["languages"]))}
        elif request["op"] == "run_each":
            async with contextlib.aclosing(sandbox.run_each(jobs)) as results:
                async for result in results:
                    yield _plain(result)
        else:
            for result in await sandbox.run_pair(jobs[0], jobs[1]):
                yield _plain(result)

    async def _sandbox(self, name: str | None, options: dict[str, Any]) -> Sandbox:
        key = json.dumps([name, options], sort_keys=True)
        opening = self._opened.get(key)
        if opening is None:
            opening = asyncio.create_task(asyncio.to_thread(self._open_sandbox, name, options))
            self._opened[key] = opening
        try:
            return await asyncio.shield(opening)
        except AssayError:
            self._opened.pop(key, None)  # what was missing may be there at the next try
            raise


def _plain(result: RunResult) -> dict[str, Any]:
    return {"result": result.model_dump(mode="json")}


def open_lent(address: str, name: str | None, options: dict[str, Any]) -> Sandbox:
    """The sandbox `name` of the run's process, for a worker; raises as opening it there does."""
    lent = LentSandbox(address, {"name": name, "options": options})
    return lent if not lent.programs else LentPrograms(address, {"name": name, "options": options})


class LentSandbox:
    """A sandbox that another process keeps; usable before and after a fork, from any event loop."""

    def __init__(self, address: str, which: dict[str, Any]) -> None:
        """Ask for what it guarantees; raises `SandboxError` where it does not work."""
        name, _, token = address.partition(":")
        self._path = f"\0{name}"
        self._request = {"token": token, **which}
        facts = self._ask_now({"op": "open"})
        self.guarantees: frozenset[Guarantee] = frozenset(facts["guarantees"])
        self.gaps: Mapping[Guarantee, str] = facts["gaps"]
        self.programs: bool = facts["programs"]
        """Whether it also knows languages, visits and pairs."""

    async def run(self, job: Job) -> RunResult:
        """The job's result; raises `SandboxError` for the sandbox's own failure, never for the job's."""
        return (await self._all("run", [job]))[0]

    async def aclose(self) -> None:
        """Nothing: its keeper closes it."""

    async def _all(self, op: str, jobs: Sequence[Job]) -> list[RunResult]:
        async with contextlib.aclosing(self._each(op, jobs)) as results:
            return [result async for result in results]

    async def _each(self, op: str, jobs: Sequence[Job]) -> AsyncGenerator[RunResult, None]:
        try:
            reader, writer = await asyncio.open_unix_connection(self._path, limit=_LINE_BYTES)
        except OSError as error:
            raise _unreachable(error) from error
        with contextlib.closing(writer):
            writer.write(self._line({"op": op, "jobs": [job.model_dump(mode="json") for job in jobs]}))
            await writer.drain()
            for _ in jobs:
                yield RunResult.model_validate(_checked(await reader.readline())["result"])

    def _ask_now(self, request: dict[str, Any]) -> dict[str, Any]:
        """The answer to a request, without an event loop and without a connection that outlives it."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            try:
                connection.connect(self._path)
            except OSError as error:
                raise _unreachable(error) from error
            connection.sendall(self._line(request))
            with connection.makefile("rb") as answers:
                return _checked(answers.readline())

    def _line(self, request: dict[str, Any]) -> bytes:
        return json.dumps({**self._request, **request}).encode() + b"\n"


class LentPrograms(LentSandbox):
    """A lent sandbox that knows languages, visits of one program with many inputs, and pairs of programs."""

    def require(self, languages: Collection[str]) -> Mapping[str, str]:
        """Versions of the tools of `languages`; raises `SandboxError` in one sentence where one is missing."""
        return self._ask_now({"op": "require", "languages": sorted(languages)})["versions"]

    async def run_each(self, jobs: Sequence[Job]) -> AsyncGenerator[RunResult, None]:
        """Results in order, each of a fresh process in one visit of one jail, as they come."""
        async with contextlib.aclosing(self._each("run_each", jobs)) as results:
            async for result in results:
                yield result

    async def run_pair(self, asking: Job, answering: Job) -> tuple[RunResult, RunResult]:
        """Both results of two programs that run at once."""
        first, second = await self._all("run_pair", [asking, answering])
        return first, second


def _unreachable(error: OSError) -> SandboxError:
    return SandboxError(f"sandbox: the run's process, which keeps it, cannot be reached from here: {error}")


def _checked(line: bytes) -> dict[str, Any]:
    """The answer in a line; raises the error that it reports, or `SandboxError` where there is none."""
    if not line:
        raise SandboxError("sandbox: the run's process, which keeps it, has hung up")
    answer: dict[str, Any] = json.loads(line)
    if "error" in answer:
        raise _ERRORS.get(answer["kind"], SandboxError)(answer["error"])
    return answer
