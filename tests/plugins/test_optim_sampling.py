"""Batch rules and task samplers: what is kept, what is drawn next, and state that survives a checkpoint."""

import json
from collections.abc import Sequence

from assay.contracts.batch import Reward, ScoredGroup
from assay.contracts.rollout import Rollout, Turn
from assay.contracts.task import Message, Task
from assay.pipeline.tickets import Tickets
from assay.protocols import TaskSampler
from assay_optim import optimizer
from assay_optim.batch_rules import AccuracyBand, AllCorrect, ZeroVariance
from assay_optim.sidecars.history import (
    BandOptions,
    CurriculumOptions,
    NoPositiveResamplingOptions,
    PassRateOptions,
    PassRateSampler,
)


def task(name: str) -> Task:
    return Task(id=name, messages=(Message(role="user", content="?"),))


def scored(name: str, values: Sequence[float | None], channel: Sequence[float] = ()) -> ScoredGroup:
    rollouts = tuple(
        Rollout(id=f"{name}{index}", task_id=name, group_id=name, turns=(Turn(text="x"),))
        for index in range(len(values))
    )
    rewards = tuple(
        Reward(
            rollout_id=rollout.id,
            value=value,
            reason="masked" if value is None else None,
            channels={"metric": channel[index]} if channel else {},
        )
        for index, (rollout, value) in enumerate(zip(rollouts, values, strict=True))
    )
    return ScoredGroup(task=task(name), rollouts=rollouts, rewards=rewards)


def reasons(rule: ZeroVariance | AllCorrect | AccuracyBand, groups: Sequence[ScoredGroup]) -> list[str]:
    return [decision.reason for decision in rule.select(groups)]


def test_rules_look_at_finite_rewards_of_their_channel() -> None:
    groups = [scored("a", [1, None, 1]), scored("b", [1, 0, None]), scored("c", [None, None])]
    assert reasons(ZeroVariance(), groups) == ["zero_variance", "", "zero_variance"]
    assert reasons(AllCorrect(), groups) == ["all_correct", "", ""]
    shaped = scored("d", [0.9, 0.7], channel=[1, 1])
    assert reasons(ZeroVariance(), [shaped]) == [""]
    assert reasons(ZeroVariance(channel="metric"), [shaped]) == ["zero_variance"]


def test_the_accuracy_band_includes_its_ends() -> None:
    groups = [scored(str(wins), [1.0] * wins + [0.0] * (5 - wins)) for wins in range(6)]
    assert reasons(AccuracyBand(low=0.2, high=0.8), groups) == ["accuracy_low", "", "", "", "", "accuracy_high"]


def test_the_first_rule_against_a_group_decides() -> None:
    ours = optimizer("dapo", batch_rules=["all_correct", {"use": "zero_variance", "action": "refill"}])
    decisions = ours.select([scored("a", [1, 1]), scored("b", [0, 0]), scored("c", [1, 0]), scored("d", [None, None])])
    assert [(decision.action, decision.reason) for decision in decisions] == [
        ("drop", "all_correct"),
        ("refill", "zero_variance"),
        ("keep", ""),
        ("refill", "zero_variance"),
    ]
    assert [decision.reason for decision in optimizer("dr_grpo").select([scored("d", [None, None])])] == ["masked"]


def sampler(options: PassRateOptions) -> PassRateSampler:
    made = PassRateSampler(options)
    made.observe([scored("solved", [1] * 10), scored("half", [1, 0]), scored("never", [0, None, 0])])
    return made


def test_samplers_weigh_tasks_by_their_success_rate() -> None:
    tasks = ["solved", "half", "never", "unseen"]
    assert list(sampler(CurriculumOptions()).weights(tasks)) == [0.05, 0.5, 1, 1]
    assert list(sampler(NoPositiveResamplingOptions()).weights(tasks)) == [0, 1, 1, 1]
    assert list(sampler(BandOptions()).weights(tasks)) == [0, 1, 0, 1]


def test_old_rates_may_fade() -> None:
    made = sampler(NoPositiveResamplingOptions(momentum=0.1))
    assert list(made.weights(["solved"])) == [0]
    made.observe([scored("solved", [0] * 4)])
    assert list(made.weights(["solved"])) == [1]


def test_a_samplers_state_survives_json() -> None:
    made, other = sampler(CurriculumOptions()), PassRateSampler(CurriculumOptions())
    other.load_state_dict(json.loads(json.dumps(made.state_dict())))
    assert isinstance(other, TaskSampler)
    assert other.rates.counts == made.rates.counts


def test_the_pipeline_draws_what_the_sampler_wants() -> None:
    tasks = [task(name) for name in ("solved", "half", "never")]
    weights = sampler(NoPositiveResamplingOptions()).weights
    drawn = [ticket.task.id for ticket in Tickets(tasks, seed=1, weights=weights).take(40)]
    assert set(drawn) == {"half", "never"}
    again = [ticket.task.id for ticket in Tickets(tasks, seed=1, weights=weights).take(40)]
    assert drawn == again


def test_when_nothing_is_wanted_the_next_ticket_is_drawn_all_the_same() -> None:
    def never(names: Sequence[str]) -> list[float]:
        return [0.0 for _ in names]

    assert len(Tickets([task("a"), task("b")], seed=0, weights=never).take(3)) == 3
