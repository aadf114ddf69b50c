from collections.abc import AsyncIterator, Callable, Sequence

import pytest

from assay.contracts import Rollout, RolloutRequest, WeightsRef
from assay.testing.engine_suite import engine_suite, run_engine_suite
from assay.testing.scripted import ScriptedEngine

pytestmark = pytest.mark.long

ALPHABET = "abcdefghijklmnopqrstuvwxyz"


def answer(request: RolloutRequest, version: int) -> str:
    """Long, different for each seed, and the same again."""
    return "".join(ALPHABET[(request.sampling.seed * 7 + place * 5) % 26] for place in range(300))


def delay(request: RolloutRequest) -> float:
    return 0.002 * request.sampling.max_new_tokens


class Changed(ScriptedEngine):
    """A scripted engine whose rollouts are changed on their way out."""

    def __init__(self, change: Callable[[Sequence[Rollout]], Sequence[Rollout]]) -> None:
        super().__init__(answer, delay_s=delay)
        self.change = change

    async def generate(self, requests: Sequence[RolloutRequest]) -> AsyncIterator[Rollout]:
        for rollout in self.change([rollout async for rollout in super().generate(requests)]):
            yield rollout


class Deaf(ScriptedEngine):
    """A scripted engine that does not hear of new weights."""

    async def push_weights(self, weights: WeightsRef) -> None:
        return


test_the_scripted_engine_holds = engine_suite(lambda: ScriptedEngine(answer, delay_s=delay))


def failures(open_engine: Callable[[], ScriptedEngine]) -> dict[str, str]:
    return {result.check: result.detail for result in run_engine_suite(open_engine) if result.status == "failed"}


def without_spans(rollouts: Sequence[Rollout]) -> Sequence[Rollout]:
    return [rollout.model_copy(update={"weight_versions": ()}) for rollout in rollouts]


def in_order_of_requests(rollouts: Sequence[Rollout]) -> Sequence[Rollout]:
    return sorted(rollouts, key=lambda rollout: rollout.id)


def another_group(rollouts: Sequence[Rollout]) -> Sequence[Rollout]:
    return [rollout.model_copy(update={"group_id": "other"}) for rollout in rollouts]


def without_the_first(rollouts: Sequence[Rollout]) -> Sequence[Rollout]:
    return rollouts[1:]


@pytest.mark.parametrize(
    ("change", "check"),
    [
        (without_spans, "explains every token"),
        (in_order_of_requests, "streams short answers first"),
        (another_group, "answers each request once"),
        (without_the_first, "answers each request once"),
    ],
    ids=["no versions", "waits for all", "another group", "one is lost"],
)
def test_a_broken_engine_is_found(change: Callable[[Sequence[Rollout]], Sequence[Rollout]], check: str) -> None:
    assert check in failures(lambda: Changed(change))


def test_an_engine_that_ignores_weights_is_found() -> None:
    found = failures(lambda: Deaf(answer, delay_s=delay))
    assert found == {"takes weights in flight": "policy_version is 0 after version 1 was pushed"}
