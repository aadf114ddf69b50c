"""The conformance suite of a rollout engine, ours or anybody's.

    from assay.testing.engine_suite import engine_suite
    test_my_engine = engine_suite(lambda: MyEngine(...))

An engine must answer each request exactly once and as it finishes, keep ids, obey the length limit, explain every token
(log-probs where it has them, versions always), give the same tokens for the same seed alone and in a crowd, and obey
pause, push, resume and abort while requests are under way. What an engine cannot show is skipped with a reason.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import NamedTuple

from assay.contracts import Message, Rollout, RolloutRequest, Sampling, Task, WeightsRef
from assay.protocols import RolloutEngine
from assay.testing.reward_suite import CheckResult

OpenEngine = Callable[[], RolloutEngine]
"""A fresh engine; each check opens one and closes it."""
Push = Callable[[int], WeightsRef]
"""A version to weights that the engine can take."""

LONG_TOKENS = 48
FLIGHT_TOKENS = 256
ATTEMPTS = 5
DEADLINE_S = 180.0


class EngineCase(NamedTuple):
    """What the suite asks an engine."""

    open: OpenEngine
    tasks: Sequence[Task]
    push: Push
    deterministic: bool


def sum_tasks(count: int = 4) -> list[Task]:
    """Short questions of different lengths."""
    return [
        Task(id=f"t{place}", messages=(Message(role="user", content=f"{place}+{'1' * place}1="),), reference=None)
        for place in range(count)
    ]


def run_engine_suite(
    open_engine: OpenEngine,
    *,
    tasks: Sequence[Task] | None = None,
    push: Push | None = None,
    deterministic: bool = True,
) -> list[CheckResult]:
    """The result of every check, in a fixed order.

    Args:
        open_engine: makes a fresh engine. Its answers should be longer than a few tokens, or checks of requests under
            way are skipped.
        tasks: what is asked; at least two.
        push: makes the weights reference of a version; default the policy shared in memory.
        deterministic: whether the same seed must give the same tokens alone and among others.
    """
    asked = list(tasks or sum_tasks())
    case = EngineCase(open_engine, asked, push or _in_memory, deterministic)
    checks: tuple[tuple[str, Callable[[EngineCase], Awaitable[str | None]]], ...] = (
        ("answers each request once", _each_once),
        ("explains every token", _explained),
        ("same seed, same tokens", _same_seed),
        ("streams short answers first", _streams),
        ("obeys stop texts", _stops),
        ("goes on from token ids", _goes_on),
        ("pauses and goes on", _pauses),
        ("takes weights in flight", _pushes),
        ("gives back what it aborts", _aborts),
        ("survives a closed stream", _forsaken),
        ("pause by abort and by waiting", _other_pauses),
    )
    return [asyncio.run(_check(name, check, case)) for name, check in checks]


def engine_suite(open_engine: OpenEngine, **settings: object) -> Callable[[], None]:
    """A pytest test that runs the suite; further settings are those of `run_engine_suite`."""

    def test_engine() -> None:
        results = run_engine_suite(open_engine, **settings)  # pyright: ignore[reportArgumentType]  (passed on as given)
        failed = [f"{result.check}: {result.detail}" for result in results if result.status == "failed"]
        assert not failed, "; ".join(failed)

    return test_engine


def _in_memory(version: int) -> WeightsRef:
    return WeightsRef(version=version)


class _Skip(Exception):  # noqa: N818  (no error: the engine cannot show it)
    """The check cannot be made with this engine."""


async def _check(name: str, check: Callable[[EngineCase], Awaitable[str | None]], case: EngineCase) -> CheckResult:
    try:
        async with asyncio.timeout(DEADLINE_S):
            wrong = await check(case)
    except _Skip as reason:
        return CheckResult(name, "skipped", str(reason))
    except TimeoutError:
        return CheckResult(name, "failed", f"not done after {DEADLINE_S:g} s")
    except (Exception, BaseExceptionGroup) as error:  # an engine may raise anything; here that is the finding
        return CheckResult(name, "failed", f"raised {type(error).__name__}: {error}")
    return CheckResult(name, "failed" if wrong else "passed", wrong or "held")


@asynccontextmanager
async def _opened(case: EngineCase) -> AsyncGenerator[RolloutEngine]:
    engine = case.open()
    try:
        yield engine
    finally:
        await engine.aclose()


def _requests(case: EngineCase, *, samples: int = 3, tokens: int = 8, temperature: float = 1.0) -> list[RolloutRequest]:
    return [
        RolloutRequest(
            id=f"{task.id}-{sample}",
            task=task,
            group_id=task.id,
            sampling=Sampling(max_new_tokens=tokens, temperature=temperature, seed=100 * place + sample),
        )
        for place, task in enumerate(case.tasks)
        for sample in range(samples)
    ]


async def _all(engine: RolloutEngine, requests: Sequence[RolloutRequest]) -> list[Rollout]:
    return [rollout async for rollout in engine.generate(requests)]


async def _each_once(case: EngineCase) -> str | None:
    async with _opened(case) as engine:
        requests = _requests(case)
        found = await _all(engine, requests)
        if sorted(rollout.id for rollout in found) != sorted(request.id for request in requests):
            return f"{len(found)} rollouts for {len(requests)} requests, or other ids"
        asked = {request.id: request for request in requests}
        for rollout in found:
            request = asked[rollout.id]
            if (rollout.task_id, rollout.group_id) != (request.task.id, request.group_id):
                return f"{rollout.id}: another task or group"
            if rollout.sampling != request.sampling:
                return f"{rollout.id}: another sampling"
        if await _all(engine, []):
            return "rollouts without a request"
    return None


async def _explained(case: EngineCase) -> str | None:
    async with _opened(case) as engine:
        for rollout in await _all(engine, _requests(case)):
            turn, limit = rollout.turns[-1], rollout.sampling.max_new_tokens
            count = len(turn.token_ids or ())
            if count > limit:
                return f"{rollout.id}: {count} tokens, more than max_new_tokens {limit}"
            if rollout.finish not in ("stop", "length"):
                return f"{rollout.id}: finish {rollout.finish!r} without a cause"
            if rollout.finish == "length" and turn.token_ids is not None and count != limit:
                return f"{rollout.id}: finish 'length' after {count} of {limit} tokens"
            if turn.logprobs is not None and any(logprob > 1e-6 for logprob in turn.logprobs):
                return f"{rollout.id}: a log-prob above 0"
            if (wrong := _span_fault(rollout)) is not None:
                return wrong
    return None


def _span_fault(rollout: Rollout) -> str | None:
    """The spans must cover each token once, in order, with growing versions."""
    count = len(rollout.turns[-1].token_ids or ())
    expected, last_version = 0, -1
    for span in rollout.weight_versions:
        if span.first != expected or span.last < span.first or span.version < last_version:
            return f"{rollout.id}: weight versions do not cover its tokens in order: {rollout.weight_versions}"
        expected, last_version = span.last + 1, span.version
    return None if expected == count else f"{rollout.id}: weight versions cover {expected} of {count} tokens"


async def _same_seed(case: EngineCase) -> str | None:
    if not case.deterministic:
        raise _Skip("the engine does not promise it")
    requests = _requests(case)
    async with _opened(case) as engine:
        crowd = {rollout.id: rollout for rollout in await _all(engine, requests)}
        for request in requests[:: max(1, len(requests) // 4)]:
            (alone,) = await _all(engine, [request])
            if alone.turns[-1].token_ids != crowd[request.id].turns[-1].token_ids:
                return f"{request.id}: other tokens alone than among {len(requests)}"
    return None


async def _streams(case: EngineCase) -> str | None:
    long, short = case.tasks[0], case.tasks[1]
    requests = [
        RolloutRequest(id="long", task=long, group_id="g", sampling=Sampling(max_new_tokens=LONG_TOKENS)),
        RolloutRequest(id="short", task=short, group_id="h", sampling=Sampling(max_new_tokens=1), priority=1),
    ]
    async with _opened(case) as engine:
        order = await _all(engine, requests)
    lengths = {rollout.id: len(rollout.turns[-1].token_ids or ()) for rollout in order}
    if lengths["long"] <= 2:
        raise _Skip("the answer that should be long is not")
    return None if order[0].id == "short" else "the short answer waited for the long one"


async def _stops(case: EngineCase) -> str | None:
    async with _opened(case) as engine:
        (whole,) = await _all(engine, _requests(case, samples=1, tokens=24)[:1])
        if len(whole.text) < 3:
            raise _Skip("the answer is too short to be cut")
        stop = whole.text[2]
        request = _requests(case, samples=1, tokens=24)[0]
        stopped = request.model_copy(update={"sampling": request.sampling.model_copy(update={"stop": (stop,)})})
        (cut,) = await _all(engine, [stopped])
    if cut.text != whole.text[: whole.text.index(stop)]:
        return f"the text {cut.text!r} is not {whole.text!r} up to {stop!r}"
    return None if cut.finish == "stop" else f"finish {cut.finish!r} instead of 'stop'"


async def _goes_on(case: EngineCase) -> str | None:
    """The second half of a greedy answer, asked for after the first."""
    request = _requests(case, samples=1, tokens=8, temperature=0.0)[0]
    async with _opened(case) as engine:
        (whole,) = await _all(engine, [request])
        ids = whole.turns[-1].token_ids
        if ids is None or whole.prompt_ids is None:
            raise _Skip("it gives no token ids")
        if len(ids) < 2:
            raise _Skip("the answer is too short to be gone on from")
        half = len(ids) // 2
        before = (*whole.prompt_ids, *ids[:half])
        sampling = request.sampling.model_copy(update={"max_new_tokens": 8 - half})
        (rest,) = await _all(engine, [request.model_copy(update={"prompt_ids": before, "sampling": sampling})])
    if rest.prompt_ids != before:
        return "its rollout has other prompt ids than were given"
    return None if rest.turns[-1].token_ids == ids[half:] else f"{rest.turns[-1].token_ids} instead of {ids[half:]}"


def _long(case: EngineCase) -> list[RolloutRequest]:
    return _requests(case, samples=2, tokens=LONG_TOKENS)


async def _pauses(case: EngineCase) -> str | None:
    async with _opened(case) as engine:
        requests = _long(case)
        await engine.pause("keep")
        found: list[Rollout] = []

        async def collect() -> None:
            found.extend([rollout async for rollout in engine.generate(requests)])

        collecting = asyncio.create_task(collect())
        await asyncio.sleep(0.2)
        early = collecting.done()
        await engine.resume()
        await collecting
    if early:
        return "it went on while it was paused"
    return None if len(found) == len(requests) else f"{len(found)} of {len(requests)} rollouts after resuming"


async def _pushes(case: EngineCase) -> str | None:
    """A push while long answers are under way; repeated where they are over before the weights come."""
    async with _opened(case) as engine:
        for _ in range(ATTEMPTS):
            before = engine.policy_version
            found = await _with_push(engine, case, before + 1)
            if engine.policy_version != before + 1:
                return f"policy_version is {engine.policy_version} after version {before + 1} was pushed"
            for rollout in found:
                if (wrong := _span_fault(rollout)) is not None:
                    return wrong
            versions = {span.version for rollout in found for span in rollout.weight_versions}
            if not versions <= {before, before + 1}:
                return f"versions {sorted(versions)} after a push from {before} to {before + 1}"
            if any(len(rollout.weight_versions) == 2 for rollout in found):
                return None
    raise _Skip("no rollout was in flight when the weights came")


async def _with_push(engine: RolloutEngine, case: EngineCase, version: int) -> list[Rollout]:
    """Long answers, and new weights as soon as the first, quick one is there."""
    quick = _requests(case, samples=1, tokens=1)[0].model_copy(update={"id": "quick", "priority": -1})
    stream = engine.generate([*_requests(case, samples=1, tokens=FLIGHT_TOKENS), quick])
    found = [await anext(stream)]
    await engine.pause("keep")
    await engine.push_weights(case.push(version))
    await engine.resume()
    return found + [rollout async for rollout in stream]


async def _passed(seconds: float) -> None:
    """So long, and as many turns of the event loop as a request may need to reach the engine on a busy machine."""
    await asyncio.sleep(seconds)
    for _ in range(100):
        await asyncio.sleep(0)


async def _aborts(case: EngineCase) -> str | None:
    async with _opened(case) as engine:
        requests = _long(case)
        await engine.pause("keep")
        stream = engine.generate(requests)
        first = asyncio.ensure_future(anext(stream))
        await _passed(0.05)
        victim = requests[-1].id
        await engine.abort([victim, "nobody"])
        await engine.resume()
        found = [await first] + [rollout async for rollout in stream]
    finishes = {rollout.id: rollout.finish for rollout in found}
    if len(found) != len(requests):
        return f"{len(found)} of {len(requests)} rollouts came back"
    if finishes[victim] != "abort":
        return f"the aborted request has finish {finishes[victim]!r}"
    others = [name for name, finish in finishes.items() if finish == "abort" and name != victim]
    return f"{others[0]} was aborted too" if others else None


async def _forsaken(case: EngineCase) -> str | None:
    async with _opened(case) as engine:
        requests = _long(case)
        stream = engine.generate(requests)
        await anext(stream)
        closing = getattr(stream, "aclose", None)
        if closing is None:
            raise _Skip("its stream cannot be closed")
        await closing()
        found = await _all(engine, requests)
    return None if len(found) == len(requests) else f"{len(found)} of {len(requests)} rollouts from the next call"


async def _other_pauses(case: EngineCase) -> str | None:
    async with _opened(case) as engine:
        requests = _long(case)
        drawing = asyncio.create_task(_all(engine, requests))
        await _passed(0.02)
        await engine.pause("wait")
        async with asyncio.timeout(DEADLINE_S / 2):
            waited = await drawing
        if any(rollout.finish == "abort" for rollout in waited):
            return "pause('wait') aborted a request"
        await engine.resume()
        drawing = asyncio.create_task(_all(engine, requests))
        await _passed(0.02)
        await engine.pause("abort")
        async with asyncio.timeout(DEADLINE_S / 2):
            aborted = await drawing
        if len(aborted) != len(requests):
            return f"{len(aborted)} of {len(requests)} rollouts came back from pause('abort')"
        await engine.resume()
        again = await _all(engine, requests)
    return None if len(again) == len(requests) else "it did not go on after pause('abort')"
