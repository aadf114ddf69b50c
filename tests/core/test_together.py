"""Coroutines side by side: results in order, bounded, and the reason instead of a group of errors."""

import asyncio

import pytest

from assay.errors import ConfigError
from assay.together import Inbox, first_cause, one_error, together


async def after(turns: int, value: int) -> int:
    for _ in range(turns):
        await asyncio.sleep(0)
    return value


def test_results_come_in_order_and_no_more_than_asked_run_at_once():
    running, most = 0, 0

    async def one(value: int) -> int:
        nonlocal running, most
        running += 1
        most = max(most, running)
        found = await after(5 - value % 5, value)
        running -= 1
        return found

    async def run(at_once: int | None) -> list[int]:
        return await together([one(value) for value in range(12)], at_once=at_once)

    assert asyncio.run(run(3)) == list(range(12))
    assert most == 3
    assert asyncio.run(run(None)) == list(range(12))
    assert most == 12


@pytest.mark.parametrize("count", [1, 4])
def test_the_error_is_raised_as_it_is_and_the_others_are_cancelled(count: int):
    cancelled = 0

    async def one(value: int) -> int:
        nonlocal cancelled
        if value == 0:
            raise ConfigError("here: it is wrong")
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled += 1
            raise
        return value

    async def run() -> list[int]:
        return await together([one(value) for value in range(count)])

    with pytest.raises(ConfigError, match="it is wrong"):
        asyncio.run(run())
    assert cancelled == count - 1


def test_an_error_raised_on_purpose_goes_before_others_however_deep_it_lies():
    reason = ConfigError("the reason")
    reason.__cause__ = ValueError("below it")
    group = ExceptionGroup("outer", [RuntimeError("first"), ExceptionGroup("inner", [reason])])
    assert first_cause(group) is reason
    assert str(first_cause(ExceptionGroup("plain", [RuntimeError("first"), ValueError("second")]))) == "first"
    with pytest.raises(ConfigError) as found, one_error():
        raise group
    assert found.value is reason
    assert isinstance(found.value.__cause__, ValueError)


def test_an_inbox_hands_over_what_comes_first_and_what_coroutines_start_themselves():
    async def run() -> list[int]:
        async with Inbox[int]() as inbox:

            async def late(turns: int) -> None:
                inbox.put(await after(turns, turns))
                if turns == 1:
                    inbox.start(late(3))

            for turns in (9, 1):
                inbox.start(late(turns))
            return [await inbox.get() for _ in range(3)]

    assert asyncio.run(run()) == [1, 3, 9]


def test_an_inbox_that_is_left_cancels_the_rest_and_raises_the_error_as_it_is():
    cancelled = 0

    async def waits() -> None:
        nonlocal cancelled
        try:
            await asyncio.sleep(60)
        finally:
            cancelled += 1

    async def fails() -> None:
        await after(2, 0)
        raise ConfigError("no luck")

    async def run() -> None:
        async with Inbox[int]() as inbox:
            for work in (waits(), fails(), waits()):
                inbox.start(work)
            await inbox.get()

    with pytest.raises(ConfigError, match="no luck"):
        asyncio.run(run())
    assert cancelled == 2
