"""Turns whatever a reward source does into one verdict per candidate: answers, errors, hangs and broken contracts.

Guaranteed: `judge` gives as many verdicts as candidates, in order, and never raises for what a source does; a number
comes out only where the source returned a scored verdict inside its declared range; a batch that fails is asked again
one by one, so one bad candidate costs one verdict. Not guaranteed: that inline code which never awaits is interrupted;
what may hang belongs into a worker process.
"""

import asyncio
import logging
import random
import time
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from pydantic import TypeAdapter, ValidationError
from pydantic_core import PydanticSerializationError

from assay.contracts import Candidate, Evidence, Fault, Limits, ResourceLimits, Task, Verdict
from assay.errors import TransientError
from assay.judging import rebuild
from assay.judging.answers import ContractError, checked_batch, checked_verdict, outside
from assay.judging.capture import judging_context, shortened
from assay.judging.health import backoff_s
from assay.judging.order import OrderWatch
from assay.judging.tracked import Answer, CallPool, ProgramKey
from assay.judging.worker import describe
from assay.protocols import RewardSource
from assay.verifier import FunctionSource

log = logging.getLogger("assay")

_CANDIDATES = TypeAdapter(Sequence[Candidate])
_VERDICTS = TypeAdapter(list[Verdict])


@dataclass(frozen=True)
class Judged:
    """One verdict and what it took."""

    verdict: Verdict
    output: str = ""
    attempt: int = 1
    latency_s: float = 0.0
    failure: str = ""
    """The kind of failure in a few words (`timed out`, `raised ValueError`), or an empty string."""


class Guard(Protocol):
    """Judges candidates and never raises for what the source does."""

    async def judge(self, batch: Sequence[Candidate], wave: int = 0) -> Sequence[Judged]:
        """One judged verdict per candidate, in order; batches whose candidates waited together have one `wave`."""
        ...

    async def aclose(self) -> None:
        """Let go of the source."""
        ...


class _CallError(Exception):
    """A call that gave no usable answer."""

    def __init__(
        self,
        kind: str,
        reason: str,
        *,
        fault: Fault = "ours",
        transient: bool = False,
        output: str = "",
        latency_s: float = 0.0,
    ) -> None:
        super().__init__(reason)
        self.kind = kind
        self.fault: Fault = fault
        self.transient = transient
        self.output = output
        self.latency_s = latency_s
        self.attempt = 1

    def judged(self) -> Judged:
        evidence = (Evidence(kind="failure", summary=self.kind),)
        verdict = Verdict(status="failed", reason=str(self), fault=self.fault, evidence=evidence)
        return Judged(verdict, shortened(self.output), self.attempt, self.latency_s, self.kind)


class _Answered(NamedTuple):
    verdicts: Sequence[object]
    output: str
    latency_s: float


class _Retrying:
    """The policy that inline and process sources share: retries, splitting, checks."""

    def __init__(self, limits: Limits, random_source: random.Random) -> None:
        self.limits = limits
        self.random = random_source
        self.calls = 0
        self.retried = 0

    async def judge(self, batch: Sequence[Candidate], wave: int = 0) -> Sequence[Judged]:
        """One judged verdict per candidate, in order."""
        try:
            return await self._attempts(batch)
        except _CallError as failure:
            if len(batch) == 1 or self.limits.scope == "group":
                return [failure.judged()] * len(batch)
        return await self._one_by_one(batch)

    async def _one_by_one(self, batch: Sequence[Candidate]) -> Sequence[Judged]:
        """Each candidate alone, as many at once as the source may have calls."""
        room = asyncio.Semaphore(self.limits.concurrency)

        async def single(candidate: Candidate) -> Judged:
            async with room:
                try:
                    return (await self._attempts([candidate]))[0]
                except _CallError as failure:
                    return failure.judged()

        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(single(candidate)) for candidate in batch]
        return [task.result() for task in tasks]

    async def _attempts(self, batch: Sequence[Candidate]) -> Sequence[Judged]:
        attempt = 1
        while True:
            try:
                self.calls += 1
                answered = await self._call(batch)
            except _CallError as failure:
                failure.attempt = attempt
                if not failure.transient or attempt > self.limits.retries:
                    raise
                self.retried += 1
                await asyncio.sleep(backoff_s(attempt, self.random.random()))
                attempt += 1
            else:
                output = shortened(answered.output)
                return [self._checked(found, output, attempt, answered.latency_s) for found in answered.verdicts]

    async def _call(self, batch: Sequence[Candidate]) -> _Answered:
        raise NotImplementedError

    def _checked(self, found: object, output: str, attempt: int, latency_s: float) -> Judged:
        """The verdict as it may be stored; one that breaks the contract is failed, its neighbours are not."""
        try:
            if isinstance(found, ContractError):
                raise found
            verdict = checked_verdict(found)
            complaint = outside(verdict, self.limits)
            if complaint is not None:
                raise ContractError(complaint)
        except ContractError as error:
            broken = _CallError("broken contract", str(error), output=output, latency_s=latency_s)
            broken.attempt = attempt
            return broken.judged()
        return Judged(verdict, output, attempt, latency_s)


class InlineGuard(_Retrying):
    """Guards a source that runs in this process."""

    def __init__(
        self, source: RewardSource, limits: Limits, random_source: random.Random, *, copies: bool = False
    ) -> None:
        """Judge with `source` under `limits`; with `copies` it is not trusted.

        It then gets candidates of its own to spoil, and whether it keeps the order of its batches is watched.
        """
        super().__init__(limits, random_source)
        watched = copies and limits.deterministic and limits.scope == "rollout"
        self.order = OrderWatch() if watched else None
        self._asking_again = asyncio.Lock()
        self.source = source
        self.copies = copies
        self.immediate = isinstance(source, FunctionSource)
        """Whether the source is a plain function, which never awaits."""
        self.batch_s = limits.timeout_s
        """Wall time of a batch: at first that of one candidate; longer once candidates proved to be slow, not stuck."""
        self._abandoned: set[asyncio.Task[Any]] = set()

    async def aclose(self) -> None:
        """Close the source."""
        await self.source.aclose()

    async def judge(self, batch: Sequence[Candidate], wave: int = 0) -> Sequence[Judged]:
        """One judged verdict per candidate, in order."""
        if self.order is None or len(batch) == 1:
            return await super().judge(batch)
        if self.order.broken:
            return await self._one_by_one(batch)
        try:
            judged = await self._attempts(batch)
            verdicts = [item.verdict for item in judged]
            # What is known of the order when a batch leaves holds for it: none leaves while another is asked again.
            async with self._asking_again:
                picked = () if self.order.broken else self.order.picks(verdicts, wave, self.random)
                if picked:
                    again = await self._attempts([batch[place] for place in picked])
                    if not self.order.compare(verdicts, picked, [item.verdict for item in again]):
                        log.warning(
                            "a source answers its batches in another order than it got them: from now on it gets "
                            "single ones"
                        )
        except _CallError:
            return await self._one_by_one(batch)
        return await self._one_by_one(batch) if self.order.broken else judged

    async def _one_by_one(self, batch: Sequence[Candidate]) -> Sequence[Judged]:
        judged = await super()._one_by_one(batch)
        if not any(item.failure for item in judged):
            self.batch_s = max(self.batch_s, min(2 * sum(i.latency_s for i in judged), len(batch) * self.batch_s))
        return judged

    async def _call(self, batch: Sequence[Candidate]) -> _Answered:
        if self.immediate:
            return self._answer_at_once(batch)
        timeout_s = self.limits.timeout_s if len(batch) == 1 else self.batch_s
        context, captured = judging_context()
        loop = asyncio.get_running_loop()
        started = loop.time()
        task = loop.create_task(self._ask(batch), context=context)
        finished: asyncio.Future[None] = loop.create_future()
        task.add_done_callback(lambda _: finished.done() or finished.set_result(None))
        timer = loop.call_later(timeout_s, lambda: finished.done() or finished.set_result(None))
        try:
            await finished
        except asyncio.CancelledError:
            task.cancel()
            raise
        finally:
            timer.cancel()
        latency_s = loop.time() - started
        if not task.done():
            self._abandon(task)
            raise _CallError(
                "timed out",
                f"timed out after {timeout_s:g} s",
                fault=self.limits.limit_fault,
                output=captured.text(),
                latency_s=latency_s,
            )
        try:
            answer = task.result()
        except BaseException as error:  # whatever a source raises is its failure, not ours
            raise _broken(error, captured.text(), latency_s) from error
        return _Answered(answer, captured.text(), latency_s / len(batch))

    def _answer_at_once(self, batch: Sequence[Candidate]) -> _Answered:
        """The answer of a source that is a plain function: without a task, since there is nothing to wait for."""
        context, captured = judging_context()
        started = time.monotonic()
        try:
            context.run(self._ask(batch).send, None)
        except StopIteration as finished:
            answer: Sequence[object] = finished.value
        except BaseException as error:  # whatever a source raises is its failure, not ours
            raise _broken(error, captured.text(), time.monotonic() - started) from error
        else:
            raise AssertionError("a function source does not await")
        return _Answered(answer, captured.text(), (time.monotonic() - started) / len(batch))

    async def _ask(self, batch: Sequence[Candidate]) -> Sequence[object]:
        if self.copies:
            batch = [candidate.model_copy(deep=True) for candidate in batch]
        try:
            answer = checked_batch(await self.source.judge(batch), len(batch))
            return [self._own(found) for found in answer] if self.copies else answer
        except (KeyboardInterrupt, SystemExit) as error:
            # These would end the event loop instead of this call.
            raise RuntimeError(f"{type(error).__name__} raised by a reward source") from error

    def _own(self, found: object) -> object:
        """The verdict as the contract reads it, apart from what the source still holds."""
        try:
            return Verdict.model_validate_json(checked_verdict(found).model_dump_json(warnings=False))
        except ContractError as error:
            return error
        except (ValidationError, PydanticSerializationError) as error:
            return ContractError(f"returned a verdict that cannot be read: {describe(error)}")

    def _abandon(self, task: "asyncio.Task[Any]") -> None:
        """Cancel without waiting: a source that swallows its cancellation must not hold up anything."""
        task.cancel()
        self._abandoned.add(task)
        task.add_done_callback(self._forget)

    def _forget(self, task: "asyncio.Task[Any]") -> None:
        self._abandoned.discard(task)
        if not task.cancelled():
            task.exception()  # looked at, so that the loop does not complain


def _broken(error: BaseException, output: str, latency_s: float) -> _CallError:
    """The error of an inline call as the guard words it."""
    if isinstance(error, ContractError):
        return _CallError("broken contract", str(error), output=output, latency_s=latency_s)
    return _CallError(
        f"raised {type(error).__name__}",
        describe(error),
        transient=isinstance(error, TransientError),
        output=output + "".join(traceback.format_exception(error)),
        latency_s=latency_s,
    )


class ProcessGuard(_Retrying):
    """Guards a source that runs in killable worker processes."""

    def __init__(self, pool: CallPool, key: ProgramKey, limits: Limits, random_source: random.Random) -> None:
        """Judge with the program `key` of `pool` under `limits`."""
        super().__init__(limits, random_source)
        self.pool = pool
        self.key = key
        self.resources = ResourceLimits(wall_s=limits.timeout_s, cpu_s=limits.cpu_s, memory_mib=limits.memory_mib)

    async def aclose(self) -> None:
        """Nothing: the pool ends its workers."""

    async def check_task(self, task: Task) -> str | None:
        """What the source finds wrong with a task (an unreadable gold), or None."""
        payload = rebuild.CHECK + task.model_dump_json().encode()
        answer = await asyncio.wrap_future(self.pool.submit(self.key, payload, self.resources))
        if answer.status != "ok":
            return f"checking the task failed: {answer.detail}"
        return answer.body.decode() or None

    async def _call(self, batch: Sequence[Candidate]) -> _Answered:
        if len(batch) > 1 and self.limits.scope == "rollout":
            raise _CallError("split", "workers take items, not batches")
        payload = _CANDIDATES.dump_json(batch)
        answer = await asyncio.wrap_future(self.pool.submit(self.key, payload, self.resources))
        if answer.status != "ok":
            raise self._failed(answer)
        try:
            verdicts = _VERDICTS.validate_json(answer.body)
        except ValidationError as error:
            complaint = f"{error.errors()[0]['msg']} in the verdict it returned"
            raise _CallError("broken contract", complaint, output=answer.output) from error
        return _Answered(checked_batch(verdicts, len(batch)), answer.output, answer.latency_s)

    def _failed(self, answer: Answer) -> _CallError:
        if answer.status == "raised":
            name = answer.detail.partition(":")[0]
            kind = "broken contract" if name == ContractError.__name__ else f"raised {name}"
            reason = answer.detail.removeprefix(f"{ContractError.__name__}: ")
            return _CallError(
                kind, reason, transient=answer.transient, output=answer.output, latency_s=answer.latency_s
            )
        fault: Fault = "ours" if answer.infra else self.limits.limit_fault
        kind = "could not start" if answer.infra else answer.status.replace("_", " ")
        return _CallError(
            kind,
            answer.detail,
            fault=fault,
            transient=answer.infra,
            output=answer.output,
            latency_s=answer.latency_s,
        )


def with_overrides(limits: Limits, *, timeout_s: float | None, memory_mib: int | None) -> Limits:
    """The declared limits with what the config overrides."""
    update: Mapping[str, Any] = {"timeout_s": timeout_s, "memory_mib": memory_mib}
    return limits.model_copy(update={key: value for key, value in update.items() if value is not None})
