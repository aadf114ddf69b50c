"""Coroutines side by side that fail with one error: the reason, as it was raised, instead of a group around it.

`together` gives all results in order, an `Inbox` each as it comes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Generic, Self, TypeVar, cast

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


class Inbox(Generic[T]):
    """Items that coroutines put in while they run; what still runs when the inbox is left is cancelled.

    Unlike a task group it can be left in the middle without an error, as a generator is that its reader closes early.
    """

    def __init__(self) -> None:
        """An empty inbox."""
        self._items: asyncio.Queue[T | _Failed] = asyncio.Queue()
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        """Run `work` beside what was started before."""
        task = asyncio.create_task(work)
        task.add_done_callback(self._ended)
        self._tasks.add(task)

    def put(self, item: T) -> None:
        """Hand `item` over to who reads."""
        self._items.put_nowait(item)

    async def get(self) -> T:
        """The next item; raises what a coroutine has raised in the meantime."""
        item = await self._items.get()
        if isinstance(item, _Failed):
            raise item.error
        return item

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._items.put_nowait(_Failed(error))


@dataclass(frozen=True)
class _Failed:
    error: BaseException


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
