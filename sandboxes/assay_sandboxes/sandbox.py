"""A pool of jails behind the `Sandbox` protocol; the same for every tier."""

import asyncio
import contextlib
import shutil
import threading
import weakref
from collections.abc import AsyncGenerator, Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

from assay.contracts.sandbox import Guarantee, Job, RunResult
from assay.errors import SandboxError, did_you_mean
from assay_sandboxes.languages import ALIASES, KNOWN, PYTHON, find, language_of
from assay_sandboxes.options import SandboxOptions
from assay_sandboxes.slots import Slots
from assay_sandboxes.visit import Backend, Slot

R = TypeVar("R")
_PROBE = Job(source="print(6 * 7)")


@dataclass
class _Worker:
    """A slot and the one thread that may touch it."""

    slot: Slot
    thread: ThreadPoolExecutor


class JailedSandbox:
    """Runs jobs in warm jails, `slots` at a time; candidates and trusted programs never share a jail."""

    def __init__(self, backend: Backend, options: SandboxOptions, *, cleanup: Callable[[], None]) -> None:
        """Start the first jail and run a program in it; raises `SandboxError` where that does not work here."""
        self.name = backend.name
        self.options = options
        self._backend = backend
        self._candidates = [_worker(backend, options, trusted=False, number=number) for number in range(options.slots)]
        self._trusted = [_worker(backend, options, trusted=True, number=number) for number in range(options.slots)]
        self._slots = {False: Slots(list(reversed(self._candidates))), True: Slots(list(self._trusted))}
        self._versions: dict[str, str] = {}
        # Also at an exit that forgot `aclose`; a killed run's jails end with its pipes, its folder at the next start.
        self._finalizer = weakref.finalize(self, _shut, [*self._candidates, *self._trusted], cleanup)
        try:
            self._probe()
        except BaseException:
            self._finalizer()
            raise

    def _probe(self) -> None:
        worker = self._candidates[0]
        result = worker.thread.submit(worker.slot.run, _PROBE).result()
        if result.stdout != "42\n":
            raise SandboxError(
                f"sandbox {self.name!r}: the probe program did not print 42; it ended as {result.outcome} "
                f"({result.detail or result.stderr.strip()[-200:] or 'no message'})"
            )
        self._versions[PYTHON] = worker.thread.submit(lambda: worker.slot.jail().python).result()

    @property
    def guarantees(self) -> frozenset[Guarantee]:
        """What holds on this machine."""
        return self._backend.guarantees

    @property
    def gaps(self) -> Mapping[Guarantee, str]:
        """Why each guarantee that is missing does not hold here."""
        return self._backend.gaps

    def require(self, languages: Collection[str]) -> Mapping[str, str]:
        """Versions of the tools of `languages`, asked inside a jail; raises `SandboxError` where one is missing."""
        for name in languages:
            key = language_of(name, self.options)
            if key in self._versions:
                continue
            row = find(key, self.options)
            if row is None:
                known = [PYTHON, *KNOWN, *self.options.languages]
                hint = did_you_mean(name, [*known, *ALIASES])
                raise SandboxError(
                    f"sandbox {self.name!r}: no language named {name!r}; known: {', '.join(sorted(known))}.{hint}"
                )
            self._versions[key] = self._ask_version(key, row.version)
        return {language_of(name, self.options): self._versions[language_of(name, self.options)] for name in languages}

    def _ask_version(self, language: str, command: tuple[str, ...]) -> str:
        worker = self._candidates[0]
        try:
            answer = worker.thread.submit(worker.slot.tool, command).result()
        except SandboxError as error:
            where = "" if shutil.which(command[0]) is None else " (it is on this machine, but not inside the jail)"
            raise SandboxError(
                f"sandbox {self.name!r}: programs in {language!r} need {command[0]}, which cannot be started{where}; "
                f"install it or leave the language out ({error})"
            ) from None
        return answer

    async def run(self, job: Job) -> RunResult:
        """The job's result; raises `SandboxError` only for the sandbox's own failure."""
        async with self._slots[job.trusted].lend() as worker:
            return self._named(job, await self._in_thread(worker, lambda gone: worker.slot.run(job, gone)))

    async def run_each(self, jobs: Sequence[Job]) -> AsyncGenerator[RunResult, None]:
        """The jobs' results in order, in one visit of one jail."""
        if not jobs:
            return
        async with self._slots[jobs[0].trusted].lend() as worker:
            for job in jobs:
                yield self._named(job, await self._in_thread(worker, lambda gone, job=job: worker.slot.run(job, gone)))

    async def run_pair(self, asking: Job, answering: Job) -> tuple[RunResult, RunResult]:
        """Both results; `asking` runs in a trusted jail, `answering` in a candidate's."""
        # Always in this order, so that two pairs never wait for each other.
        async with self._slots[False].lend() as theirs, self._slots[True].lend() as ours:
            first, second = await self._in_thread(
                ours, lambda gone: ours.slot.pair(asking, theirs.slot, answering, gone), also=theirs.slot
            )
            return self._named(asking, first), self._named(answering, second)

    def _named(self, job: Job, result: RunResult) -> RunResult:
        tool = self._versions.get(language_of(job.language, self.options), "")
        return result.model_copy(update={"tool": tool}) if tool else result

    async def _in_thread(self, worker: _Worker, work: Callable[[threading.Event], R], *, also: Slot | None = None) -> R:
        """Run `work` in the slot's thread; a cancelled caller ends the jail, so that the slot is free at once.

        The event that `work` is given says that the caller is gone, also where the thread has not come to it yet.
        """
        given_up = threading.Event()
        future = worker.thread.submit(work, given_up)
        try:
            return await asyncio.shield(asyncio.wrap_future(future))
        except asyncio.CancelledError:
            given_up.set()
            for slot in (worker.slot, also):
                if slot is not None:
                    slot.cancel()
            with contextlib.suppress(BaseException):
                future.exception(timeout=5)
            raise

    async def aclose(self) -> None:
        """End every jail and remove every file."""
        await asyncio.to_thread(self._finalizer)


def _worker(backend: Backend, options: SandboxOptions, *, trusted: bool, number: int) -> _Worker:
    name = f"{backend.name}-{'trusted' if trusted else 'slot'}-{number}"
    return _Worker(Slot(backend, options, trusted=trusted), ThreadPoolExecutor(1, thread_name_prefix=name))


def _shut(workers: list[_Worker], cleanup: Callable[[], None]) -> None:
    for worker in workers:
        worker.slot.stop()
    for worker in workers:
        with contextlib.suppress(RuntimeError):
            worker.thread.submit(worker.slot.close)
        worker.thread.shutdown(wait=True)
        worker.slot.close()
    cleanup()


__all__ = ["JailedSandbox"]
