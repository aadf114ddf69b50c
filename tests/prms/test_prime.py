"""PRIME: token rewards that add up, learning from verified outcomes alone, and a state that comes back as it was."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from assay.component import BuildContext
from assay.contracts import Candidate, Message, Reward, RewardPart, Rollout, ScoredGroup, Task, Turn
from assay.errors import ConfigError, TrainingError
from assay.steps import SplitterOptions
from assay.testing.learning import encode
from assay.training.forward import TokenRow, response_forward
from assay.training.model import PolicyModel, load_policy
from assay_prms.prime import Prime, PrimeOptions, build_prime

TEXTS = ("1+1=2\nso 2", "1+1=3\nso 3", "2", "1+1=4\nso 4")


@pytest.fixture
def source(tiny: Path, other: Path) -> Prime:
    """A learner that differs from its reference, so that rewards are not 0."""
    learner = load_policy(str(other))
    learner.model.requires_grad_(True)
    return Prime(learner, load_policy(str(tiny)), PrimeOptions(beta=0.5, learning_rate=1e-2))


def rollout(policy: PolicyModel, text: str, name: str = "r", **more: Any) -> Rollout:
    prompt, ids = encode(policy)("1+1=", text)
    turn = Turn(text=text, token_ids=ids, logprobs=(0.0,) * len(ids))
    return Rollout(id=name, task_id="t", group_id="g", turns=(turn,), prompt_ids=prompt, **more)


TASK = Task(id="t", messages=(Message(role="user", content="1+1="),))


def judged(source: Prime, rollouts: Sequence[Rollout]) -> Any:
    batch = [Candidate(task=TASK, rollout=each) for each in rollouts]
    return asyncio.run(_judge(source, batch))


async def _judge(source: Prime, batch: Sequence[Candidate]) -> Any:
    return await source.judge(batch)


def learned(source: Prime, groups: Sequence[ScoredGroup]) -> dict[str, float]:
    async def learn() -> Any:
        return await source.learn(groups)

    return dict(asyncio.run(learn()))


def group(source: Prime, outcomes: Sequence[float | None], texts: Sequence[str] = TEXTS) -> ScoredGroup:
    rollouts = tuple(rollout(source.policy, text, f"r{k}") for k, text in enumerate(texts[: len(outcomes)]))
    rewards = tuple(
        Reward(
            rollout_id=each.id,
            value=value,
            parts=(
                RewardPart(source="prime", weight=1.0, status="scored", value=0.0),
                RewardPart(source="math", weight=1.0, status="scored", value=value)
                if value is not None
                else RewardPart(source="math", weight=1.0, status="abstained", reason="no answer", fault="candidate"),
            ),
        )
        for each, value in zip(rollouts, outcomes, strict=True)
    )
    return ScoredGroup(task=TASK, rollouts=rollouts, rewards=rewards)


def test_every_token_is_paid_its_log_ratio_and_the_value_is_zero(source: Prime) -> None:
    rollouts = [rollout(source.policy, text) for text in TEXTS]
    for each, verdict in zip(rollouts, judged(source, rollouts), strict=True):
        row = TokenRow(each.prompt_ids or (), each.turns[0].token_ids or ())
        with torch.no_grad():
            own = response_forward(source.policy.model, [row]).logp
            frozen = response_forward(source.reference.model, [row]).logp
        expected = (0.5 * (own - frozen))[0].tolist()
        assert verdict.value == 0.0
        assert [step.value for step in verdict.steps] == pytest.approx(expected, abs=1e-5)
        assert [step.span.end for step in verdict.steps] == [*range(1, len(each.text) + 1), len(each.text)]
        assert verdict.evidence[0].data["q"] == pytest.approx(sum(expected), abs=1e-4)


def test_steps_are_paid_what_their_tokens_are(source: Prime) -> None:
    whole = judged(source, [rollout(source.policy, TEXTS[0])])[0]
    source.options = PrimeOptions(beta=0.5, grain="step", splitter=SplitterOptions(by="line"))
    (verdict,) = judged(source, [rollout(source.policy, TEXTS[0])])
    tokens = [step.value for step in whole.steps]
    assert [step.value for step in verdict.steps] == pytest.approx([sum(tokens[:5]), sum(tokens[5:])], abs=1e-5)


def test_a_response_without_steps_gets_no_process_reward_and_no_penalty(source: Prime) -> None:
    source.options = PrimeOptions(grain="step")
    (verdict,) = judged(source, [rollout(source.policy, "")])
    assert (verdict.status, verdict.value, verdict.steps) == ("scored", 0.0, ())


def test_learning_tells_right_from_wrong_and_the_scores_of_before_were_those_of_before(source: Prime) -> None:
    mixed = group(source, [1.0, 0.0, 1.0, 0.0])
    before = judged(source, mixed.rollouts)
    first = learned(source, [mixed])
    assert (first["prime/version"], first["prime/responses"], first["prime/good_share"]) == (1.0, 4.0, 0.5)
    last = [learned(source, [mixed]) for _ in range(30)][-1]
    after = judged(source, mixed.rollouts)
    assert last["prime/loss"] < 0.5 * first["prime/loss"]
    assert last["prime/accuracy"] == 1.0
    right = [verdict.evidence[0].data["q"] > 0 for verdict in after]
    assert right == [True, False, True, False]
    assert [v.evidence[0].data["version"] for v in (before[0], after[0])] == [0, 31]


def test_what_was_not_verified_is_not_learned_from(source: Prime) -> None:
    weights = [parameter.clone() for parameter in source.policy.model.parameters()]
    found = learned(source, [group(source, [None, None, 1.0]), group(source, [0.0] * 4), group(source, [1.0] * 4)])
    assert found == {"prime/version": 0.0, "prime/groups_left_out": 3.0, "prime/responses": 0.0}
    assert all(torch.equal(a, b) for a, b in zip(weights, source.policy.model.parameters(), strict=True))
    lessons, left = source.lessons([group(source, [1.0, None, 0.0])])
    assert ([lesson.right for lesson in lessons], left) == ([True, False], 0)


def test_the_state_comes_back_and_learns_on_as_if_nothing_had_happened(
    source: Prime, tiny: Path, tmp_path: Path
) -> None:
    mixed = group(source, [1.0, 0.0, 1.0, 0.0])
    learned(source, [mixed])
    source.save_state(tmp_path)
    other = load_policy(str(tiny))
    other.model.requires_grad_(True)
    second = Prime(other, source.reference, source.options)
    second.load_state(tmp_path)
    for each in (source, second):
        learned(each, [mixed])
    assert second.version == source.version == 2
    for one, two in zip(judged(source, mixed.rollouts), judged(second, mixed.rollouts), strict=True):
        assert one == two
    (tmp_path / "prime.json").unlink()
    with pytest.raises(TrainingError, match="the state of the source prime cannot be read"):
        second.load_state(tmp_path)


def test_a_loss_that_is_not_finite_leaves_the_weights(source: Prime) -> None:
    with torch.no_grad():
        next(iter(source.policy.model.parameters()))[5].fill_(float("nan"))
    with pytest.raises(TrainingError, match="prime: the loss is not finite at update 1; lower learning_rate"):
        learned(source, [group(source, [1.0, 0.0])])
    with pytest.raises(ValueError, match="a log-ratio is not finite"):
        judged(source, [rollout(source.policy, "1")])


def test_it_starts_from_the_policy_or_a_named_model_of_its_tokenizer(tiny: Path, policy: PolicyModel) -> None:
    with pytest.raises(ConfigError, match="prime: there is no policy to start from"):
        build_prime(PrimeOptions(), BuildContext())
    with pytest.raises(ConfigError, match=r"accuracy_low 0.9 is above accuracy_high 0.8; swap them"):
        build_prime(PrimeOptions(accuracy_low=0.9), BuildContext(policy=policy))
    made = build_prime(PrimeOptions(model=str(tiny)), BuildContext(policy=policy))
    assert isinstance(made, Prime)
    assert made.policy.model is not policy.model
    assert not any(parameter.requires_grad for parameter in made.reference.model.parameters())
