"""Whether a source keeps the order of its batches: what is found, and after how many batches."""

import random
from collections.abc import Callable, Sequence

import pytest

from assay.contracts import Verdict
from assay.judging.order import OrderWatch

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


def batches_until_found(answer: Answer, size: int, seed: int) -> int | None:
    """After how many of 300 batches the watch knows, or None."""
    draw = random.Random(seed)
    watch = OrderWatch()
    for number in range(1, 301):
        batch = ["x" * draw.randrange(30) for _ in range(size)]
        found = answer(batch)
        if watch.due():
            picked = draw.sample(range(size), (size + 1) // 2)
            watch.compare(found, picked, answer([batch[index] for index in picked]))
        if watch.broken:
            return number
    return None


@pytest.mark.parametrize("size", [2, 3, 8, 32])
@pytest.mark.parametrize("answer", [by_length, reversed_, rotated])
def test_an_order_that_depends_on_the_batch_is_found_on_probation(answer: Answer, size: int) -> None:
    found = [batches_until_found(answer, size, seed) for seed in range(40)]
    soon = sum(number is not None and number <= 20 for number in found)
    assert soon >= (36 if size == 2 else 40)  # half of the batches of two are in order by chance


@pytest.mark.parametrize("size", [2, 8])
def test_a_source_that_keeps_the_order_is_asked_again_seldom(size: int) -> None:
    assert batches_until_found(in_order, size, 1) is None
    watch = OrderWatch()
    asked = 0
    for _ in range(1000):
        if watch.due():
            asked += 1
            answer = in_order(["x", "xx"] * (size // 2))
            watch.compare(answer, [0], answer[:1])
    assert asked == 5 + 995 // 50


def test_answers_that_are_all_the_same_end_the_probation_too() -> None:
    watch = OrderWatch()
    asked = sum(watch.due() for _ in range(1000))
    assert asked == 20 + 980 // 50


def test_what_the_shape_of_a_batch_does_to_a_value_is_no_other_order() -> None:
    watch = OrderWatch()
    assert watch.compare([Verdict.score(0.5), Verdict.score(0.25)], [1], [Verdict.score(0.25001)])
    assert not watch.compare([Verdict.score(0.5), Verdict.score(0.25)], [1], [Verdict.score(0.5)])
    assert watch.broken
