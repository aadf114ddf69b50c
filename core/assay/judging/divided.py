"""A learning source whose weights are divided among processes: what is asked of it here is asked of it everywhere.

`LedSource` is such a source on rank 0, in the place of the source itself; `FollowedSource` is what it is on every other
process. Calls are made one at a time, between the trainer's own, and never given up half way: the others are inside
them too.
"""

import asyncio
import contextvars
import itertools
import threading
from collections.abc import Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import JsonValue

from assay.contracts import Candidate, Limits, ScoredGroup, Verdict
from assay.protocols import DividedSource

if TYPE_CHECKING:
    from assay.training.ranks import Ranks

T = TypeVar("T")

_NUMBERS = itertools.count(1)
"""Of the sources that were led so far: several panels may have sources of one label."""
TIMEOUT_S = 24 * 3600.0
"""Wall time of one call: it may have to wait for an update, and a peer that hangs has a limit of its own."""


class LedSource:
    """The source on rank 0."""

    def __init__(self, source: DividedSource, label: str, opening: Mapping[str, JsonValue], ranks: "Ranks") -> None:
        """Have every other process open the source named `label` as `opening` says, and divide its weights."""
        self._source = source
        self._name = f"{label}#{next(_NUMBERS)}"
        self._ranks = ranks
        self._runner = asyncio.Runner(loop_factory=asyncio.new_event_loop)
        self._running = threading.Lock()
        self.limits: Limits = source.limits
        with ranks.leading({"do": "source", "source": self._name, **opening}):
            source.divide(ranks)

    async def judge(self, batch: Sequence[Candidate]) -> Sequence[Verdict]:
        """One verdict per candidate, in order."""
        candidates: list[JsonValue] = [candidate.model_dump(mode="json") for candidate in batch]
        return await asyncio.to_thread(self._lead, "judge", lambda: self._run(self._source.judge(batch)), candidates)

    async def learn(self, groups: Sequence[ScoredGroup]) -> Mapping[str, float]:
        """One update everywhere; the metrics of this process."""
        lessons: list[JsonValue] = [group.model_dump(mode="json") for group in groups]
        return await asyncio.to_thread(self._lead, "learn", lambda: self._run(self._source.learn(groups)), lessons)

    def save_state(self, folder: Path) -> None:
        """Write the state, as the source does where it is whole."""
        self._lead("save_state", lambda: self._source.save_state(folder), str(folder.absolute()))

    def load_state(self, folder: Path) -> None:
        """Go on from a state, whatever number of processes wrote it."""
        self._lead("load_state", lambda: self._source.load_state(folder), str(folder.absolute()))

    async def aclose(self) -> None:
        """Close it here; the others close theirs when the run is over."""
        await asyncio.to_thread(self._close)

    def _lead(self, call: str, act: Callable[[], T], given: JsonValue) -> T:
        with self._ranks.leading({"do": "ask", "source": self._name, "call": call, "given": given}):
            return act()

    def _run(self, awaited: Coroutine[Any, Any, T]) -> T:
        with self._running:
            return self._runner.run(awaited, context=contextvars.copy_context())

    def _close(self) -> None:
        self._run(self._source.aclose())
        self._runner.close()


class FollowedSource:
    """The source on any other rank."""

    def __init__(self, source: DividedSource, ranks: "Ranks") -> None:
        """Hold this process's part of `source`."""
        self._source = source
        self._runner = asyncio.Runner(loop_factory=asyncio.new_event_loop)
        source.divide(ranks)

    def ask(self, call: str, given: Any) -> None:
        """Take part in one call of rank 0's."""
        match call:
            case "judge":
                try:
                    self._runner.run(self._source.judge([Candidate.model_validate(one) for one in given]))
                except (RuntimeError, MemoryError):
                    raise
                except Exception:  # noqa: BLE001, S110, RUF100 - rank 0 met the same, and reports it
                    pass
            case "learn":
                self._runner.run(self._source.learn([ScoredGroup.model_validate(one) for one in given]))
            case "save_state":
                self._source.save_state(Path(given))
            case _:
                self._source.load_state(Path(given))

    def close(self) -> None:
        """The run is over."""
        self._runner.run(self._source.aclose())
        self._runner.close()
