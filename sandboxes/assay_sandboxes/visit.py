"""One slot's work, blocking and in one thread: start a jail when needed, run jobs in it, replace a spoiled one."""

import json
import re
import select
import threading
import time
from collections.abc import Mapping
from typing import Any, Protocol

from assay.contracts.sandbox import Guarantee, Job, JobLimits, Outcome, RunResult
from assay.errors import SandboxError
from assay_sandboxes.jail import GRACE_S, Jail, JailLost, Transport
from assay_sandboxes.languages import PROGRAM, Plan, plan
from assay_sandboxes.options import SandboxOptions

_MEMORY = re.compile(rb"MemoryError|std::bad_alloc|heap out of memory|Cannot allocate memory|out of memory allocating")
SIGKILL, SIGXCPU = 9, 24


class Backend(Protocol):
    """How one tier starts jails."""

    name: str
    start_within_s: float

    @property
    def guarantees(self) -> frozenset[Guarantee]:
        """What its jails keep."""
        ...

    @property
    def gaps(self) -> Mapping[Guarantee, str]:
        """Why each guarantee that is missing does not hold here."""
        ...

    def start(self, *, trusted: bool) -> Transport:
        """Start a zygote in a new jail; raises `SandboxError` or `OSError`."""
        ...

    def close(self) -> None:
        """Let go of what the backend itself holds; its jails are closed before."""
        ...


class Slot:
    """At most one jail; every method blocks and must be called from the slot's own thread, `kill` excepted."""

    def __init__(self, backend: Backend, options: SandboxOptions, *, trusted: bool = False) -> None:
        """No jail yet."""
        self._backend = backend
        self._options = options
        self._trusted = trusted
        self._jail: Jail | None = None
        self._loaded: tuple[str, str, str] | None = None
        self._build_log = ""
        self._stopped = False
        self._given_up = threading.Event()
        self.starts = 0
        """Jails started so far."""

    def jail(self) -> Jail:
        """The slot's jail, started if there is none; raises `JailLost` where nobody waits for the job any more."""
        if self._stopped:
            raise SandboxError(f"sandbox {self._backend.name!r}: the slot is closed; open a new sandbox")
        jail = self._jail
        if jail is None or not jail.alive:
            self._loaded = None
            try:
                transport = self._backend.start(trusted=self._trusted)
            except OSError as error:
                raise SandboxError(f"sandbox {self._backend.name!r}: a jail cannot be started: {error}") from error
            jail = Jail(transport, start_within_s=self._backend.start_within_s)
            self._jail = jail
            self.starts += 1
        if self._given_up.is_set():
            raise JailLost("its job was given up")
        return jail

    def cancel(self) -> None:
        """End the jail from another thread; a job that was given up before is not tried again."""
        jail = self._jail
        if jail is not None:
            jail.kill()

    def stop(self) -> None:
        """As `cancel`; no job is tried again and no jail is started any more."""
        self._stopped = True
        self.cancel()

    def tool(self, command: tuple[str, ...]) -> str:
        """The first line that a command prints inside a jail; raises `SandboxError` where it cannot be started."""
        limits = JobLimits(memory_mib=1024, cpu_s=10, wall_s=20)
        program = {"op": "program", "argv": list(command), "variables": {"PATH": "/usr/bin:/bin"}, "sparse": True}
        self._given_up = threading.Event()
        for attempt in range(2):
            self._loaded = None
            try:
                answer = self.jail().ask([program, {"op": "run", "limits": limits.model_dump()}], wall_s=limits.wall_s)
                break
            except JailLost as lost:
                self._drop()
                if attempt:
                    raise SandboxError(f"the jail was lost: {lost}") from None
        else:
            raise AssertionError("the loop breaks or raises")
        result = self._result(answer, limits)
        if result.outcome != "exited" or result.exit_code != 0:
            raise SandboxError(f"{command[0]} ended as {result.outcome}: {result.stderr.strip()[-200:]}")
        return (result.stdout or result.stderr).partition("\n")[0].strip()

    def close(self) -> None:
        """End the jail for good."""
        self._stopped = True
        self._drop()

    def _drop(self) -> None:
        if self._jail is not None:
            self._jail.close()
            self._jail = None
        self._loaded = None

    def run(self, job: Job, given_up: threading.Event | None = None) -> RunResult:
        """The job's result; a jail that dies under it is replaced and the job run once more, unless it was given up."""
        refused = self._refuse(job)
        if refused is not None:
            return refused
        last = ""
        self._given_up = given_up or threading.Event()
        for _ in range(2):
            try:
                return self._attempt(job)
            except JailLost as lost:
                self._drop()
                if lost.late:
                    return self._plain("timed_out", "wall", wall_s=job.limits.wall_s + GRACE_S)
                last = str(lost)
                if self._given_up.is_set() or self._stopped:
                    break
        return self._plain("crashed", f"two jails were lost under it: {last}")

    def _refuse(self, job: Job) -> RunResult | None:
        """The result of a job that is too large to be sent, or None."""
        for what, text, limit in (
            ("source", job.source, self._options.max_source_kib),
            ("standard input", job.stdin, self._options.max_stdin_kib),
        ):
            # The cheap bound first: a character is at most four bytes.
            if len(text) > limit << 8 and len(text.encode()) > limit << 10:
                if what == "source":
                    return self._plain("build_failed", f"the program is longer than {limit} KiB")
                raise SandboxError(f"sandbox {self._backend.name!r}: a {what} of more than {limit} KiB")
        for name in job.files:
            if name.startswith("/") or ".." in name.split("/") or "\0" in name or not name:
                raise SandboxError(f"sandbox {self._backend.name!r}: a file {name!r} outside the work folder")
        if "\0" in job.source:
            return self._plain("build_failed", "the program holds a NUL character")
        return None

    def _attempt(self, job: Job) -> RunResult:
        messages, failed = self._load(job)
        if failed is not None:
            return failed
        jail = self.jail()
        limits = job.limits
        answer = jail.ask([*messages, _run_message(job)], wall_s=limits.wall_s)
        result = self._result(answer, limits, calls=len(job.calls or ()))
        self._after(jail, answer)
        return result

    def _after(self, jail: Jail, answer: dict[str, Any]) -> None:
        if not answer.get("clean") or jail.jobs >= self._options.recycle_after:
            self._drop()

    def _load(self, job: Job) -> tuple[list[dict[str, Any]], RunResult | None]:
        """Messages that must precede the run so that the jail has this program; a failed build step is the result."""
        key = (job.language, job.source, repr(sorted(job.files.items())))
        jail = self.jail()
        if self._loaded == key:
            return [], None
        self._build_log = ""
        made = plan(job, self._options)
        if made.build is None:
            self._loaded = key
            return [made.program], None
        failed = self._build(jail, made, job)
        if failed is None:
            self._loaded = key
        return [], failed

    def _build(self, jail: Jail, made: Plan, job: Job) -> RunResult | None:
        options = self._options
        limits = JobLimits(
            wall_s=options.build_wall_s,
            cpu_s=options.build_wall_s,
            memory_mib=options.build_memory_mib,
            disk_mib=options.build_disk_mib,
            output_kib=256,
            processes=64,
        )
        message = {"op": "build", "program": made.build, "then": made.program, "keep": PROGRAM}
        answer = jail.ask([{**message, "limits": limits.model_dump()}], wall_s=limits.wall_s)
        log = (str(answer["stderr"]) + str(answer["stdout"])).encode("utf-8", "surrogateescape")
        self._build_log = log.decode("utf-8", "backslashreplace")[:8192]
        built = bool(answer.get("built"))
        self._after(jail, {"clean": answer.get("clean")})
        if built and self._jail is None:
            # The build left something behind, or its jail's time was over: build once more in the new one.
            return self._build(self.jail(), made, job)
        if built:
            return None
        result = self._result(answer, limits)
        return result.model_copy(update={"outcome": "build_failed", "stdout": "", "stderr": ""})

    def pair(
        self, asking: Job, other: "Slot", answering: Job, given_up: threading.Event
    ) -> tuple[RunResult, RunResult]:
        """Run `asking` here and `answering` in `other`'s jail, passing frames between them until both have ended."""
        self._given_up = other._given_up = given_up
        for attempt in range(2):
            try:
                return self._pair(asking, other, answering)
            except JailLost as lost:
                self._drop()
                other._drop()
                if lost.late or attempt or given_up.is_set():
                    outcome: Outcome = "timed_out" if lost.late else "crashed"
                    result = self._plain(outcome, "wall" if lost.late else f"two jails were lost: {lost}")
                    return result, result
        raise AssertionError("the loop returns")

    def _pair(self, asking: Job, other: "Slot", answering: Job) -> tuple[RunResult, RunResult]:
        refused = other._refuse(answering)
        if refused is not None:
            return self._plain("exited", "not run: the program was refused"), refused
        wall_s = max(asking.limits.wall_s, answering.limits.wall_s)
        ours, theirs = self.jail(), other.jail()
        deadline = time.monotonic() + wall_s + GRACE_S
        messages, _ = other._load(answering)
        numbers = [theirs.send([*messages, {**_run_message(answering), "serve": True}], wall_s=wall_s)]
        messages, _ = self._load(asking)
        numbers.insert(0, ours.send([*messages, {**_run_message(asking), "ask": True}], wall_s=wall_s))
        sides = {0: (ours, theirs, numbers[0]), 1: (theirs, ours, numbers[1])}
        answers = _relay(sides, deadline)
        results = (self._result(answers[0], asking.limits), other._result(answers[1], answering.limits))
        self._after(ours, answers[0])
        other._after(theirs, answers[1])
        return results

    def _plain(self, outcome: Outcome, detail: str, *, wall_s: float = 0.0) -> RunResult:
        return RunResult(outcome=outcome, detail=detail, tier=self._backend.name, wall_s=wall_s)

    def _result(self, answer: dict[str, Any], limits: JobLimits, *, calls: int = 0) -> RunResult:
        stdout, stderr = (str(answer[name]).encode("utf-8", "surrogateescape") for name in ("stdout", "stderr"))
        status = int(answer["status"])
        outcome, detail = _classify(answer, status, stderr, limits)
        if answer["complaint"]:
            reason = str(answer["complaint"]).splitlines()[-1]
            raise SandboxError(f"sandbox {self._backend.name!r}: a program could not be started in its jail: {reason}")
        returns, failure = _returns(answer["replies"], calls)
        return RunResult(
            outcome=outcome,
            exit_code=status if outcome == "exited" else None,
            signal=-status if status < 0 else None,
            stdout=stdout.decode("utf-8", "backslashreplace"),
            stderr=stderr.decode("utf-8", "backslashreplace"),
            returns=returns,
            detail=detail or failure,
            build_log=self._build_log,
            wall_s=float(answer["wall_s"]),
            cpu_s=float(answer["cpu_s"]),
            peak_memory_mib=int(answer["peak_kib"]) / 1024,
            tier=self._backend.name,
        )


def _relay(sides: dict[int, tuple[Jail, Jail, int]], deadline: float) -> dict[int, dict[str, Any]]:
    """Pass frames between two jails until both have answered; raises `JailLost` at the deadline."""
    answers: dict[int, dict[str, Any]] = {}
    poll = select.poll()
    for jail, _, _ in sides.values():
        poll.register(jail.fileno(), select.POLLIN)
    while True:
        for index, (jail, partner, number) in sides.items():
            while (frame := jail.take()) is not None:
                text = str(frame.get("say", ""))
                if frame.get("id") == number:
                    # An empty frame tells the partner that nobody calls, or answers, any more.
                    answers[index], text = frame, ""
                if 1 - index not in answers:
                    partner.say(text)
        if len(answers) == 2:
            return answers
        left = deadline - time.monotonic()
        if left <= 0:
            raise JailLost("a pair did not end in time", late=True)
        ready = {fd for fd, _ in poll.poll(left * 1000)}
        for jail, _, _ in sides.values():
            if jail.fileno() in ready:
                jail.poll()


def _run_message(job: Job) -> dict[str, Any]:
    message: dict[str, Any] = {"op": "run", "limits": job.limits.model_dump()}
    if job.stdin:
        message["stdin"] = job.stdin
    if job.calls is not None:
        message["calls"] = [json.loads(call) for call in job.calls]
    return message


def _classify(answer: dict[str, Any], status: int, stderr: bytes, limits: JobLimits) -> tuple[Outcome, str]:
    """What a wait status means."""
    outcome: Outcome = answer["outcome"]
    detail = str(answer["detail"])
    if outcome != "exited":
        return outcome, detail
    if status != 0 and _MEMORY.search(stderr):
        return "out_of_memory", ""
    if status == -SIGXCPU or (status == -SIGKILL and float(answer["cpu_s"]) >= limits.cpu_s):
        return "timed_out", "cpu"
    if status == -SIGKILL and int(answer["peak_kib"]) >= limits.memory_mib << 9:
        return "out_of_memory", ""
    return ("crashed", "") if status < 0 else ("exited", "")


def _returns(replies: list[str], calls: int) -> tuple[tuple[str, ...], str]:
    """The answers to `calls` calls in order, each index once, and what ended the program early; the rest is ignored."""
    returns: list[str] = []
    failure = ""
    for reply in replies[: calls + 1]:
        try:
            frame = json.loads(reply)
        except (ValueError, RecursionError):
            continue
        if not isinstance(frame, dict):
            continue
        index = frame.get("i")  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
        if type(index) is not int:  # pyright: ignore[reportUnknownArgumentType]
            continue
        if index == len(returns) < calls:
            returns.append(reply)
        elif index == -1 and not failure:
            failure = f"{frame.get('e')}: {frame.get('m')}"[:500]  # pyright: ignore[reportUnknownMemberType]
    return tuple(returns), failure
