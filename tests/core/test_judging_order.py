"""Whether a source keeps the order of its batches: what is found, after how many batches, and what that costs."""

import asyncio
import math
import random
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.contracts import Candidate, Limits, Verdict
from assay.judging.cache import ContentKeys, VerdictCache
from assay.judging.guard import InlineGuard
from assay.judging.order import OrderWatch
from assay.judging.source import Identity, Policy, Source
from assay.testing.fakes import make_rollout, make_task

Answer = Callable[[Sequence[str]], list[Verdict]]


def verdict(text: str) -> Verdict:
    return Verdict.score(float(len(text) % 2)) if text else Verdict.abstain("empty")


def in_order(batch: Sequence[str]) -> list[Verdict]:
    return [verdict(text) for text in batch]


def by_length(batch: Sequence[str]) -> list[Verdict]:
    """What a source returns that sorts to save padding and forgets to sort back."""
    return [verdict(text) for text in sorted(batch, key=len)]


def reversed_(batch: Sequence[str]) -> list[Verdict]:
    return in_order(batch)[::-1]


def rotated(batch: Sequence[str]) -> list[Verdict]:
    found = in_order(batch)
    return found[1:] + found[:1]


def wrong_batches_until_found(answer: Answer, size: int, seed: int) -> int | None:
    """How many of 300 batches, each of a wave of its own, come out wrong before the watch knows; None if it never does.

    The batch by which it knows does not come out: it is judged again one by one.
    """
    draw = random.Random(seed)
    watch = OrderWatch()
    wrong = 0
    for number in range(300):
        batch = ["x" * draw.randrange(30) for _ in range(size)]
        found = answer(batch)
        picked = watch.picks(found, number, draw)
        if picked and not watch.compare(found, picked, answer([batch[place] for place in picked])):
            return wrong
        wrong += found != in_order(batch)
    return None


@pytest.mark.parametrize(("size", "at_once"), [(2, 80), (3, 32), (8, 70), (32, 80)])
@pytest.mark.parametrize("answer", [by_length, reversed_, rotated])
def test_an_order_that_depends_on_the_batch_is_found_on_probation(answer: Answer, size: int, at_once: int) -> None:
    wrong = [wrong_batches_until_found(answer, size, seed) for seed in range(80)]
    assert all(number is not None and number <= 10 for number in wrong)
    assert wrong.count(0) >= at_once  # the first batch that came in another order was the one by which it was found


@pytest.mark.parametrize("size", [2, 8])
def test_a_source_that_keeps_the_order_is_asked_again_seldom(size: int) -> None:
    draw = random.Random(1)
    watch = OrderWatch()
    asked = 0
    for number in range(1000):
        answer = in_order(["x", "xx"] * (size // 2))
        if picked := watch.picks(answer, number, draw):
            asked += 1
            assert watch.compare(answer, picked, [answer[place] for place in picked])
    assert asked == 10 + 990 // 50


def test_answers_that_are_all_the_same_are_not_asked_for_again() -> None:
    watch = OrderWatch()
    assert not any(watch.picks(in_order(["x", "xxx"]), number, random.Random(1)) for number in range(1000))


def test_what_waited_together_is_asked_again_twice_at_most() -> None:
    watch = OrderWatch()
    answer = in_order(["x", "xx"])
    assert [bool(watch.picks(answer, wave, random.Random(1))) for wave in (3, 3, 3, 4, 3, 4, 4)] == [
        *(True, True, False),
        *(True, False, True, False),
    ]


@given(st.lists(st.sampled_from(["", "x", "xx", "xxx"]), min_size=2, max_size=40), st.integers(0, 1000))
def test_what_is_asked_again_could_tell(texts: list[str], seed: int) -> None:
    answer = in_order(texts)
    picked = OrderWatch().picks(answer, 0, random.Random(seed))
    kinds = {(found.status, found.value) for found in answer}
    assert len(set(picked)) == len(picked) < len(texts)
    assert set(picked) <= set(range(len(texts)))
    assert bool(picked) == (len(kinds) > 1)
    if len(picked) > 1:
        assert len({(answer[place].status, answer[place].value) for place in picked}) > 1


def test_what_the_shape_of_a_batch_does_to_a_value_is_no_other_order() -> None:
    watch = OrderWatch()
    assert watch.compare([Verdict.score(0.5), Verdict.score(0.25)], [1], [Verdict.score(0.25001)])
    assert not watch.compare([Verdict.score(0.5), Verdict.score(0.25)], [1], [Verdict.score(0.5)])
    assert watch.broken


class Model:
    """An untrusted source that takes batches; its first call waits until `go` is set."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.go = asyncio.Event()
        self.batches: list[int] = []

    async def judge(self, batch: Sequence[Candidate]) -> Sequence[Verdict]:
        self.batches.append(len(batch))
        await self.go.wait()
        return in_order([candidate.rollout.text for candidate in batch])

    async def aclose(self) -> None:
        pass


@settings(max_examples=80, deadline=None)
@given(
    waves=st.lists(st.integers(1, 150), min_size=1, max_size=8),
    max_batch=st.integers(2, 32),
    concurrency=st.integers(1, 3),
    seed=st.integers(0, 1000),
)
def test_candidates_that_wait_together_cost_at_most_two_calls_beyond_their_batches(
    waves: list[int], max_batch: int, concurrency: int, seed: int
) -> None:
    async def run() -> None:
        draw = random.Random(seed)
        limits = Limits(max_batch=max_batch, max_wait_s=0.0, concurrency=concurrency)
        model = Model(limits)
        source = Source(
            InlineGuard(model, limits, draw, copies=True),
            limits,
            Identity("model", "1", "", "model"),
            policy=Policy(cache=False),
            keys=ContentKeys(),
            cache=VerdictCache(),
        )
        task = make_task()
        for size in waves:
            model.go.clear()
            texts = ["x" * draw.randrange(30) for _ in range(concurrency + size)]
            jobs: list[asyncio.Task[Verdict]] = []
            for number, text in enumerate(texts):
                jobs.append(asyncio.ensure_future(judge(source, Candidate(task=task, rollout=make_rollout(text)))))
                if number < concurrency:
                    await settled()  # as many as may be out are out, one candidate each: the others wait
            await settled()
            assert (len(model.batches), source.queue_length) == (concurrency, size)
            model.batches.clear()
            model.go.set()
            assert [await job for job in jobs] == in_order(texts)
            assert len(model.batches) <= math.ceil(size / max_batch) + 2
            assert max(model.batches) <= max_batch
            model.batches.clear()
        await source.aclose()

    asyncio.run(run())


async def settled() -> None:
    """Everything that can go on without waiting has."""
    for _ in range(10):
        await asyncio.sleep(0)


async def judge(source: Source, candidate: Candidate) -> Verdict:
    return (await source.judge(candidate)).verdict
