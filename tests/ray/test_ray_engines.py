"""Engines as actors of a real Ray cluster: the same tokens as in one process, weights by files, lost actors."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
import asyncio
import logging
import os
import signal
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from assay.component import BuildContext
from assay.config.run import RayEngineConfig
from assay.contracts import Message, Rollout, RolloutRequest, Sampling, Task, Turn
from assay.errors import EngineError
from assay.protocols import ReadsWeights, RolloutEngine
from assay.registry import component_from
from assay.remote.ray.engine_actor import REQUESTS, EngineOrder, News
from assay.remote.ray.engines import RayEngine
from assay.testing.engine_suite import run_engine_suite
from assay.training.model import PolicyModel, load_policy
from assay.training.weights import Publisher

pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]
Shake = Callable[[PolicyModel, int], None]


def on_ray(policy: PolicyModel, tmp_path: Path, **settings: Any) -> RayEngine:
    order = EngineOrder(
        module="assay_engines",
        name="transformers",
        options={"ignore_end": True, "max_rows": 8},
        model=policy.path,
        dtype="float32",
        device="cpu",
        seed=0,
        base_dir=str(tmp_path),
        cache_dir=str(tmp_path / "cache"),
    )
    chosen = RayEngineConfig.model_validate({"address": "local", "cpus": 0} | settings)
    return RayEngine(order, chosen, weights_folder=tmp_path / "weights")


def here(policy: PolicyModel) -> RolloutEngine:
    component = component_from("assay_engines", "rollout_engine", "transformers")
    return component.build(component.config(ignore_end=True, max_rows=8), BuildContext(policy=policy))


def requests(groups: int, *, tokens: int) -> list[RolloutRequest]:
    return [
        RolloutRequest(
            id=f"g{group}-{sample}",
            task=Task(id=f"t{group}", messages=(Message(role="user", content=f"{group}+{group}="),)),
            group_id=f"g{group}",
            sampling=Sampling(max_new_tokens=tokens, seed=10 * group + sample),
        )
        for group in range(groups)
        for sample in range(2)
    ]


async def drawn(engine: RolloutEngine, asked: Sequence[RolloutRequest]) -> list[Rollout]:
    return [rollout async for rollout in engine.generate(asked)]


def tokens(rollouts: Sequence[Rollout]) -> dict[str, tuple[int, ...] | None]:
    return {rollout.id: rollout.turns[-1].token_ids for rollout in rollouts}


def test_tokens_are_those_of_one_process_also_after_a_push_and_after_an_actor_was_killed(
    cluster: str, policy: PolicyModel, shake: Shake, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    asked, later = requests(4, tokens=12), requests(6, tokens=200)
    other = load_policy(policy.path)
    shake(other, 1)

    async def local(policy: PolicyModel, asked: Sequence[RolloutRequest]) -> list[Rollout]:
        engine = here(policy)
        try:
            return await drawn(engine, asked)
        finally:
            await engine.aclose()

    async def run() -> tuple[list[Rollout], list[Rollout]]:
        engine = on_ray(policy, tmp_path, actors=2)
        assert isinstance(engine, ReadsWeights)
        try:
            first = await drawn(engine, asked)
            await engine.pause()
            await engine.push_weights(Publisher(other, folder=engine.weights_folder).publish(1))
            await engine.resume()
            drawing = asyncio.create_task(drawn(engine, later))
            await asyncio.sleep(0.1)
            assert not drawing.done()
            os.kill(engine.processes[0], signal.SIGKILL)
            return first, await drawing
        finally:
            await engine.aclose()

    with caplog.at_level(logging.WARNING, logger="assay.engines"):
        first, second = asyncio.run(run())
    assert "another takes its place" in caplog.text
    assert len(second) == len({rollout.id for rollout in second}) == len(later)
    assert tokens(first) == tokens(asyncio.run(local(policy, asked)))
    assert tokens(second) == tokens(asyncio.run(local(other, later)))
    assert {span.version for rollout in first for span in rollout.weight_versions} == {0}
    assert {span.version for rollout in second for span in rollout.weight_versions} == {1}
    assert not (tmp_path / "weights").exists()


def test_a_pause_does_not_overtake_the_requests_before_it(cluster: str, policy: PolicyModel, tmp_path: Path) -> None:
    async def run() -> list[Rollout]:
        engine = on_ray(policy, tmp_path, actors=2)
        try:
            drawing = asyncio.create_task(drawn(engine, requests(4, tokens=12)))
            await asyncio.sleep(0)  # the actors are being started
            await engine.pause("wait")
            async with asyncio.timeout(600):
                return await drawing
        finally:
            await engine.aclose()

    assert [rollout.finish for rollout in asyncio.run(run())] == ["length"] * 8


def test_what_an_engine_refuses_is_told_in_its_words(cluster: str, policy: PolicyModel, tmp_path: Path) -> None:
    async def run() -> None:
        engine = on_ray(policy, tmp_path)
        try:
            with pytest.raises(EngineError, match=r"do not fit the model: .* shorten the prompt"):
                await drawn(engine, requests(1, tokens=4000))
        finally:
            await engine.aclose()

    asyncio.run(run())


def test_an_actor_that_cannot_be_placed_is_one_sentence(cluster: str, policy: PolicyModel, tmp_path: Path) -> None:
    async def run() -> None:
        engine = on_ray(policy, tmp_path, gpus=3, start_s=2.0)
        try:
            with pytest.raises(EngineError, match=r"0 CPUs and 3 GPUs did not start within start_s = 2 s; the cluster"):
                await drawn(engine, requests(1, tokens=4))
        finally:
            await engine.aclose()

    asyncio.run(run())


class Ask:
    """A method of an actor."""

    def __init__(self, act: Callable[..., Any]) -> None:
        self._act = act

    async def remote(self, *given: Any) -> Any:
        return await self._act(*given)


class FrailCluster:
    """Of its actors the first is lost when it is given requests, and the next two while they start."""

    def __init__(self) -> None:
        self.asked = 0

    def actor(self, *_: Any, **__: Any) -> Any:
        self.asked += 1
        number = self.asked
        given: asyncio.Queue[list[RolloutRequest]] = asyncio.Queue()

        async def start() -> str:
            if number in (2, 3):
                raise OSError("the node is gone")
            return f"host, process {number}"

        async def put(told: str) -> None:
            given.put_nowait(REQUESTS.validate_json(told))

        async def take(_: float) -> list[News]:
            asked = await given.get()
            if number == 1:
                raise OSError("the node is gone")
            turns = (Turn(text="a", token_ids=(1,), logprobs=(-0.5,)),)
            found = [Rollout(id=one.id, task_id=one.task.id, group_id=one.group_id, turns=turns) for one in asked]
            return [News("rollout", rollout.model_dump_json()) for rollout in found]

        async def close() -> None:
            pass

        return SimpleNamespace(start=Ask(start), put=Ask(put), take=Ask(take), close=Ask(close))

    def kill(self, actor: Any) -> None:
        pass


def test_an_actor_that_is_lost_while_it_takes_a_place_is_replaced_too(
    policy: PolicyModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("ray", reason="the package ray is not installed")
    frail = FrailCluster()

    def connected(address: str, *, where: str) -> FrailCluster:
        return frail

    monkeypatch.setattr("assay.remote.ray.engines.connect", connected)

    async def run() -> list[Rollout]:
        engine = on_ray(policy, tmp_path)
        try:
            async with asyncio.timeout(60):
                return await drawn(engine, requests(2, tokens=1))
        finally:
            await engine.aclose()

    assert sorted(rollout.id for rollout in asyncio.run(run())) == ["g0-0", "g0-1", "g1-0", "g1-1"]
    assert frail.asked == 4


@pytest.mark.slow
def test_it_passes_the_suite_of_engines(
    cluster: str, policy: PolicyModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    suite = import_module("assay.testing.engine_suite")  # the package offers a function of the same name
    monkeypatch.setattr(suite, "DEADLINE_S", 240.0)  # each check starts actors that load torch
    publisher = Publisher(policy, folder=tmp_path / "published")
    results = run_engine_suite(lambda: on_ray(policy, tmp_path, actors=2), push=publisher.publish)
    assert {result.check: result.detail for result in results if result.status != "passed"} == {}
