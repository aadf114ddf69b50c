"""The scripted engine obeys the engine protocol: streaming, pausing, weights in flight, abort."""

import asyncio
from collections.abc import Sequence

import pytest

from assay.contracts import Rollout, RolloutRequest, Sampling, WeightSpan, WeightsRef
from assay.errors import EngineError
from assay.testing.engine_suite import engine_suite
from assay.testing.fakes import make_task
from assay.testing.scripted import END_TOKEN, ScriptedEngine


def requests(count: int, **sampling: object) -> list[RolloutRequest]:
    return [
        RolloutRequest(id=f"r{i}", task=make_task(f"t{i}"), group_id="g", sampling=Sampling.model_validate(sampling))
        for i in range(count)
    ]


async def drawn(engine: ScriptedEngine, asked: Sequence[RolloutRequest]) -> list[Rollout]:
    return [rollout async for rollout in engine.generate(asked)]


def test_answers_stream_in_order_of_completion() -> None:
    async def run() -> list[str]:
        delays = {"r0": 0.06, "r1": 0.02, "r2": 0.04}
        engine = ScriptedEngine(lambda request, _: request.id, delay_s=lambda request: delays[request.id])
        return [rollout.id for rollout in await drawn(engine, requests(3))]

    assert asyncio.run(run()) == ["r1", "r2", "r0"]


def test_tokens_logprobs_and_versions_belong_together() -> None:
    async def run() -> list[Rollout]:
        engine = ScriptedEngine(lambda request, version: f"{request.id} v{version}")
        first = await drawn(engine, requests(1))
        await engine.push_weights(WeightsRef(version=3))
        assert engine.policy_version == 3
        return first + await drawn(engine, requests(1))

    first, second = asyncio.run(run())
    assert (first.text, second.text) == ("r0 v0", "r0 v3")
    assert first.turns[0].token_ids == (*b"r0 v0", END_TOKEN)
    assert first.turns[0].logprobs == (-1.0,) * 6
    assert second.weight_versions == (WeightSpan(version=3, first=0, last=5),)


def test_weights_in_flight_are_seen_in_the_spans() -> None:
    async def run() -> Rollout:
        engine = ScriptedEngine(lambda _request, _version: "x" * 99, delay_s=2.0)
        task = asyncio.create_task(drawn(engine, requests(1)))
        await asyncio.sleep(0.1)
        await engine.pause("keep")
        await asyncio.sleep(0.02)
        await engine.push_weights(WeightsRef(version=1))
        await engine.resume()
        return (await task)[0]

    spans = asyncio.run(run()).weight_versions
    assert [span.version for span in spans] == [0, 1]
    assert (spans[0].first, spans[1].last) == (0, 99)
    assert spans[0].last + 1 == spans[1].first


def test_an_aborted_answer_is_partial() -> None:
    async def run() -> list[Rollout]:
        engine = ScriptedEngine(lambda _request, _version: "x" * 100, delay_s=2.0)
        task = asyncio.create_task(drawn(engine, requests(2)))
        await asyncio.sleep(0.1)
        await engine.abort(["r1"])
        return await task

    by_id = {rollout.id: rollout for rollout in asyncio.run(run())}
    assert (by_id["r1"].finish, by_id["r0"].finish) == ("abort", "stop")
    assert len(by_id["r1"].text) < len(by_id["r0"].text) == 100


def test_pausing_waits_or_aborts_as_asked() -> None:
    async def run(mode: str) -> list[str]:
        engine = ScriptedEngine(lambda _request, _version: "x" * 100, delay_s=2.0)
        task = asyncio.create_task(drawn(engine, requests(3)))
        await asyncio.sleep(0.02)
        await engine.pause("wait" if mode == "wait" else "abort")
        await engine.resume()
        return [rollout.finish for rollout in await task]

    assert asyncio.run(run("wait")) == ["stop"] * 3
    assert asyncio.run(run("abort")) == ["abort"] * 3


def test_stop_texts_and_lengths_end_an_answer() -> None:
    async def run() -> list[Rollout]:
        engine = ScriptedEngine(lambda _request, _version: "one\n\ntwo")
        return await drawn(engine, requests(1, stop=("\n\n",))) + await drawn(engine, requests(1, max_new_tokens=4))

    stopped, cut = asyncio.run(run())
    assert (stopped.text, stopped.finish) == ("one", "stop")
    assert (cut.text, cut.finish) == ("one\n", "length")


def test_a_closed_engine_refuses() -> None:
    async def run() -> None:
        engine = ScriptedEngine(lambda _request, _version: "x")
        await engine.aclose()
        await drawn(engine, requests(1))

    with pytest.raises(EngineError, match="closed"):
        asyncio.run(run())


def scripted() -> ScriptedEngine:
    def answer(request: RolloutRequest, _version: int) -> str:
        return f"{request.sampling.seed}+{request.task.prompt} " * 20

    return ScriptedEngine(answer, delay_s=lambda request: 0.002 * min(50, request.sampling.max_new_tokens))


test_the_engine_suite_passes = engine_suite(scripted)
