"""One reward source of a panel: caching, batching, guarding, health, and the judgement of every candidate."""

import asyncio
import contextlib
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Literal, NamedTuple

from assay.contracts import Candidate, Evidence, Judgement, Limits, Verdict
from assay.errors import JudgingError
from assay.judging.batcher import Batcher, FairShare
from assay.judging.cache import ContentKeys, VerdictCache, digest
from assay.judging.guard import Guard, Judged
from assay.judging.health import Health

Observe = Callable[[Candidate, Judgement], None]
Recall = Callable[["Source", Candidate, str], Judged | None]
"""Source, candidate and content key to what is known from before and still holds, or None: then it is judged."""


class Identity(NamedTuple):
    """What a judgement says of its source."""

    label: str
    """Name in tables; unique within the panel."""
    version: str
    """Version of the distribution."""
    options_hash: str
    fingerprint: str
    """Changes with anything that can change a verdict: distribution, version, name, options, weights."""


@dataclass
class Policy:
    """What the `judging` table says that concerns a single source."""

    on_failed: Literal["mask", "stop"] = "mask"
    on_unhealthy: Literal["stop", "mask"] = "stop"
    stop_if_failed_above: float = 0.5
    cache: bool = True


@dataclass
class Device:
    """One device that several sources share: one call at a time, by weight."""

    share: FairShare = field(default_factory=FairShare)
    asking: list["Source"] = field(default_factory=list["Source"])
    busy: bool = False

    def ask(self, source: "Source") -> None:
        """A source has a batch that could leave."""
        if source not in self.asking:
            self.share.ask(source)
            self.asking.append(source)
        self.next()

    def next(self) -> None:
        """Let the source whose turn it is send a batch, if the device is free."""
        while self.asking and not self.busy:
            first = self.share.first(self.asking)
            chosen = next(source for source in self.asking if source is first)
            self.asking.remove(chosen)
            self.busy = chosen.send_one()

    def free(self) -> None:
        """A call has come back."""
        self.busy = False
        self.next()


@dataclass(eq=False)
class _Waiting:
    candidates: tuple[Candidate, ...]
    future: "asyncio.Future[Sequence[Judged]]"


class Statistics:
    """Counts and latencies of one source."""

    def __init__(self) -> None:
        """Start at zero."""
        self.counts: Counter[str] = Counter()
        self.latencies: deque[float] = deque(maxlen=4096)
        self.slowest: tuple[float, str] = (0.0, "")

    def record(self, judgement: Judgement, failure: str) -> None:
        """Count one judgement."""
        self.counts[judgement.status] += 1
        if judgement.verdict.status != "scored":
            self.counts[f"{judgement.status}_{judgement.verdict.fault}"] += 1
        if judgement.cached:
            self.counts["cached"] += 1
            return
        self.latencies.append(judgement.latency_s)
        if judgement.latency_s > self.slowest[0]:
            self.slowest = (judgement.latency_s, judgement.task_id)
        if failure in ("timed out", "out of memory", "killed", "too large"):
            self.counts["kills"] += 1

    def metrics(self) -> dict[str, float]:
        """Counts, and latencies in milliseconds over the last 4,096 judgements."""
        found: dict[str, float] = {
            name: float(self.counts[name]) for name in ("scored", "abstained", "failed", "cached", "kills")
        }
        found["abstained_ours"] = float(self.counts["abstained_ours"])
        found["failed_candidate"] = float(self.counts["failed_candidate"])
        ordered = sorted(self.latencies)
        if ordered:
            for name, share in (("p50_ms", 0.50), ("p95_ms", 0.95)):
                found[name] = 1000 * ordered[min(len(ordered) - 1, int(share * len(ordered)))]
            found["max_ms"] = 1000 * self.slowest[0]
        return found


class Source:
    """Judges candidates with one source; every candidate gets exactly one judgement.

    Equal content is judged once, also while the first is still under way, unless the source gives step scores: a
    decision is shared, spans never are. Raises `JudgingError` only where the policy
    says that the run shall stop.
    """

    def __init__(
        self,
        guard: Guard,
        limits: Limits,
        identity: Identity,
        *,
        policy: Policy,
        keys: ContentKeys,
        cache: VerdictCache,
        observe: Observe | None = None,
        recall: Recall | None = None,
        device: Device | None = None,
        takes_batches: bool = True,
    ) -> None:
        """`keys` and `cache` are shared by the sources of a panel; `takes_batches` is false for worker processes."""
        self.guard = guard
        self.limits = limits
        self.identity = identity
        self.policy = policy
        self.health = Health(threshold=policy.stop_if_failed_above)
        self.statistics = Statistics()
        self.observe = observe
        self.recall = recall
        self.fingerprint = digest(identity.fingerprint)
        """What judgements keep of the identity's fingerprint."""
        self._keys = keys
        self._cache = cache
        self._caching = policy.cache and limits.deterministic and limits.scope == "rollout"
        self._flying: dict[str, asyncio.Future[Judged | None]] = {}
        self._gives_steps = False
        self._device = device
        self._batcher: Batcher[_Waiting] | None = None
        if limits.scope == "rollout" and (device is not None or (takes_batches and limits.max_batch > 1)):
            self._batcher = Batcher(limits)
        self._room = asyncio.Semaphore(limits.concurrency)
        self._timer: asyncio.TimerHandle | None = None
        self._calls: set[asyncio.Task[None]] = set()
        if device is not None:
            device.share.join(self, limits.weight)

    @property
    def queue_length(self) -> int:
        """Candidates that wait for a call."""
        return len(self._batcher) if self._batcher is not None else 0

    @property
    def immediate(self) -> bool:
        """Whether it answers without ever waiting, so that nothing is gained by a task of its own."""
        return self._batcher is None and getattr(self.guard, "immediate", False)

    async def judge(self, candidate: Candidate, key: str | None = None) -> Judgement:
        """The judgement of one candidate; `key` is its content key where the caller knows it."""
        self._stop_if_unhealthy()
        key = key or self._keys.key(candidate)
        started_at = datetime.now(UTC)
        if candidate.rollout.finish == "error":
            return self._record(candidate, key, started_at, _not_drawn())
        if self.recall is not None and (judged := self.recall(self, candidate, key)) is not None:
            return self._record(candidate, key, started_at, judged, cached=True)
        if self._masked():
            return self._record(candidate, key, started_at, self._mask())
        if not self._caching:
            return self._record(candidate, key, started_at, (await self._judge([candidate]))[0])
        while flying := self._flying.get(self._sharing(candidate, key)):
            shared = await asyncio.shield(flying)
            if shared is not None:
                return self._record(candidate, key, started_at, shared, cached=True)
        known = self._cache.get(self.identity.fingerprint, self._sharing(candidate, key))
        if known is not None:
            return self._record(candidate, key, started_at, Judged(known), cached=True)
        return self._record(candidate, key, started_at, await self._lead(candidate, key))

    async def judge_group(self, candidates: Sequence[Candidate]) -> Sequence[Judgement]:
        """The judgements of a whole group in one call, for a source that must see it together."""
        self._stop_if_unhealthy()
        started_at = datetime.now(UTC)
        if self.recall is not None:
            known = [self.recall(self, candidate, self._keys.key(candidate)) for candidate in candidates]
            if (recalled := [judged for judged in known if judged is not None]) and len(recalled) == len(candidates):
                return [
                    self._record(candidate, self._keys.key(candidate), started_at, judged, cached=True)
                    for candidate, judged in zip(candidates, recalled, strict=True)
                ]
        if self._masked():
            answers: Sequence[Judged] = [self._mask()] * len(candidates)
        else:
            answers = await self._judge(candidates)
        answers = [
            _not_drawn() if candidate.rollout.finish == "error" else judged
            for candidate, judged in zip(candidates, answers, strict=True)
        ]
        return [
            self._record(candidate, self._keys.key(candidate), started_at, judged)
            for candidate, judged in zip(candidates, answers, strict=True)
        ]

    async def aclose(self) -> None:
        """Cancel what is under way and let go of the source."""
        if self._timer is not None:
            self._timer.cancel()
        for task in list(self._calls):
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        await self.guard.aclose()

    # ---- one execution per content ----

    def _sharing(self, candidate: Candidate, key: str) -> str:
        """Who shares a verdict: equal contents share a decision; spans stay with the rollout that they speak of."""
        return f"{key} {candidate.rollout.id}" if self._gives_steps else key

    async def _lead(self, candidate: Candidate, key: str) -> Judged:
        """Judge, and let everybody who comes with the same content meanwhile share the verdict."""
        future: asyncio.Future[Judged | None] = asyncio.get_running_loop().create_future()
        name = self._sharing(candidate, key)
        self._flying[name] = future
        shared = None
        try:
            judged = (await self._judge([candidate]))[0]
            self._gives_steps = self._gives_steps or bool(judged.verdict.steps)
            self._cache.put(self.identity.fingerprint, self._sharing(candidate, key), judged.verdict)
            shared = judged if self._sharing(candidate, key) == name else None
            return judged
        finally:
            # Followers share neither a cancellation that was meant for this caller nor spans: given None they start
            # over.
            del self._flying[name]
            future.set_result(shared)

    # ---- calls ----

    async def _judge(self, candidates: Sequence[Candidate]) -> Sequence[Judged]:
        if self._batcher is None:
            async with self._room:
                return await self.guard.judge(candidates)
        loop = asyncio.get_running_loop()
        waiting = _Waiting(tuple(candidates), loop.create_future())
        self._batcher.add(waiting, tokens=sum(map(_length, candidates)), now=loop.time())
        self._pump()
        try:
            return await waiting.future
        except asyncio.CancelledError:
            self._batcher.discard(waiting)
            raise

    def _pump(self) -> None:
        """Send what is due, and wake up again when the next batch is."""
        assert self._batcher is not None
        loop = asyncio.get_running_loop()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        while self._batcher.due(loop.time()):
            if self._device is not None:
                self._device.ask(self)
                return
            self.send_one()
        due_at = self._batcher.due_at()
        if due_at is not None:
            self._timer = loop.call_at(due_at + 1e-4, self._pump)

    def send_one(self) -> bool:
        """Send one batch if one is due; whether a call was started."""
        assert self._batcher is not None
        if not self._batcher.due(asyncio.get_running_loop().time()):
            return False
        batch = self._batcher.take()
        task = asyncio.get_running_loop().create_task(self._send(batch, self._batcher.wave))
        self._calls.add(task)
        task.add_done_callback(self._calls.discard)
        return True

    async def _send(self, batch: list[_Waiting], wave: int) -> None:
        assert self._batcher is not None
        try:
            candidates = [candidate for waiting in batch for candidate in waiting.candidates]
            started = time.monotonic()
            judged = await self.guard.judge(candidates, wave)
            if self._device is not None:
                self._device.share.charge(self, time.monotonic() - started)
            position = 0
            for waiting in batch:
                end = position + len(waiting.candidates)
                if not waiting.future.done():
                    waiting.future.set_result(judged[position:end])
                position = end
        finally:
            for waiting in batch:
                waiting.future.cancel()
            self._batcher.done()
            self._pump()  # before the device is free, so that this source asks for the next turn too
            if self._device is not None:
                self._device.free()

    # ---- what a verdict means for the run ----

    def _record(
        self, candidate: Candidate, key: str, started_at: datetime, judged: Judged, *, cached: bool = False
    ) -> Judgement:
        judgement = Judgement(
            rollout_id=candidate.rollout.id,
            task_id=candidate.task.id,
            source=self.identity.label,
            version=self.identity.version,
            options_hash=self.identity.options_hash,
            input_hash=key,
            fingerprint=self.fingerprint,
            verdict=judged.verdict,
            output=judged.output,
            attempt=judged.attempt,
            started_at=started_at,
            latency_s=0.0 if cached else judged.latency_s,
            cached=cached,
        )
        self.statistics.record(judgement, judged.failure)
        if not cached and judged.failure != _MASKED:
            self.health.record(judged.failure if judged.verdict.fault == "ours" else "")
        if self.observe is not None:
            self.observe(candidate, judgement)
        ours_failed = judgement.status == "failed" and judged.verdict.fault == "ours"
        if ours_failed and self.policy.on_failed == "stop":
            raise JudgingError(
                f"source {self.identity.label!r}: failed on task {candidate.task.id!r}: {judgement.reason}. "
                "The run stops at the first failure because of judging.on_failed = 'stop'"
            )
        self._stop_if_unhealthy()
        return judgement

    def _stop_if_unhealthy(self) -> None:
        if self.policy.on_unhealthy == "stop" and self.health.unhealthy:
            slowest_s, task_id = self.statistics.slowest
            raise JudgingError(
                f"source {self.identity.label!r}: {self.health.summary()}; the run stops above {self.health.limit}. "
                f"Slowest: task {task_id!r}, {slowest_s:.2g} s. Look at its verdicts with: assay show latest --status "
                "failed, or set judging.on_unhealthy = 'mask'"
            )

    def _masked(self) -> bool:
        return self.policy.on_unhealthy == "mask" and self.health.unhealthy and not self.health.probes()

    def _mask(self) -> Judged:
        reason = f"the source is masked: {self.health.summary()}"
        evidence = (Evidence(kind="failure", summary=_MASKED),)
        return Judged(Verdict(status="failed", reason=reason, fault="ours", evidence=evidence), failure=_MASKED)


_MASKED = "masked"


def _not_drawn() -> Judged:
    """Of a response that its engine gave up: what text there is was not the candidate's whole answer."""
    kind = "not drawn"
    evidence = (Evidence(kind="failure", summary=kind),)
    verdict = Verdict(status="failed", reason="the engine could not draw this answer", fault="ours", evidence=evidence)
    return Judged(verdict, failure=kind)


def _length(candidate: Candidate) -> int:
    """Tokens of a candidate where the engine gave them, else about four characters each."""
    turns = candidate.rollout.turns
    tokens = sum(len(turn.token_ids) if turn.token_ids is not None else len(turn.text) // 4 + 1 for turn in turns)
    return tokens + len(candidate.rollout.prompt_ids or ())
