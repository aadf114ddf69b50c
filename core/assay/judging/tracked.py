"""What the pool keeps track of: programs, their servers and workers, calls and answers, captured output."""

import contextlib
import json
import os
import socket
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Protocol, TypeVar

from pydantic import JsonValue

from assay.contracts import ResourceLimits
from assay.judging import channel

AnswerStatus = Literal["ok", "raised", "timed_out", "out_of_memory", "killed", "too_large"]
OUTPUT_FACTOR = 64
"""A call that prints this many times the captured amount is ended."""
_CHUNK = 1 << 16
T = TypeVar("T")


def settle(future: "Future[T]", found: T | Exception) -> None:
    """Hand a result or an error to whoever waits for it, unless it was cancelled or settled before."""
    if future.done() or not future.set_running_or_notify_cancel():
        return
    if isinstance(found, Exception):
        future.set_exception(found)
    else:
        future.set_result(found)


class ProgramKey(NamedTuple):
    """What names a program: equal keys share workers."""

    target: str
    init: str
    """JSON, or an empty string where the target is the function itself."""


@dataclass(frozen=True)
class Answer:
    """What a killable worker made of one call."""

    status: AnswerStatus
    body: bytes = b""
    """The returned JSON where the status is `ok`."""
    detail: str = ""
    """One line of cause where it is not."""
    output: str = ""
    """What the call printed, shortened."""
    transient: bool = False
    """Whether the call raised an error marked transient."""
    infra: bool = False
    """Whether the item has nothing to do with it: no worker could be started, or the pool was closed."""
    latency_s: float = 0.0
    """Seconds in the worker; waiting in the queue is not counted."""

    @property
    def value(self) -> JsonValue:
        """The returned value where the status is `ok`, else None."""
        return json.loads(self.body) if self.status == "ok" else None


class CallPool(Protocol):
    """What runs calls of named programs: the pool of this machine, or one on a cluster."""

    size: int
    """Calls at once."""

    @property
    def spreads(self) -> bool:
        """Whether its workers are on other machines too, so that whatever may be judged there should be."""
        ...

    @property
    def counts(self) -> Counter[str]:
        """How often what happened to workers."""
        ...

    @property
    def queue_length(self) -> int:
        """Calls that wait."""
        ...

    def submit(self, key: ProgramKey, payload: bytes, limits: ResourceLimits) -> "Future[Answer]":
        """The answer to come; cancelling the future ends the item."""
        ...

    def open(self, key: ProgramKey) -> "Future[Mapping[str, Any]]":
        """The program's facts; the future raises `JudgingError` with the cause when it cannot be loaded."""
        ...

    def close(self) -> None:
        """End every worker with everything below it."""
        ...


@dataclass
class Call:
    """One item to be run, and where its answer goes."""

    program: "Program"
    payload: bytes
    limits: ResourceLimits
    future: "Future[Answer]"
    tries: int = 0

    def answer(self, answer: Answer) -> None:
        """Hand the answer to whoever waits for it, unless the call was cancelled."""
        settle(self.future, answer)


@dataclass
class Server:
    """A fork server: the root, or the template of one program."""

    orders: socket.socket
    program: "Program | None" = None
    output: "Output | None" = None
    deadline: float = 0.0

    def send(self, order: dict[str, Any], files: Sequence[int] = ()) -> None:
        """Send an order; a server that is gone is noticed where its end is reported."""
        with contextlib.suppress(OSError):
            channel.send_order(self.orders, order, files)


@dataclass
class Program:
    """What the pool knows of a program: whether it is loaded, its template, who waits for it."""

    key: ProgramKey
    start_timeout_s: float
    state: Literal["new", "loading", "ready", "broken"] = "new"
    server: Server | None = None
    """Its template, or None where the program cannot be forked and each worker loads for itself."""
    facts: dict[str, Any] = field(default_factory=dict[str, Any])
    cause: str = ""
    losses: int = 0
    """Times that its template died."""
    queue: deque[Call] = field(default_factory=deque[Call])
    idle: list["Worker"] = field(default_factory=list["Worker"])
    waiting: list["Future[Mapping[str, Any]]"] = field(default_factory=list["Future[Mapping[str, Any]]"])


class Output:
    """What comes through an output pipe: the beginning is kept, the rest counted."""

    def __init__(self, file: int) -> None:
        """Read from `file`."""
        os.set_blocking(file, False)
        self.file = file
        self.limit = 1 << 16
        self.kept = bytearray()
        self.total = 0

    def fileno(self) -> int:
        """The file descriptor, for selectors."""
        return self.file

    def read(self) -> bool:
        """Read what is there, up to the amount that ends a call; false at the end of the pipe."""
        while self.total <= self.limit * OUTPUT_FACTOR:
            try:
                data = os.read(self.file, _CHUNK)
            except BlockingIOError:
                return True
            if not data:
                return False
            self.kept += data[: max(0, self.limit - len(self.kept))]
            self.total += len(data)
        return True

    @property
    def flood(self) -> bool:
        """Whether so much came that the call is to be ended."""
        return self.total > self.limit * OUTPUT_FACTOR

    def take(self) -> str:
        """The text that was kept, with a note of what was dropped; starts over."""
        text = self.kept.decode("utf-8", "replace")
        if self.total > len(self.kept):
            text += f"\n[{self.total - len(self.kept):,} more bytes were dropped]"
        self.kept.clear()
        self.total = 0
        return text


@dataclass
class Worker:
    """One worker process, by the id that its server knows."""

    id: int
    program: Program
    server: Server
    connection: channel.Connection
    output: Output
    call: Call | None = None
    state: Literal["starting", "loading", "idle", "running"] = "starting"
    deadline: float = float("inf")
    started: float = 0.0
    items: int = 0
