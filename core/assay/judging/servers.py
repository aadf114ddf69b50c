"""The fork servers of a pool: the root, and one template per program; and what is known of each program.

Runs in the pool's thread.
"""

import itertools
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from assay.errors import JudgingError
from assay.judging import channel
from assay.judging.crew import Crew
from assay.judging.events import Events
from assay.judging.tracked import Answer, Output, Program, ProgramKey, Server, settle
from assay.process import kill_tree

_MAX_LOSSES = 100
"""Deaths of its template after which a program is given up."""


class Servers:
    """The root server, the templates and the programs."""

    def __init__(
        self, events: Events, crew: Crew, ids: "itertools.count[int]", *, start_timeout_s: float, preload: Sequence[str]
    ) -> None:
        """Nothing is started before the first program; the root imports `preload`."""
        self.start_timeout_s = start_timeout_s
        self.preload = tuple(preload)
        self.programs: dict[ProgramKey, Program] = {}
        self._events = events
        self._crew = crew
        self._ids = ids
        self._templates: dict[int, Server] = {}
        self._root: Server | None = None
        self._root_process: subprocess.Popen[bytes] | None = None
        self._root_ready = False

    # ---- for the pool ----

    def program(self, key: ProgramKey) -> Program:
        """The program of a key; a new one is being loaded from now on."""
        program = self.programs.get(key)
        if program is None:
            program = self.programs[key] = Program(key, self.start_timeout_s)
        if program.state == "new":
            self.load(program)
        return program

    def abandon(self, why: str) -> None:
        """Answer everybody who waits for a program."""
        for program in self.programs.values():
            while program.queue:
                program.queue.popleft().answer(Answer("killed", detail=why, infra=True))
            while program.waiting:
                settle(program.waiting.pop(), JudgingError(why))

    def close(self) -> None:
        """End the root, and with it everything below."""
        if self._root is not None:
            self._root.orders.close()
        if self._root_process is not None:
            try:
                self._root_process.wait(5.0)
            except subprocess.TimeoutExpired:
                kill_tree(self._root_process.pid)
                self._root_process.wait()
        for server in self._templates.values():
            server.orders.close()
            if server.output is not None:
                os.close(server.output.file)
        self._templates.clear()

    @property
    def first_deadline(self) -> float:
        """The earliest deadline of a server that is starting, infinity for none."""
        return min((server.deadline for server in self._all()), default=float("inf"))

    def keep_deadlines(self, now: float) -> None:
        """Give up on every server whose time to start is over."""
        for name, server in [item for item in self._templates.items() if item[1].deadline <= now]:
            server.deadline = float("inf")
            assert server.program is not None
            self._broken(server.program, f"loading it took more than {server.program.start_timeout_s:g} s")
            if self._root is not None:
                self._root.send({"op": "kill", "id": name})
        if self._root is not None and self._root.deadline <= now and self._root_process is not None:
            self._root_process.kill()
            self._root.deadline = float("inf")

    def _all(self) -> Iterator[Server]:
        yield from self._templates.values()
        if self._root is not None:
            yield self._root

    # ---- starting ----

    def _start_root(self) -> None:
        ours, theirs = channel.order_pair()
        environment = {"OMP_NUM_THREADS": "1", **os.environ}
        self._root_process = subprocess.Popen(  # noqa: S603 # an argument list, our own interpreter
            [sys.executable, "-m", "assay.judging.forkserver", str(theirs.fileno())],
            pass_fds=(theirs.fileno(),),
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
        )
        theirs.close()
        channel.send_order(ours, {"path": sys.path, "preload": self.preload})
        self._root = root = Server(ours, deadline=time.monotonic() + self.start_timeout_s)
        self._root_ready = False
        self._events.watch(ours, lambda _mask: self._on_order(root))

    def load(self, program: Program) -> None:
        """Ask the root for a template of the program."""
        if self._root is None:
            self._start_root()
        assert self._root is not None
        program.state = "loading"
        ours, theirs = channel.order_pair()
        read, write = os.pipe2(os.O_CLOEXEC)
        name = next(self._ids)
        server = Server(ours, program, Output(read), time.monotonic() + program.start_timeout_s)
        text = os.memfd_create("program")
        init = json.loads(program.key.init) if program.key.init else None
        with open(text, "wb") as file:
            file.write(json.dumps({"target": program.key.target, "init": init}).encode())
            file.flush()
            file.seek(0)
            self._root.send({"op": "template", "id": name}, [theirs.fileno(), text, write])
        theirs.close()
        os.close(write)
        self._templates[name] = server
        self._events.watch(ours, lambda _mask: self._on_order(server))
        self._events.watch(read, lambda _mask: self._on_template_output(name))

    # ---- what a server reports ----

    def _on_order(self, server: Server) -> None:
        if server is not self._root and server not in self._templates.values():
            return  # lost by an earlier event of the same round
        received = channel.receive_order(server.orders)
        if received is None:
            self._lost(server)
            return
        report = received[0]
        if "ready" in report:
            server.deadline = float("inf")
            if server.program is None:
                self._root_ready = True
            else:
                self._loaded(server, server.program, report)
        elif "broken" in report:
            assert server.program is not None
            self._broken(server.program, report["broken"])
        elif "started" in report:
            self._crew.started(report["started"])
        elif report["ended"] in self._templates:
            self._lost(self._templates[report["ended"]])
        else:
            self._crew.ended(report["ended"], report["status"], report.get("error", ""))

    def _loaded(self, server: Server, program: Program, report: Mapping[str, Any]) -> None:
        program.state = "ready"
        program.facts = report["facts"]
        program.server = server if report["ready"] else self._root
        while program.waiting:
            settle(program.waiting.pop(), program.facts)

    def _broken(self, program: Program, cause: str) -> None:
        program.state = "broken"
        program.cause = cause
        while program.waiting:
            settle(program.waiting.pop(), JudgingError(cause))
        while program.queue:
            program.queue.popleft().answer(Answer("killed", detail=cause, infra=True))

    def _lost(self, server: Server) -> None:
        """A server is gone, and with it all its workers: start it again and try their items once more."""
        printed = self._forget(server)
        self._crew.lose(server)
        program = server.program
        if program is None:
            self._lost_root(server)
        elif program.state == "loading":
            self._broken(program, f"loading it ended its process: {printed[-500:].strip() or 'nothing was printed'}")
        elif program.server is server:
            program.losses += 1
            program.state, program.server = "new", None
            if program.losses > _MAX_LOSSES:
                self._broken(program, f"its process ended more than {_MAX_LOSSES} times")

    def _lost_root(self, root: Server) -> None:
        self._root = None
        process, self._root_process = self._root_process, None
        status = process.wait() if process is not None else None
        for program in self.programs.values():
            if not self._root_ready:
                self._broken(program, f"the fork server could not start (exit status {status})")
            elif program.server is root:
                program.state, program.server = "new", None

    def _forget(self, server: Server) -> str:
        """Let go of a server's files; what it printed last."""
        for name in [name for name, other in self._templates.items() if other is server]:
            del self._templates[name]
        self._events.unwatch(server.orders)
        server.orders.close()
        if server.output is None:
            return ""
        server.output.read()
        self._events.unwatch(server.output.file)
        os.close(server.output.file)
        return server.output.take()

    def _on_template_output(self, name: int) -> None:
        server = self._templates.get(name)
        if server is None or server.output is None:
            return
        if not server.output.read():
            self._events.unwatch(server.output.file)
        if server.output.flood:
            server.output.total = server.output.limit  # what more comes is read and dropped
