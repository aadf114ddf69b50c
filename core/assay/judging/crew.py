"""The worker processes of a pool: forked, given items, watched, and killed with everything below them at a limit.

Runs in the pool's thread. A call that a worker has is answered exactly once: by the worker, at its deadline, or by the
worker's end.
"""

import contextlib
import itertools
import json
import os
import selectors
import signal
import socket
import time
from collections import Counter
from concurrent.futures import Future

from assay.contracts import ResourceLimits
from assay.judging import channel
from assay.judging.events import Events
from assay.judging.tracked import OUTPUT_FACTOR, Answer, AnswerStatus, Call, Output, Program, Server, Worker

_STATUS: dict[bytes, AnswerStatus] = {
    channel.OK: "ok",
    channel.RAISED: "raised",
    channel.TRANSIENT: "raised",
    channel.MEMORY: "out_of_memory",
    channel.LARGE: "too_large",
    channel.LEFT: "killed",
}
_RETIRE_AFTER = 5_000
"""Items after which a worker is replaced, so that a slow leak never matters."""


class Crew:
    """Every worker of a pool."""

    def __init__(self, events: Events, ids: "itertools.count[int]") -> None:
        """No worker yet; `ids` names workers and templates alike."""
        self.busy = 0
        """Workers that have a call."""
        self.counts: Counter[str] = Counter()
        """How often: spawned, timed_out, out_of_memory, killed, too_large."""
        self._events = events
        self._ids = ids
        self._workers: dict[int, Worker] = {}

    # ---- for the pool ----

    def assign(self, program: Program, call: Call) -> None:
        """Give a call of a loaded program to an idle worker, or to a new one."""
        if call.future.cancelled():
            return
        self.busy += 1
        if program.idle:
            worker = program.idle.pop()
            worker.call = call
            self._send(worker)
        else:
            self._spawn(program, call)

    def cancel(self, future: "Future[Answer]") -> bool:
        """End the item of this future, if a worker has it; whether one had."""
        for worker in list(self._workers.values()):
            if worker.call is not None and worker.call.future is future:
                self.busy -= 1
                worker.call = None
                self._kill(worker)
                return True
        return False

    def lose(self, server: Server) -> None:
        """A server is gone, and all its workers with it: their items are tried once more."""
        for worker in [worker for worker in self._workers.values() if worker.server is server]:
            call = worker.call
            self._drop(worker)
            if call is not None:
                self._retry(call)

    def abandon(self, why: str) -> None:
        """Answer every call under way as killed by us."""
        for worker in list(self._workers.values()):
            if worker.call is not None:
                worker.call.answer(Answer("killed", detail=why, infra=True))

    def close(self) -> None:
        """Let go of every worker; the servers end the processes."""
        for worker in self._workers.values():
            worker.connection.close()
            os.close(worker.output.file)
        self._workers.clear()

    @property
    def first_deadline(self) -> float:
        """The earliest deadline of a worker, infinity for none."""
        return min((worker.deadline for worker in self._workers.values()), default=float("inf"))

    def keep_deadlines(self, now: float) -> None:
        """End every worker whose time is over."""
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

    # ---- what a server reports ----

    def started(self, name: int) -> None:
        """The worker `name` runs: load its program, or start its call."""
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

    def ended(self, name: int, status: int, error: str) -> None:
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

    # ---- one worker ----

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
        server.send({"op": "worker", "id": name}, [theirs.fileno(), write])
        theirs.close()
        os.close(write)
        self._events.watch(connection, lambda mask: self._on_frames(worker, mask))
        self._events.watch(read, lambda _mask: self._on_output(worker))

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
            self._events.watch(worker.connection, lambda mask: self._on_frames(worker, mask), write=True)

    def _on_frames(self, worker: Worker, mask: int) -> None:
        if worker.id not in self._workers:
            return
        if mask & selectors.EVENT_WRITE and worker.connection.flush():
            self._events.watch(worker.connection, lambda mask: self._on_frames(worker, mask))
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
            self._events.unwatch(worker.connection)
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
        self.busy -= 1
        self._count(answer)
        call.answer(answer)
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
            self._events.unwatch(worker.output.file)
        if worker.output.flood:
            self._end(worker, "too_large", self._flooded(worker))

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
            self.busy -= 1
            self._count(answer)
            call.answer(answer)

    def _kill(self, worker: Worker) -> None:
        worker.server.send({"op": "kill", "id": worker.id})
        self._drop(worker)

    def _drop(self, worker: Worker) -> None:
        """Forget a worker that is dead or dying."""
        if self._workers.pop(worker.id, None) is None:
            return
        if worker.call is not None:
            self.busy -= 1
        elif worker in worker.program.idle:
            worker.program.idle.remove(worker)
        self._events.unwatch(worker.connection)
        self._events.unwatch(worker.output.file)
        worker.connection.close()
        os.close(worker.output.file)

    def _retry(self, call: Call) -> None:
        call.tries += 1
        if call.tries > 1:
            self._count(Answer("killed"))
            call.answer(Answer("killed", detail="its worker's server ended twice while judging it"))
        else:
            call.program.queue.appendleft(call)

    def _worded(self, status: AnswerStatus, detail: str, limits: ResourceLimits) -> str:
        if status == "out_of_memory":
            return f"needed more than {limits.memory_mib} MiB"
        if status == "too_large":
            return f"returned {detail}; the limit is {limits.result_kib:,} KiB"
        return detail

    def _count(self, answer: Answer) -> None:
        if answer.status not in ("ok", "raised"):
            self.counts[answer.status] += 1


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return str(number)
