"""The OpenAI-compatible engine against a scripted service on loopback."""

import asyncio
import threading
from collections.abc import Mapping
from typing import Any

import pytest
from pydantic import ValidationError

from assay import BuildContext, ConfigError, EngineError, Message, Rollout, Task
from assay.contracts import RolloutRequest, Sampling, WeightsRef
from assay.registry import component_from
from assay.testing import scripted_endpoint
from assay_engines.openai import OpenAIEngine, OpenAIOptions

Body = Mapping[str, Any]


def request(name: str, content: str = "hello", **sampling: Any) -> RolloutRequest:
    task = Task(id=f"task-{name}", messages=(Message(role="user", content=content),))
    return RolloutRequest(id=name, task=task, group_id=f"group-{name}", sampling=Sampling(**sampling))


def engine_at(base_url: str, **options: Any) -> OpenAIEngine:
    return OpenAIEngine(OpenAIOptions(base_url=base_url, model="scripted", first_pause_s=0.001, **options))


async def drawn(engine: OpenAIEngine, requests: list[RolloutRequest]) -> list[Rollout]:
    try:
        return [rollout async for rollout in engine.generate(requests)]
    finally:
        await engine.aclose()


def test_every_request_comes_back_once_as_it_finishes_and_carries_its_sampling() -> None:
    quick_is_here = threading.Event()

    def script(body: Body) -> str:
        if body["messages"][0]["content"] == "slow":
            quick_is_here.wait(60)
        return body["messages"][0]["content"].upper()

    async def run(engine: OpenAIEngine) -> list[Rollout]:
        found: list[Rollout] = []
        try:
            async for rollout in engine.generate(asked):
                found.append(rollout)
                quick_is_here.set()
        finally:
            await engine.aclose()
        return found

    asked = [request("a", "slow", seed=3, temperature=0.5, top_p=0.9, stop=("\n",)), request("b", "quick")]
    with scripted_endpoint(script) as endpoint:
        found = asyncio.run(run(engine_at(endpoint.base_url)))
    assert [(rollout.id, rollout.text, rollout.finish) for rollout in found] == [
        ("b", "QUICK", "stop"),
        ("a", "SLOW", "stop"),
    ]
    assert found[1].sampling == asked[0].sampling
    assert (found[1].task_id, found[1].group_id) == ("task-a", "group-a")
    (body,) = (body for body in endpoint.requests if body["messages"][0]["content"] == "slow")
    assert (body["seed"], body["temperature"], body["top_p"], body["stop"]) == (3, 0.5, 0.9, ["\n"])


def test_an_answer_that_is_begun_is_continued_and_not_answered() -> None:
    begun = Task(id="t", messages=(Message(role="user", content="1+1?"), Message(role="assistant", content="It is ")))
    asked = RolloutRequest(id="a", task=begun, group_id="g", sampling=Sampling())
    with scripted_endpoint(lambda _: "2.") as endpoint:
        asyncio.run(drawn(engine_at(endpoint.base_url), [asked, request("b")]))
    keys = [(body.get("continue_final_message"), body.get("add_generation_prompt")) for body in endpoint.requests]
    assert sorted(keys, key=str) == [(None, None), (True, False)]


def test_a_chat_cannot_go_on_from_token_ids(caplog: pytest.LogCaptureFixture) -> None:
    with scripted_endpoint(lambda _: "2.") as endpoint:
        asked = request("a").model_copy(update={"prompt_ids": (1, 2)})
        (rollout,) = asyncio.run(drawn(engine_at(endpoint.base_url), [asked]))
    assert (rollout.finish, rollout.text) == ("error", "")
    assert "a chat cannot go on from token ids; use tokens = true" in caplog.text
    assert not endpoint.requests


def test_a_busy_service_is_asked_again_and_a_broken_one_ends_in_an_error_rollout() -> None:
    busy = iter([503, 429])
    with scripted_endpoint(lambda _: next(busy, None) or "fine") as endpoint:
        (found,) = asyncio.run(drawn(engine_at(endpoint.base_url), [request("a")]))
    assert (found.text, found.finish, len(endpoint.requests)) == ("fine", "stop", 3)
    with scripted_endpoint(lambda _: 401) as endpoint:
        (found,) = asyncio.run(drawn(engine_at(endpoint.base_url), [request("a")]))
    assert (found.text, found.finish, len(endpoint.requests)) == ("", "error", 1)
    (found,) = asyncio.run(drawn(engine_at("http://127.0.0.1:9/v1", retries=1), [request("a")]))
    assert found.finish == "error"


def test_pause_resume_and_abort() -> None:
    async def run(base_url: str) -> list[Rollout]:
        engine = engine_at(base_url)
        await engine.pause()
        found: list[Rollout] = []

        async def draw() -> None:
            found.extend([rollout async for rollout in engine.generate([request("a"), request("b")])])

        drawing = asyncio.create_task(draw())
        for _ in range(20):
            await asyncio.sleep(0.005)
        assert not found
        await engine.abort(["a"])
        await engine.resume()
        await drawing
        await engine.aclose()
        return found

    with scripted_endpoint(lambda _: "text") as endpoint:
        found = {rollout.id: rollout.finish for rollout in asyncio.run(run(endpoint.base_url))}
    assert found == {"a": "abort", "b": "stop"}
    assert len(endpoint.requests) == 1


def test_the_services_weights_are_its_own() -> None:
    with pytest.raises(EngineError, match="keeps its own weights"):
        asyncio.run(engine_at("http://127.0.0.1:9/v1").push_weights(WeightsRef(version=1)))


def test_wrong_options_are_told_before_anything_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_SUCH_TOKEN", raising=False)
    component = component_from("assay_engines", "rollout_engine", "openai")
    with pytest.raises(ValidationError, match="starts with http"):
        component.config(base_url="example", model="m")
    with pytest.raises(ConfigError, match="'NO_SUCH_TOKEN' is not set"):
        component.build(component.config(base_url="http://x/v1", model="m", token_env="NO_SUCH_TOKEN"), BuildContext())
