"""A learning source on several processes: every process makes rank 0's calls, in its order, between the trainer's."""

import asyncio
import json
import threading
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from assay.contracts import Candidate, Limits, Message, Rollout, ScoredGroup, Task, Turn, Verdict
from assay.errors import TrainingError
from assay.judging.divided import FollowedSource, LedSource
from assay.protocols import DividedSource
from assay.training.ranks import Ranks


class Counting:
    """As a third party writes one; it keeps the calls that it met."""

    limits = Limits(timeout_s=1.0)

    def __init__(self) -> None:
        self.met: list[object] = []
        self.is_slow = threading.Event()

    def divide(self, ranks: Ranks) -> None:
        self.met.append(("divide", ranks.rank))

    async def judge(self, batch: Sequence[Candidate]) -> Sequence[Verdict]:
        texts = [candidate.rollout.text for candidate in batch]
        if "slow" in texts:
            self.is_slow.set()
            await asyncio.sleep(0.3)
        self.met.append(("judge", *texts))
        if "bad" in texts:
            raise ValueError("not a text of this model")
        return [Verdict.score(len(text)) for text in texts]

    async def learn(self, groups: Sequence[ScoredGroup]) -> Mapping[str, float]:
        self.met.append(("learn", len(groups)))
        if not groups:
            raise TrainingError("counting: nothing to learn from")
        return {"groups": float(len(groups))}

    def save_state(self, folder: Path) -> None:
        self.met.append(("save", folder.name))

    def load_state(self, folder: Path) -> None:
        self.met.append(("load", folder.name))

    async def aclose(self) -> None:
        self.met.append("close")


class Leading(Ranks):
    """Rank 0 of two; what the other would hear is kept."""

    size = 2

    def __init__(self) -> None:
        self.heard: list[dict[str, Any]] = []
        self._turn = threading.Lock()

    @contextmanager
    def leading(self, command: Any) -> Generator[None]:
        with self._turn:
            self.heard.append(json.loads(json.dumps(command)))
            yield


class Second(Ranks):
    """The other one."""

    rank, size = 1, 2


TASK = Task(id="t", messages=(Message(role="user", content="?"),))


def candidate(text: str) -> Candidate:
    return Candidate(task=TASK, rollout=Rollout(id="r", task_id="t", group_id="g", turns=(Turn(text=text),)))


GROUP = ScoredGroup(task=TASK, rollouts=(), rewards=())


def follow(commands: Sequence[dict[str, Any]]) -> list[object]:
    source = Counting()
    followed = FollowedSource(source, Second())
    try:
        for command in commands:
            if command["do"] == "ask":
                followed.ask(command["call"], command["given"])
    finally:
        followed.close()
    return source.met


def test_every_process_makes_the_calls_of_rank_0(tmp_path: Path) -> None:
    source, ranks = Counting(), Leading()
    assert isinstance(source, DividedSource)

    async def lead() -> None:
        led = LedSource(source, "counting", {"use": "counting", "options": {}, "where": "rewards[0]"}, ranks)
        assert [verdict.value for verdict in await led.judge([candidate("ab"), candidate("c")])] == [2.0, 1.0]
        with pytest.raises(ValueError, match="not a text of this model"):
            await led.judge([candidate("bad")])
        assert await led.learn([GROUP]) == {"groups": 1.0}
        led.save_state(tmp_path / "here")
        led.load_state(tmp_path / "there")
        await led.aclose()

    asyncio.run(lead())
    assert source.met[0] == ("divide", 0)
    assert follow(ranks.heard) == [("divide", 1), *source.met[1:]]
    assert ("load", "there") in source.met


def test_a_call_waits_for_the_trainer_and_one_that_is_given_up_is_made_to_its_end(tmp_path: Path) -> None:
    source, ranks = Counting(), Leading()
    training_leads, goes_on = threading.Event(), threading.Event()

    def update() -> None:
        with ranks.leading({"do": "step"}):
            training_leads.set()
            goes_on.wait(60)
            source.met.append("step")

    async def lead() -> None:
        led = LedSource(source, "counting", {}, ranks)
        training = asyncio.create_task(asyncio.to_thread(update))
        await asyncio.to_thread(training_leads.wait, 60)
        early = asyncio.create_task(led.judge([candidate("early")]))
        await asyncio.sleep(0.1)
        goes_on.set()
        await early
        given_up = asyncio.create_task(led.judge([candidate("slow")]))
        await asyncio.to_thread(source.is_slow.wait, 60)
        given_up.cancel()
        with pytest.raises(asyncio.CancelledError):
            await given_up
        led.save_state(tmp_path / "here")
        await training
        await led.aclose()

    asyncio.run(lead())
    assert source.met[1:] == ["step", ("judge", "early"), ("judge", "slow"), ("save", "here"), "close"]
    assert [command.get("call", command["do"]) for command in ranks.heard] == [
        "source", "step", "judge", "judge", "save_state",
    ]  # fmt: skip


def test_what_ends_rank_0_ends_the_others_and_what_it_only_reports_does_not() -> None:
    def asked(call: str, given: Any) -> dict[str, Any]:
        return {"do": "ask", "source": "counting", "call": call, "given": given}

    assert follow([asked("judge", [candidate("bad").model_dump(mode="json")])])[1:] == [("judge", "bad"), "close"]
    with pytest.raises(TrainingError, match="nothing to learn from"):
        follow([asked("learn", [])])
