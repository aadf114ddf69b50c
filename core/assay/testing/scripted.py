"""A rollout engine without a model: answers, delays and lengths are functions that you give it.

For tests, examples and benchmarks of everything around an engine. It obeys the `RolloutEngine` protocol to the letter:
it streams in order of completion, can be paused, resumed and given new weights in flight (then a rollout carries both
versions), and gives back partial rollouts when aborted. With the same functions, seeds and weights it answers the same.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Literal

from assay.contracts import Finish, Rollout, RolloutRequest, Turn, WeightSpan, WeightsRef
from assay.errors import EngineError
from assay.together import Inbox

AnswerFunction = Callable[[RolloutRequest, int], str]
"""Request and policy version to the answer's text."""
DelayFunction = Callable[[RolloutRequest], float]
"""Request to the seconds that it takes."""

END_TOKEN = 256
"""Id of the token that ends an answer; the others are the bytes of the text."""


@dataclass(eq=False)
class _Flight:
    """One request under way."""

    request: RolloutRequest
    version: int
    nudge: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when it must look up: the engine was paused, or it was aborted."""
    aborted: bool = False
    progress: float = 0.0
    """Share of the answer that is done."""
    switches: list[tuple[int, float]] = field(default_factory=list[tuple[int, float]])
    """Versions that came in flight, each with the progress at that moment."""


class ScriptedEngine:
    """Answers requests by functions; see the module."""

    def __init__(
        self,
        answer: AnswerFunction,
        *,
        delay_s: float | DelayFunction = 0.0,
        concurrency: int = 1_000_000,
        logprob: float = -1.0,
    ) -> None:
        """Answer with `answer`, each after `delay_s`, at most `concurrency` at once, all tokens with `logprob`."""
        self.answer = answer
        self.delay_s = delay_s
        self.logprob = logprob
        self.closed = False
        self.pushed: list[WeightsRef] = []
        """Every weights reference that was pushed, in order."""
        self._version = 0
        self._running = asyncio.Event()
        self._running.set()
        self._idle = asyncio.Event()
        self._idle.set()
        self._slots = asyncio.Semaphore(concurrency)
        self._flights: dict[str, _Flight] = {}

    @property
    def policy_version(self) -> int:
        """Version of the last weights that were pushed."""
        return self._version

    async def generate(self, requests: Sequence[RolloutRequest]) -> AsyncIterator[Rollout]:
        """Stream each rollout as it finishes."""
        if self.closed:
            raise EngineError("the scripted engine is closed")
        if self._running.is_set() and not any(self._delay(request) for request in requests):
            for request in requests:
                yield self._rollout(_Flight(request, self._version, progress=1.0))
            return
        async with Inbox[Rollout]() as inbox:
            for request in sorted(requests, key=lambda request: request.priority):
                inbox.start(self._draw(request, inbox))
            for _ in requests:
                yield await inbox.get()

    async def pause(self, mode: Literal["keep", "abort", "wait"] = "keep") -> None:
        """Stop making tokens; see the protocol."""
        if mode == "wait":
            await self._idle.wait()
        self._running.clear()
        for flight in self._flights.values():
            flight.aborted = flight.aborted or mode == "abort"
            flight.nudge.set()
        await asyncio.sleep(0)

    async def push_weights(self, weights: WeightsRef) -> None:
        """Take new weights; answers in flight carry both versions."""
        self._version = weights.version
        self.pushed.append(weights)
        for flight in self._flights.values():
            flight.switches.append((weights.version, flight.progress))

    async def resume(self) -> None:
        """Go on after `pause`."""
        for flight in self._flights.values():
            if not flight.aborted:
                flight.nudge.clear()
        self._running.set()

    async def abort(self, ids: Collection[str]) -> None:
        """End these requests now; their partial answers come back with finish `abort`."""
        for name in ids:
            flight = self._flights.get(name)
            if flight is not None:
                flight.aborted = True
                flight.nudge.set()

    async def aclose(self) -> None:
        """Refuse further requests."""
        self.closed = True

    async def _draw(self, request: RolloutRequest, inbox: Inbox[Rollout]) -> None:
        async with self._slots:
            flight = self._flights[request.id] = _Flight(request, self._version)
            self._idle.clear()
            try:
                await self._work(flight)
                inbox.put(self._rollout(flight))
            finally:
                del self._flights[request.id]
                if not self._flights:
                    self._idle.set()

    async def _work(self, flight: _Flight) -> None:
        """Let the request's time pass, unless the engine is paused or the request aborted."""
        loop = asyncio.get_running_loop()
        total = self._delay(flight.request)
        while flight.progress < 1.0 and not flight.aborted:
            await self._running.wait()
            began = loop.time()
            left_s = total * (1.0 - flight.progress)
            try:
                async with asyncio.timeout(left_s):
                    await flight.nudge.wait()
            except TimeoutError:
                flight.progress = 1.0
            else:
                flight.progress += min(1.0 - flight.progress, (loop.time() - began) / total if total else 1.0)
                if not flight.aborted:
                    await self._running.wait()
                    flight.nudge.clear()

    def _delay(self, request: RolloutRequest) -> float:
        return self.delay_s(request) if callable(self.delay_s) else self.delay_s

    def _rollout(self, flight: _Flight) -> Rollout:
        request = flight.request
        text, finish = self._text(flight)
        tokens = [*text.encode()]
        if finish == "stop":
            tokens.append(END_TOKEN)
        return Rollout(
            id=request.id,
            task_id=request.task.id,
            group_id=request.group_id,
            turns=(Turn(text=text, token_ids=tuple(tokens), logprobs=(self.logprob,) * len(tokens)),),
            prompt_ids=_prompt(request) if request.prompt_ids is None else request.prompt_ids,
            weight_versions=_spans(flight, len(tokens)),
            finish=finish,
            sampling=request.sampling,
        )

    def _text(self, flight: _Flight) -> tuple[str, Finish]:
        request, sampling = flight.request, flight.request.sampling
        text = self.answer(request, flight.version)
        ends = [text.find(stop) for stop in sampling.stop if stop in text]
        text = text[: min(ends)] if ends else text
        finish: Finish = "stop"
        # An answer that goes on has said what stands in its prompt beyond the task's.
        said = 0 if request.prompt_ids is None else len(request.prompt_ids) - len(_prompt(request))
        data = text.encode()[said:]
        limit = sampling.max_new_tokens
        if len(data) >= limit:
            finish, data = "length", data[:limit]
        if flight.aborted:
            finish, data = "abort", data[: int(len(data) * flight.progress)]
        return data.decode(errors="ignore"), finish


def _prompt(request: RolloutRequest) -> tuple[int, ...]:
    return tuple(request.task.prompt.encode())


def _spans(flight: _Flight, tokens: int) -> tuple[WeightSpan, ...]:
    """Which version made which tokens."""
    if not tokens:
        return ()
    spans: list[WeightSpan] = []
    version, first = flight.version, 0
    for switched_to, progress in flight.switches:
        cut = int(tokens * progress)
        if cut > first:
            spans.append(WeightSpan(version=version, first=first, last=cut - 1))
            first = cut
        version = switched_to
    if first < tokens:
        spans.append(WeightSpan(version=version, first=first, last=tokens - 1))
    return tuple(spans)
