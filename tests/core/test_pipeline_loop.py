"""The five stages together, with scripted parts: order, bounds, refills, resume, and what a stuck stage is told."""

import asyncio
import re
import time
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import pytest

from assay.contracts import (
    Message,
    Reward,
    Rollout,
    RolloutRequest,
    Sampling,
    ScoredGroup,
    Task,
    Turn,
    WeightSpan,
    WeightsRef,
)
from assay.errors import EngineError, TrainingError
from assay.pipeline import Loop, LoopSettings, StepReport, Tickets
from assay.pipeline.evaluate import evaluate
from assay.protocols import Decision

TASKS = [Task(id=f"t{i}", messages=(Message(role="user", content=str(i)),), reference=str(i)) for i in range(7)]


@dataclass
class Engine:
    """Answers at once, in reverse order; each answer knows the version in use."""

    delay_s: float = 0.0
    forget: frozenset[str] = frozenset()
    policy_version: int = 0
    asked: list[str] = field(default_factory=list[str])

    async def generate(self, requests: Sequence[RolloutRequest]) -> AsyncIterator[Rollout]:
        self.asked += [request.id for request in requests]
        for request in reversed(requests):
            await asyncio.sleep(self.delay_s)
            if request.id not in self.forget:
                yield Rollout(
                    id=request.id,
                    task_id=request.task.id,
                    group_id=request.group_id,
                    turns=(Turn(text=f"{request.task.id}:{request.sampling.seed}"),),
                    weight_versions=(WeightSpan(version=self.policy_version, first=0, last=0),),
                )

    async def pause(self, mode: Literal["keep", "abort", "wait"] = "keep") -> None: ...

    async def push_weights(self, weights: WeightsRef) -> None:
        self.policy_version = weights.version

    async def resume(self) -> None: ...

    async def abort(self, ids: Collection[str]) -> None: ...

    async def aclose(self) -> None: ...


@dataclass
class Judge:
    delay_s: float = 0.0
    judges_groups: bool = False
    equal_tasks: frozenset[str] = frozenset()
    judged: list[str] = field(default_factory=list[str])

    async def judge(self, task: Task, rollout: Rollout) -> Reward:
        await asyncio.sleep(self.delay_s)
        self.judged.append(rollout.id)
        value = 1.0 if task.id in self.equal_tasks else float(rollout.id.endswith("0"))
        return Reward(rollout_id=rollout.id, value=value)

    async def judge_group(self, task: Task, rollouts: Sequence[Rollout]) -> Sequence[Reward]:
        return [await self.judge(task, rollout) for rollout in rollouts]


@dataclass
class Learner:
    refill_equal: bool = False
    batches: list[list[ScoredGroup]] = field(default_factory=list[list[ScoredGroup]])

    def select(self, group: ScoredGroup) -> Decision:
        if self.refill_equal and len(set(group.values)) == 1:
            return Decision("refill", "zero_variance")
        return Decision("keep", "")

    def step(self, groups: Sequence[ScoredGroup]) -> Mapping[str, float]:
        self.batches.append(list(groups))
        return {"loss": float(len(groups))}

    def weights(self, version: int) -> WeightsRef:
        return WeightsRef(version=version)


@dataclass
class Journal:
    left: dict[str, dict[str, tuple[Rollout, Reward | None]]] = field(
        default_factory=dict[str, "dict[str, tuple[Rollout, Reward | None]]"]
    )
    rollouts: dict[str, Rollout] = field(default_factory=dict[str, Rollout])
    rewards: dict[str, Reward] = field(default_factory=dict[str, Reward])
    reports: list[StepReport] = field(default_factory=list[StepReport])

    def stored(self, group_id: str) -> Mapping[str, tuple[Rollout, Reward | None]]:
        return self.left.get(group_id, {})

    def sampled(self, step: int, task: Task, rollout: Rollout) -> None:
        assert rollout.id not in self.rollouts
        self.rollouts[rollout.id] = rollout

    def rewarded(self, step: int, rollout: Rollout, reward: Reward) -> None:
        assert rollout.id not in self.rewards
        self.rewards[rollout.id] = reward

    def trained(self, report: StepReport) -> None:
        self.reports.append(report)


def make_loop(
    *,
    engine: Engine | None = None,
    judge: Judge | None = None,
    learner: Learner | None = None,
    journal: Journal | None = None,
    steps: int = 4,
    staleness: int = 0,
    groups: int = 3,
    stuck_after_s: float = 60.0,
    first_step: int = 0,
) -> Loop:
    settings = LoopSettings(
        steps=steps,
        groups_per_step=groups,
        group_size=2,
        sampling=Sampling(max_new_tokens=4),
        seed=5,
        max_staleness=staleness,
        stuck_after_s=stuck_after_s,
    )
    return Loop(
        settings,
        tickets=Tickets(TASKS, seed=5, next_number=groups * first_step),
        engine=engine or Engine(),
        judge=judge or Judge(),
        learner=learner or Learner(),
        journal=journal or Journal(),
        first_step=first_step,
    )


def trained_tickets(journal: Journal) -> list[list[int]]:
    return [[ticket.number for ticket, _ in report.batch.groups] for report in journal.reports]


@pytest.mark.parametrize("groups", [False, True])
def test_a_synchronous_run_trains_on_every_ticket_once_and_in_order(groups: bool):
    journal, learner = Journal(), Learner()
    loop = make_loop(journal=journal, learner=learner, judge=Judge(judges_groups=groups))
    assert asyncio.run(loop.run()) == "done"
    assert trained_tickets(journal) == [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9, 10, 11]]
    for step, batch in enumerate(learner.batches):
        versions = {span.version for group in batch for rollout in group.rollouts for span in rollout.weight_versions}
        assert versions == {step}
    assert [report.metrics["loss"] for report in journal.reports] == [3.0] * 4


def test_two_synchronous_runs_are_equal():
    first, second = Learner(), Learner()
    asyncio.run(make_loop(learner=first).run())
    asyncio.run(make_loop(learner=second, judge=Judge(delay_s=0.002)).run())
    assert first.batches == second.batches


@pytest.mark.parametrize("staleness", [1, 2])
def test_no_group_is_older_than_the_bound_and_sampling_runs_ahead(staleness: int):
    journal = Journal()
    loop = make_loop(journal=journal, staleness=staleness, steps=6)
    assert asyncio.run(loop.run()) == "done"
    numbers = [number for batch in trained_tickets(journal) for number in batch]
    assert sorted(numbers) == list(range(18))
    ages = [
        report.step - 1 - span.version
        for report in journal.reports
        for _, group in report.batch.groups
        for rollout in group.rollouts
        for span in rollout.weight_versions
    ]
    assert max(ages) <= staleness
    assert max(ages) > 0


def test_where_updates_take_longest_no_group_lies_and_waits_for_more_than_one():
    now = [0.0]

    @dataclass
    class SlowLearner(Learner):
        def step(self, groups: Sequence[ScoredGroup]) -> Mapping[str, float]:
            time.sleep(0.05)  # what is drawn meanwhile
            now[0] += 10.0
            return super().step(groups)

    journal = Journal()
    loop = make_loop(learner=SlowLearner(), journal=journal, staleness=3, steps=8)
    loop.clock = lambda: now[0]
    assert asyncio.run(loop.run()) == "done"
    assert loop.admission.ahead == 1
    assert sorted(number for batch in trained_tickets(journal) for number in batch) == list(range(24))
    ages = [
        max(
            report.step - 1 - span.version
            for _, group in report.batch.groups
            for span in group.rollouts[0].weight_versions
        )
        for report in journal.reports
    ]
    assert max(ages[:4]) > 1, "before anything was measured"
    assert max(ages[5:]) <= 1
    assert [report.metrics["ahead_steps"] for report in journal.reports] == [1.0] * 8


@dataclass
class LateEngine(Engine):
    """Keeps group 0 back until version 2 is pushed, and that push under way until step 3 is done."""

    step_is_done: asyncio.Event = field(default_factory=asyncio.Event)
    pushing: asyncio.Event = field(default_factory=asyncio.Event)

    async def generate(self, requests: Sequence[RolloutRequest]) -> AsyncIterator[Rollout]:
        async for rollout in super().generate(requests):
            if rollout.group_id == "g000000":
                await self.pushing.wait()
            yield rollout

    async def push_weights(self, weights: WeightsRef) -> None:
        if weights.version == 2:
            self.pushing.set()
            await self.step_is_done.wait()
        await super().push_weights(weights)


def test_the_age_of_a_group_counts_from_the_weights_that_learn_not_from_those_the_engine_has():
    engine, journal, learner = LateEngine(), Journal(), Learner()
    loop = make_loop(engine=engine, journal=journal, learner=learner, staleness=1, groups=1)
    loop.hooks.after_step = lambda report: engine.step_is_done.set() if report.step == 3 else None
    assert asyncio.run(loop.run()) == "done"
    assert trained_tickets(journal) == [[1], [2], [], [3]]
    assert len(learner.batches) == 3
    late = journal.reports[2]
    assert [(ticket.number, decision) for ticket, _, decision in late.batch.decisions] == [
        (0, Decision("drop", "stale"))
    ]
    assert late.metrics["stale_groups"] == 1


def test_dropped_groups_are_replaced_by_other_prompts():
    journal = Journal()
    judge = Judge(equal_tasks=frozenset({"t0", "t1", "t2"}))
    loop = make_loop(journal=journal, judge=judge, learner=Learner(refill_equal=True))
    assert asyncio.run(loop.run()) == "done"
    for report in journal.reports:
        assert len(report.batch.groups) == 3
        assert all(group.task.id not in judge.equal_tasks for _, group in report.batch.groups)
    assert sum(report.batch.dropped["zero_variance"] for report in journal.reports) > 0
    decided = [ticket.number for report in journal.reports for ticket, _, _ in report.batch.decisions]
    assert len(decided) == len(set(decided))


def test_what_a_killed_run_left_behind_is_neither_drawn_nor_judged_again():
    before = Journal()
    asyncio.run(make_loop(journal=before, steps=2).run())
    left: dict[str, dict[str, tuple[Rollout, Reward | None]]] = {}
    for number, (name, rollout) in enumerate(sorted(before.rollouts.items())):
        if rollout.group_id in ("g000003", "g000004"):
            reward = before.rewards[name] if number % 2 else None
            left.setdefault(rollout.group_id, {})[name] = (rollout, reward)
    engine, judge, journal = Engine(policy_version=1), Judge(), Journal(left=left)
    loop = make_loop(engine=engine, judge=judge, journal=journal, steps=2, first_step=1)
    assert asyncio.run(loop.run()) == "done"
    assert sorted(engine.asked) == ["r000005-00", "r000005-01"]
    assert len(judge.judged) == 4
    assert trained_tickets(journal) == [[3, 4, 5]]
    assert [group for _, group in journal.reports[0].batch.groups] == [
        group for _, group in before.reports[1].batch.groups
    ]


def test_a_stop_request_ends_the_run_after_the_step_in_progress():
    journal = Journal()
    loop = make_loop(journal=journal, steps=50)
    loop.hooks.after_step = lambda report: setattr(loop, "stop_requested", report.step == 2)
    assert asyncio.run(loop.run()) == "stopped"
    assert [report.step for report in journal.reports] == [1, 2]


def test_an_engine_that_loses_a_rollout_is_an_error_that_names_it():
    loop = make_loop(engine=Engine(forget=frozenset({"r000001-01"})))
    with pytest.raises(BaseExceptionGroup) as caught:
        asyncio.run(loop.run())
    found, _ = caught.value.split(EngineError)
    assert found is not None
    assert "ended without 1 of 6 rollouts; first 'r000001-01'" in str(leaf(found))


def complaint(loop: Loop) -> str:
    """What the watchdog says of a run that it ends."""
    with pytest.raises(BaseExceptionGroup) as caught:
        asyncio.run(loop.run())
    found, _ = caught.value.split(TrainingError)
    assert found is not None
    return str(leaf(found))


def test_a_verifier_that_never_answers_is_named_by_the_watchdog():
    loop = make_loop(judge=Judge(delay_s=3600), stuck_after_s=2.0)
    assert "stage 'judge' is stuck in the verdict on rollout" in complaint(loop)


def test_a_run_in_which_nothing_moves_for_a_while_tells_what_it_waits_for():
    told: list[str] = []
    loop = make_loop(judge=Judge(delay_s=2.5), steps=1, stuck_after_s=1e9)
    loop.clock = lambda: 100 * time.monotonic()  # its seconds are our hundredths
    loop.hooks.waiting = told.append
    assert asyncio.run(loop.run()) == "done"
    assert any(re.fullmatch(r"waiting for the verdict on rollout 'r0.*' \(judge, \d+ s\)", what) for what in told), told


def test_an_evaluation_that_never_ends_is_named_by_the_watchdog():
    loop = make_loop(stuck_after_s=2.0)
    loop.hooks.after_publish = lambda step: asyncio.sleep(3600)
    assert "stage 'publish' is stuck in the evaluation after step 1 for" in complaint(loop)


def test_an_evaluation_tells_of_every_answer_that_it_goes_on():
    moved: list[None] = []

    async def run() -> int:
        answers = await evaluate(
            Engine(),
            {"a": Judge()},
            TASKS,
            sampling=Sampling(max_new_tokens=4),
            samples=2,
            seed=5,
            prefix="e",
            on_progress=lambda: moved.append(None),
        )
        return len(answers)

    assert asyncio.run(run()) == 14
    assert len(moved) == 28


def leaf(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    return error  # pyright: ignore[reportUnknownVariableType]
