"""The pool of killable worker processes, driven by one thread of its own.

A call goes to a worker that has its program loaded and is alone there; at a limit the worker's whole process tree is
killed, the call gets its answer and the slot is free again. Deadlines are kept by the pool's thread, so they hold
whatever the caller's event loop does, and calls may come from any thread and any loop.

Guaranteed: every call gets exactly one answer; at most `size` items run at once; programs share the slots round robin;
nothing runs on after `close`. Items that were running while a fork server itself died are tried once more.
"""

import contextlib
import itertools
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any

from assay.contracts import ResourceLimits
from assay.errors import JudgingError
from assay.judging import channel
from assay.judging.tracked import (
    OUTPUT_FACTOR,
    Answer,
    AnswerStatus,
    Call,
    Output,
    Program,
    ProgramKey,
    Server,
    Worker,
)
from assay.process import kill_tree

_STATUS: dict[bytes, AnswerStatus] = {
    channel.OK: "ok",
    channel.RAISED: "raised",
    channel.TRANSIENT: "raised",
    channel.MEMORY: "out_of_memory",
    channel.LARGE: "too_large",
    channel.LEFT: "killed",
}
_MAX_LOSSES = 100
"""Deaths of its template after which a program is given up."""
_RETIRE_AFTER = 5_000
"""Items after which a worker is replaced, so that a slow leak never matters."""


class Pool:
    """Runs calls of named programs in worker processes; see the module's guarantees."""

    def __init__(
        self, size: int, *, start_timeout_s: float = 60.0, preload: Sequence[str] = ("assay.judging.rebuild",)
    ) -> None:
        """At most `size` items at once; nothing is started before the first call."""
        self.size = size
        self.start_timeout_s = start_timeout_s
        self.preload = tuple(preload)
        self.counts: Counter[str] = Counter()
        """How often: spawned, timed_out, out_of_memory, killed, too_large."""
        self._lock = threading.Lock()
        self._inbox: deque[Callable[[], None]] = deque()
        self._ids = itertools.count(1)
        self._programs: dict[ProgramKey, Program] = {}
        self._turn: deque[Program] = deque()
        self._workers: dict[int, Worker] = {}
        self._templates: dict[int, Server] = {}
        self._root: Server | None = None
        self._root_process: subprocess.Popen[bytes] | None = None
        self._root_ready = False
        self._busy = 0
        self._thread: threading.Thread | None = None
        self._selector = selectors.DefaultSelector()
        self._wake_read, self._wake_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._watch(self._wake_read, self._wake)
        self._closed = False

    # ---- for callers, from any thread ----

    def submit(self, key: ProgramKey, payload: bytes, limits: ResourceLimits) -> "Future[Answer]":
        """The answer to come; cancelling the future ends the item."""
        future: Future[Answer] = Future()

        def enter() -> None:
            program = self._program(key)
            if program.state == "broken":
                future.set_result(Answer("killed", detail=program.cause, infra=True))
                return
            program.queue.append(Call(program, payload, limits, future))
            future.add_done_callback(self._on_done)

        self._post(enter)
        return future

    def open(self, key: ProgramKey) -> "Future[Mapping[str, Any]]":
        """The program's facts once it is loaded; the future raises `JudgingError` with the cause when it cannot be."""
        future: Future[Mapping[str, Any]] = Future()

        def enter() -> None:
            program = self._program(key)
            if program.state == "ready":
                future.set_result(program.facts)
            elif program.state == "broken":
                future.set_exception(JudgingError(program.cause))
            else:
                program.waiting.append(future)

        self._post(enter)
        return future

    @property
    def queue_length(self) -> int:
        """Calls that wait for a slot."""
        return sum(len(program.queue) for program in list(self._programs.values()))

    def close(self) -> None:
        """End every worker and server with everything below them; calls under way are answered as killed."""
        if self._closed:
            return
        if self._thread is None:
            self._closed = True
            self._shut()
            return
        self._post(self._stop)
        self._thread.join()

    def _post(self, action: Callable[[], None]) -> None:
        with self._lock:
            if self._closed:
                raise JudgingError("judging: the worker pool is closed; open a new panel")
            self._inbox.append(action)
            if self._thread is None:
                self._thread = threading.Thread(target=self._drive, name="assay-workers", daemon=True)
                self._thread.start()
        with contextlib.suppress(BlockingIOError):
            os.write(self._wake_write, b"x")

    def _on_done(self, future: "Future[Answer]") -> None:
        if future.cancelled():
            with contextlib.suppress(JudgingError):
                self._post(lambda: self._cancelled(future))

    # ---- the pool's own thread ----

    def _drive(self) -> None:
        try:
            while not self._closed:
                self._dispatch()
                for key, mask in self._selector.select(self._pause_s()):
                    key.data(mask)
                self._keep_deadlines()
        except BaseException as error:  # callers must hear of a defect here instead of waiting for ever
            self._abandon(f"the worker pool broke: {type(error).__name__}: {error}")
            raise
        finally:
            self._shut()

    def _wake(self, _mask: int) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self._wake_read, 1 << 16)
        while self._inbox:
            self._inbox.popleft()()

    def _watch(self, file: Any, action: Callable[[int], None], *, write: bool = False) -> None:
        """Call `action` with the event mask when `file` can be read (or written too)."""
        mask = selectors.EVENT_READ | (selectors.EVENT_WRITE if write else 0)
        if file in self._selector.get_map():
            self._selector.modify(file, mask, action)
        else:
            self._selector.register(file, mask, action)

    def _unwatch(self, file: Any) -> None:
        if file in self._selector.get_map():
            self._selector.unregister(file)

    def _stop(self) -> None:
        with self._lock:
            self._closed = True
        self._abandon("the worker pool was closed")

    def _abandon(self, why: str) -> None:
        while self._inbox:
            self._inbox.popleft()()
        for worker in list(self._workers.values()):
            if worker.call is not None:
                self._answer(worker.call, Answer("killed", detail=why, infra=True))
        for program in self._programs.values():
            while program.queue:
                self._answer(program.queue.popleft(), Answer("killed", detail=why, infra=True))
            while program.waiting:
                program.waiting.pop().set_exception(JudgingError(why))

    def _shut(self) -> None:
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
        for worker in self._workers.values():
            worker.connection.close()
            os.close(worker.output.file)
        self._workers.clear()
        self._templates.clear()
        self._selector.close()
        os.close(self._wake_read)
        os.close(self._wake_write)

    def _program(self, key: ProgramKey) -> Program:
        program = self._programs.get(key)
        if program is None:
            program = self._programs[key] = Program(key, self.start_timeout_s)
            self._turn.append(program)
        if program.state == "new":
            self._load(program)
        return program

    # ---- servers ----

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
        self._watch(ours, lambda _mask: self._on_order(root))

    def _load(self, program: Program) -> None:
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
            self._order(self._root, {"op": "template", "id": name}, [theirs.fileno(), text, write])
        theirs.close()
        os.close(write)
        self._templates[name] = server
        self._watch(ours, lambda _mask: self._on_order(server))
        self._watch(read, lambda _mask: self._on_template_output(name))

    def _order(self, server: Server, order: dict[str, Any], files: Sequence[int] = ()) -> None:
        with contextlib.suppress(OSError):  # a server that is gone is noticed where its end is reported
            channel.send_order(server.orders, order, files)

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
            self._started(report["started"])
        elif report["ended"] in self._templates:
            self._lost(self._templates[report["ended"]])
        else:
            self._ended(report["ended"], report["status"], report.get("error", ""))

    def _loaded(self, server: Server, program: Program, report: Mapping[str, Any]) -> None:
        program.state = "ready"
        program.facts = report["facts"]
        program.server = server if report["ready"] else self._root
        while program.waiting:
            program.waiting.pop().set_result(program.facts)

    def _broken(self, program: Program, cause: str) -> None:
        program.state = "broken"
        program.cause = cause
        while program.waiting:
            program.waiting.pop().set_exception(JudgingError(cause))
        while program.queue:
            self._answer(program.queue.popleft(), Answer("killed", detail=cause, infra=True))

    def _lost(self, server: Server) -> None:
        """A server is gone, and with it all its workers: start it again and try their items once more."""
        printed = self._forget(server)
        for worker in [worker for worker in self._workers.values() if worker.server is server]:
            call = worker.call
            self._drop(worker)
            if call is not None:
                self._retry(call)
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
        for program in self._programs.values():
            if not self._root_ready:
                self._broken(program, f"the fork server could not start (exit status {status})")
            elif program.server is root:
                program.state, program.server = "new", None

    def _forget(self, server: Server) -> str:
        """Let go of a server's files; what it printed last."""
        for name in [name for name, other in self._templates.items() if other is server]:
            del self._templates[name]
        self._unwatch(server.orders)
        server.orders.close()
        if server.output is None:
            return ""
        server.output.read()
        self._unwatch(server.output.file)
        os.close(server.output.file)
        return server.output.take()

    def _retry(self, call: Call) -> None:
        call.tries += 1
        if call.tries > 1:
            self._count(Answer("killed"))
            self._answer(call, Answer("killed", detail="its worker's server ended twice while judging it"))
        else:
            call.program.queue.appendleft(call)

    # ---- workers ----

    def _dispatch(self) -> None:
        """Give waiting calls to free slots, program by program."""
        for _ in range(len(self._turn)):
            if self._busy >= self.size:
                return
            program = self._turn[0]
            self._turn.rotate(-1)
            if program.state == "new" and program.queue:
                self._load(program)
            if program.state == "ready" and program.queue:
                self._assign(program, program.queue.popleft())
        if self._busy < self.size and any(p.queue and p.state == "ready" for p in self._turn):
            self._dispatch()

    def _assign(self, program: Program, call: Call) -> None:
        if call.future.cancelled():
            return
        self._busy += 1
        if program.idle:
            worker = program.idle.pop()
            worker.call = call
            self._send(worker)
        else:
            self._spawn(program, call)

    def _spawn(self, program: Program, call: Call) -> None:
        server = program.server
        assert server is not None
        ours, theirs = socket.socketpair()
        read, write = os.pipe2(os.O_CLOEXEC)
        name = next(self._ids)
        connection = channel.Connection(ours, max_bytes=1 << 30)
        worker = Worker(name, program, server, connection, Output(read), call)
        worker.deadline = time.monotonic() + program.start_timeout_s
        self._workers[name] = worker
        self.counts["spawned"] += 1
        self._order(server, {"op": "worker", "id": name}, [theirs.fileno(), write])
        theirs.close()
        os.close(write)
        self._watch(connection, lambda mask: self._on_frames(worker, mask))
        self._watch(read, lambda _mask: self._on_output(worker))

    def _started(self, name: int) -> None:
        worker = self._workers.get(name)
        if worker is None or worker.state != "starting":
            return
        if worker.server.program is None:
            worker.state = "loading"
            key = worker.program.key
            init = json.loads(key.init) if key.init else None
            self._write(worker, channel.LOAD, json.dumps({"target": key.target, "init": init}).encode())
        else:
            self._send(worker)

    def _send(self, worker: Worker) -> None:
        """Start the clock of the worker's call."""
        call = worker.call
        if call is None:
            self._rest(worker)
            return
        limits = call.limits
        memory = 0 if limits.memory_mib is None else limits.memory_mib << 20
        max_bytes = limits.result_kib << 10
        worker.connection.max_bytes = max_bytes + 4096
        worker.output.limit = limits.output_kib << 10
        worker.state = "running"
        worker.items += 1
        worker.started = time.monotonic()
        worker.deadline = worker.started + limits.wall_s
        self._write(
            worker, channel.ITEM, channel.ITEM_LIMITS.pack(limits.cpu_s or 0.0, memory, max_bytes), call.payload
        )

    def _write(self, worker: Worker, kind: bytes, *parts: bytes) -> None:
        if not worker.connection.send(kind, *parts):
            self._watch(worker.connection, lambda mask: self._on_frames(worker, mask), write=True)

    def _on_frames(self, worker: Worker, mask: int) -> None:
        if worker.id not in self._workers:
            return
        if mask & selectors.EVENT_WRITE and worker.connection.flush():
            self._watch(worker.connection, lambda mask: self._on_frames(worker, mask))
        if not mask & selectors.EVENT_READ:
            return
        is_open = worker.connection.receive()
        try:
            for frame in worker.connection.frames():
                self._on_frame(worker, frame)
        except channel.FrameSizeError as error:
            self._end(worker, "too_large", str(error))
            return
        if not is_open and worker.id in self._workers:
            # The fork server reports the cause; until then only the deadline is left to wait for.
            self._unwatch(worker.connection)
            if worker.call is None:
                self._kill(worker)

    def _on_frame(self, worker: Worker, frame: channel.Frame) -> None:
        if frame.kind == channel.LOADED:
            self._send(worker)
            return
        if frame.kind == channel.BROKEN:
            self._end(
                worker, "killed", f"its worker could not load it: {frame.body.decode(errors='replace')}", infra=True
            )
            return
        call = worker.call
        if call is None or worker.state != "running":
            self._kill(worker)  # it speaks without being asked
            return
        worker.output.read()
        if worker.output.flood:
            self._end(worker, "too_large", self._flooded(worker))
            return
        status = _STATUS.get(frame.kind, "killed")
        detail = "" if status == "ok" else frame.body.decode(errors="replace")
        answer = Answer(
            status,
            frame.body if status == "ok" else b"",
            self._worded(status, detail, call.limits),
            worker.output.take(),
            transient=frame.kind == channel.TRANSIENT,
            latency_s=time.monotonic() - worker.started,
        )
        worker.call = None
        self._busy -= 1
        self._count(answer)
        self._answer(call, answer)
        if status == "out_of_memory" or worker.items >= _RETIRE_AFTER:
            self._kill(worker)
        else:
            self._rest(worker)

    def _rest(self, worker: Worker) -> None:
        worker.state = "idle"
        worker.deadline = float("inf")
        worker.program.idle.append(worker)

    def _on_output(self, worker: Worker) -> None:
        if worker.id not in self._workers:
            return  # dropped by an earlier event of the same round
        if not worker.output.read():
            self._unwatch(worker.output.file)
        if worker.output.flood:
            self._end(worker, "too_large", self._flooded(worker))

    def _on_template_output(self, name: int) -> None:
        server = self._templates.get(name)
        if server is None or server.output is None:
            return
        if not server.output.read():
            self._unwatch(server.output.file)
        if server.output.flood:
            server.output.total = server.output.limit  # what more comes is read and dropped

    def _flooded(self, worker: Worker) -> str:
        return f"printed more than {(worker.output.limit * OUTPUT_FACTOR) >> 20} MiB"

    def _end(self, worker: Worker, status: AnswerStatus, detail: str, *, infra: bool = False) -> None:
        """Kill a worker and answer its call."""
        call = worker.call
        worker.call = None
        worker.output.read()
        printed = worker.output.take()
        latency_s = time.monotonic() - worker.started if worker.state == "running" else 0.0
        self._kill(worker)
        if call is not None:
            answer = Answer(status, detail=detail, output=printed, infra=infra, latency_s=latency_s)
            self._busy -= 1
            self._count(answer)
            self._answer(call, answer)

    def _kill(self, worker: Worker) -> None:
        self._order(worker.server, {"op": "kill", "id": worker.id})
        self._drop(worker)

    def _drop(self, worker: Worker) -> None:
        """Forget a worker that is dead or dying."""
        if self._workers.pop(worker.id, None) is None:
            return
        if worker.call is not None:
            self._busy -= 1
        elif worker in worker.program.idle:
            worker.program.idle.remove(worker)
        self._unwatch(worker.connection)
        self._unwatch(worker.output.file)
        worker.connection.close()
        os.close(worker.output.file)

    def _ended(self, name: int, status: int, error: str) -> None:
        """A worker ended without being told to."""
        worker = self._workers.get(name)
        if worker is None:
            return
        if worker.connection.receive() or worker.call is not None:
            with contextlib.suppress(channel.FrameSizeError):
                for frame in worker.connection.frames():
                    self._on_frame(worker, frame)
        if name not in self._workers:
            return
        cpu = worker.call is not None and status == -signal.SIGPROF
        if error:
            detail = f"no worker could be forked: {error}"
        elif cpu and worker.call is not None:
            detail = f"used more than {worker.call.limits.cpu_s:g} s of CPU"
        elif status < 0:
            detail = f"its process was ended by signal {_signal_name(-status)}"
        else:
            detail = f"its process exited with code {status} instead of answering"
        self._end(worker, "timed_out" if cpu else "killed", detail, infra=bool(error))

    # ---- time ----

    def _pause_s(self) -> float | None:
        deadlines = [worker.deadline for worker in self._workers.values()]
        deadlines += [server.deadline for server in self._templates.values()]
        if self._root is not None:
            deadlines.append(self._root.deadline)
        first = min(deadlines, default=float("inf"))
        return None if first == float("inf") else max(0.0, first - time.monotonic())

    def _keep_deadlines(self) -> None:
        now = time.monotonic()
        for worker in [worker for worker in self._workers.values() if worker.deadline <= now]:
            if worker.state == "running" and worker.call is not None:
                self._end(worker, "timed_out", f"timed out after {worker.call.limits.wall_s:g} s")
            else:
                self._end(
                    worker,
                    "killed",
                    f"its worker did not start within {worker.program.start_timeout_s:g} s",
                    infra=True,
                )
        for name, server in [item for item in self._templates.items() if item[1].deadline <= now]:
            server.deadline = float("inf")
            assert server.program is not None
            self._broken(server.program, f"loading it took more than {server.program.start_timeout_s:g} s")
            if self._root is not None:
                self._order(self._root, {"op": "kill", "id": name})
        if self._root is not None and self._root.deadline <= now and self._root_process is not None:
            self._root_process.kill()
            self._root.deadline = float("inf")

    def _cancelled(self, future: "Future[Answer]") -> None:
        for worker in list(self._workers.values()):
            if worker.call is not None and worker.call.future is future:
                self._busy -= 1
                worker.call = None
                self._kill(worker)
                return
        for program in self._programs.values():
            for call in [call for call in program.queue if call.future is future]:
                program.queue.remove(call)

    def _worded(self, status: AnswerStatus, detail: str, limits: ResourceLimits) -> str:
        if status == "out_of_memory":
            return f"needed more than {limits.memory_mib} MiB"
        if status == "too_large":
            return f"returned {detail}; the limit is {limits.result_kib:,} KiB"
        return detail

    def _count(self, answer: Answer) -> None:
        if answer.status not in ("ok", "raised"):
            self.counts[answer.status] += 1

    def _answer(self, call: Call, answer: Answer) -> None:
        if call.future.set_running_or_notify_cancel():
            call.future.set_result(answer)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return str(number)
