"""Coroutines side by side that fail with one error: the reason, as it was raised, instead of a group around it."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Generator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar, cast

from assay.errors import AssayError

T = TypeVar("T")


async def together(coroutines: Sequence[Coroutine[Any, Any, T]], *, at_once: int | None = None) -> list[T]:
    """The results in order, of at most `at_once` at a time; an error cancels the others and is raised as it is."""
    if len(coroutines) == 1:
        return [await coroutines[0]]
    slots = asyncio.Semaphore(at_once or max(1, len(coroutines)))

    async def one(coroutine: Coroutine[Any, Any, T]) -> T:
        async with slots:
            return await coroutine

    with one_error():
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one(coroutine)) for coroutine in coroutines]
    return [task.result() for task in tasks]


@contextmanager
def one_error() -> Generator[None]:
    """Raise, in place of a group of errors, the one that says why."""
    try:
        yield
    except BaseExceptionGroup as group:
        error = first_cause(group)
        raise error from error.__cause__


def first_cause(group: BaseExceptionGroup[Any]) -> BaseException:
    """The first error inside a group that was raised on purpose, else the first of all."""
    leaves = _leaves(group)
    return next((leaf for leaf in leaves if isinstance(leaf, AssayError)), leaves[0])


def _leaves(error: BaseException) -> list[BaseException]:
    if not isinstance(error, BaseExceptionGroup):
        return [error]
    group = cast("BaseExceptionGroup[BaseException]", error)
    return [leaf for member in group.exceptions for leaf in _leaves(member)]
