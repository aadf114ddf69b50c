"""Responses whose thought is ended by force (ScaleRL, arXiv 2510.13786): a phrase is put in, and the answer follows.

An engine behind the protocol of one. A response is first drawn up to its budget of thought. Where it has ended by then
nothing more is done; where its thought has ended, it is drawn on as it is; else the phrase is put in and the answer is
drawn after it. Such a rollout has three turns: the thought, the phrase, which is not trainable, and the answer, which
is what a verifier judges. Every token keeps the log-prob and the version that it was drawn with.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncGenerator, Collection, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from assay.config.run import ForcedStopConfig
from assay.contracts import Rollout, RolloutRequest, Turn, WeightSpan, WeightsRef
from assay.errors import ConfigError, EngineError
from assay.protocols import RolloutEngine
from assay.together import Inbox

AGAIN = "+"
"""Ends the id of the request that goes on."""


@dataclass(frozen=True)
class _Begun:
    """A response of which the first part is drawn."""

    request: RolloutRequest
    first: Rollout
    forced: bool
    """Whether the phrase stands between its parts."""
    before: tuple[int, ...]
    """Token ids that the second part follows: prompt, first part and phrase."""
    left: int
    """Most tokens of the second part."""


class ForcedStop:
    """`engine`, with thoughts that end within their budget."""

    def __init__(
        self,
        engine: RolloutEngine,
        settings: ForcedStopConfig,
        tokenizer: Any,
        *,
        max_new_tokens: int,
        together: bool = False,
    ) -> None:
        """End the thoughts that `engine` draws.

        Args:
            engine: draws the parts.
            settings: budget, phrase and the mark of a thought that is over.
            tokenizer: the policy's.
            max_new_tokens: that of the requests.
            together: whether what goes on waits until the first parts of all requests of a call are there. The batches
                of the engine then do not depend on the clock, and a run repeats bit by bit.

        Raises:
            ConfigError: the phrase has no tokens, or leaves none for the answer.
        """
        self._engine = engine
        self._parts = _Parts(settings, tokenizer)
        self._together = together
        most, size = settings.think_tokens[1], len(self._parts.phrase)
        if not size:
            raise ConfigError("engine.forced_stop: the tokenizer makes no token of the phrase; write another one")
        if most + size >= max_new_tokens:
            raise ConfigError(
                f"engine.forced_stop: {most} tokens of thought and {size} of the phrase leave none for the answer; "
                f"found engine.max_new_tokens = {max_new_tokens}, use more than {most + size}"
            )
        self._under_way: dict[str, asyncio.Event] = {}
        """Requests that are not answered, each with what is set once it is."""
        self._aborted: set[str] = set()

    @property
    def policy_version(self) -> int:
        """Version of the weights in use."""
        return self._engine.policy_version

    async def generate(self, requests: Sequence[RolloutRequest]) -> AsyncGenerator[Rollout, None]:
        """Stream each rollout as it finishes; closing the generator early gives up what is left.

        Raises:
            EngineError: the engine gives no token ids, or does not go on from those that it is given.
        """

        async def collect(drawing: AsyncGenerator[Rollout | list[_Begun], None], inbox: Inbox[Rollout]) -> None:
            async for item in drawing:
                if isinstance(item, list):
                    inbox.start(collect(self._rests(item), inbox))
                else:
                    self._under_way[item.id].set()
                    inbox.put(item)

        self._under_way.update((request.id, asyncio.Event()) for request in requests)
        try:
            async with Inbox[Rollout]() as inbox:
                inbox.start(collect(self._firsts(requests), inbox))
                for _ in requests:
                    yield await inbox.get()
        finally:
            for request in requests:
                self._under_way.pop(request.id).set()
                self._aborted.discard(request.id)

    async def pause(self, mode: Literal["keep", "abort", "wait"] = "keep") -> None:
        """Stop making tokens; with `wait` once every response under way is whole."""
        if mode == "abort":
            self._aborted |= set(self._under_way)
        elif mode == "wait":
            for answered in list(self._under_way.values()):
                await answered.wait()
        await self._engine.pause(mode)

    async def push_weights(self, weights: WeightsRef) -> None:
        """Take new weights; a response whose parts were drawn before and after carries both versions."""
        await self._engine.push_weights(weights)

    async def resume(self) -> None:
        """Go on after `pause`."""
        await self._engine.resume()

    async def abort(self, ids: Collection[str]) -> None:
        """End these requests now, whichever part they are at."""
        self._aborted |= set(self._under_way) & set(ids)
        await self._engine.abort([*ids, *(f"{name}{AGAIN}" for name in ids)])

    async def aclose(self) -> None:
        """Close the engine."""
        await self._engine.aclose()

    async def _firsts(self, requests: Sequence[RolloutRequest]) -> AsyncGenerator[Rollout | list[_Begun], None]:
        """Responses that are over with their first part, and those that go on."""
        wanted = {request.id: request for request in requests}
        held: dict[str, _Begun] = {}
        async for found in self._engine.generate([self._parts.opening(request) for request in requests]):
            request = wanted[found.id]
            first = found.model_copy(update={"sampling": request.sampling})
            begun = self._parts.begun(request, first)
            if begun is None:
                yield first
            elif self._together:
                held[request.id] = begun
            else:
                yield [begun]
        if held:
            yield [held[request.id] for request in requests if request.id in held]

    async def _rests(self, begun: Sequence[_Begun]) -> AsyncGenerator[Rollout, None]:
        """The whole responses; those aborted between their parts have the first one only."""
        ended = [each for each in begun if each.request.id in self._aborted]
        going = {f"{each.request.id}{AGAIN}": each for each in begun if each.request.id not in self._aborted}
        for each in ended:
            yield each.first.model_copy(update={"finish": "abort"})
        async for found in self._engine.generate([self._parts.rest(name, each) for name, each in going.items()]):
            yield self._parts.joined(going[found.id], found)


class _Parts:
    """What the parts of a response are asked for, and how they make one."""

    def __init__(self, settings: ForcedStopConfig, tokenizer: Any) -> None:
        self._settings = settings
        self._tokenizer = tokenizer
        self.phrase = tuple(int(token) for token in tokenizer(settings.phrase, add_special_tokens=False)["input_ids"])

    def opening(self, request: RolloutRequest) -> RolloutRequest:
        """The request for the first part; its budget depends on its seed alone."""
        low, high = self._settings.think_tokens
        budget = low + _number(request.sampling.seed, "budget") % (high - low + 1)
        most = min(budget, request.sampling.max_new_tokens)
        return request.model_copy(update={"sampling": request.sampling.model_copy(update={"max_new_tokens": most})})

    def begun(self, request: RolloutRequest, first: Rollout) -> _Begun | None:
        """What goes on after a first part, or None where the response is over."""
        stopped = any(not turn.trainable for turn in first.turns)  # a stored response may have been stopped before
        if first.finish != "length" or stopped:
            return None
        ids = first.turns[-1].token_ids
        if ids is None or first.prompt_ids is None:
            raise EngineError(
                "engine.forced_stop: the engine gives no token ids to go on from; use 'transformers' or 'vllm', or "
                "remove forced_stop"
            )
        forced = self._settings.end not in self._tokenizer.decode(list(ids), skip_special_tokens=False)
        said = ids + self.phrase * forced
        left = request.sampling.max_new_tokens - len(said)
        return _Begun(request, first, forced, (*first.prompt_ids, *said), left) if left > 0 else None

    def rest(self, name: str, begun: _Begun) -> RolloutRequest:
        """The request for the second part."""
        # The same seed again would draw with the numbers that the first part was drawn with.
        seed = _number(begun.request.sampling.seed, "rest")
        sampling = begun.request.sampling.model_copy(update={"max_new_tokens": begun.left, "seed": seed})
        return begun.request.model_copy(update={"id": name, "sampling": sampling, "prompt_ids": begun.before})

    def joined(self, begun: _Begun, second: Rollout) -> Rollout:
        """Both parts as one rollout."""
        if second.prompt_ids != begun.before:
            raise EngineError(
                "engine.forced_stop: the engine does not go on from the token ids that it is given; use 'transformers' "
                "or 'vllm', or remove forced_stop"
            )
        thought, answer = begun.first.turns[-1], second.turns[-1]
        phrase = Turn(text=self._settings.phrase, token_ids=self.phrase, trainable=False)
        return second.model_copy(
            update={
                "id": begun.request.id,
                "turns": (thought, phrase, answer) if begun.forced else (self._as_one(thought, answer),),
                "prompt_ids": begun.first.prompt_ids,
                "weight_versions": _spans(begun.first.weight_versions, second.weight_versions),
                "sampling": begun.request.sampling,
            }
        )

    def _as_one(self, thought: Turn, answer: Turn) -> Turn:
        ids = (*(thought.token_ids or ()), *(answer.token_ids or ()))
        missing = thought.logprobs is None or answer.logprobs is None
        return Turn(
            text=self._tokenizer.decode(list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False),
            token_ids=ids,
            logprobs=None if missing else (*(thought.logprobs or ()), *(answer.logprobs or ())),
        )


def _spans(first: Sequence[WeightSpan], second: Sequence[WeightSpan]) -> tuple[WeightSpan, ...]:
    """The spans of both parts, counted from the start of the first."""
    found, size = list(first), first[-1].last + 1 if first else 0
    for span in second:
        start = span.first + size
        if found and found[-1].version == span.version:
            start = found.pop().first
        found.append(WeightSpan(version=span.version, first=start, last=span.last + size))
    return tuple(found)


def _number(seed: int, purpose: str) -> int:
    digest = hashlib.blake2b(f"{seed}:{purpose}".encode(), digest_size=4).digest()
    return int.from_bytes(digest, "big") >> 1
