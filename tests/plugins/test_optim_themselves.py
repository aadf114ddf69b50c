"""Each method is itself: a scenario made for its distinguishing term holds, and without that term it does not."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from assay.contracts.batch import Reward, ScoredGroup
from assay.contracts.rollout import Rollout, Turn, WeightSpan
from assay.contracts.task import Message, Task
from assay.contracts.tensors import Forward, TrainBatch
from assay.testing.optimizer_suite import batch_of, forward_of, loss_and_gradient
from assay_optim import optimizer
from assay_optim.optimizer import Composition
from assay_optim.presets import PRESETS
from assay_optim.sidecars.learnable import LearnableScalar

Scenario = Callable[[Composition], bool]


class Case(NamedTuple):
    """A preset, what takes its term away, and what must be seen only with it."""

    preset: str
    without: dict[str, Any]
    seen: Scenario


def filled(batch: TrainBatch, **more: Any) -> TrainBatch:
    """The batch with log-probs of -1 everywhere, unless given."""
    flat = torch.full_like(batch.mask, -1.0)
    return replace(batch, **{"logp_gen": flat, "logp_old": flat, "logp_ref": flat, **more})


def advantages(ours: Composition, batch: TrainBatch) -> Tensor:
    found = ours.prepare(batch).advantage
    assert found is not None
    return found


def gradient(ours: Composition, batch: TrainBatch, current: Tensor | None = None) -> Tensor:
    logp = torch.full_like(batch.mask, -1.0) if current is None else current
    return loss_and_gradient(ours, ours.prepare(batch), logp)[1]


def scored(task: str, values: list[float], *, version: int = 0) -> ScoredGroup:
    rollouts = tuple(
        Rollout(
            id=f"{task}-{index}", task_id=task, group_id=task, turns=(Turn(text="x", token_ids=(1,)),),
            weight_versions=(WeightSpan(version=version, first=0, last=0),),
        )
        for index in range(len(values))
    )  # fmt: skip
    rewards = tuple(Reward(rollout_id=rollout.id, value=value) for rollout, value in zip(rollouts, values, strict=True))
    return ScoredGroup(
        task=Task(id=task, messages=(Message(role="user", content="?"),)), rollouts=rollouts, rewards=rewards
    )


def tokens_of_a_long_wrong_answer_weigh_as_much_as_those_of_a_short_one(ours: Composition) -> bool:
    found = gradient(ours, filled(batch_of([1, 0, 0], [2, 1, 4])))
    return bool(torch.isclose(found[1, 0], found[2, 0]))


def rewards_of_any_size_give_the_same_advantages(ours: Composition) -> bool:
    small, large = (advantages(ours, filled(batch_of([size, 0, 0, size], [1] * 4))) for size in (0.1, 100.0))
    return bool(torch.allclose(small, large, atol=1e-3))


def a_group_with_larger_rewards_keeps_its_larger_weight(ours: Composition) -> bool:
    found = advantages(ours, filled(batch_of([1, 0, 10, 0], [1] * 4, group_size=2)))
    return bool(found[2] > 5 * found[0])


def the_reference_pulls_where_rewards_say_nothing(ours: Composition) -> bool:
    batch = filled(batch_of([1, 1], [1, 1]), logp_ref=torch.full((2, 1), -3.0))
    return bool(gradient(ours, batch).any())


def the_own_reward_is_not_in_the_baseline(ours: Composition) -> bool:
    return bool(advantages(ours, filled(batch_of([1, 0, 0], [1] * 3)))[0] == 1)


def a_rare_token_may_still_grow_beyond_a_fifth(ours: Composition) -> bool:
    return bool(gradient(ours, filled(batch_of([1, 0], [1, 1])), torch.tensor([[-1 + 0.24], [-1.0]]))[0].any())


def a_flat_group_is_replaced_by_another_prompt(ours: Composition) -> bool:
    return [decision.action for decision in ours.select([scored("a", [1, 1]), scored("b", [1, 0])])] == [
        "refill",
        "keep",
    ]


def an_answer_near_the_limit_is_worth_less(ours: Composition) -> bool:
    found = advantages(ours, filled(batch_of([1, 1, 0], [10, 5, 5], max_tokens=10)))
    return bool(found[0] < found[1])


def every_token_weighs_the_same(ours: Composition) -> bool:
    found = gradient(ours, filled(batch_of([1, 1, 0, 0], [1, 4, 2, 2], max_tokens=100)))
    return bool(torch.isclose(found[0, 0], found[1, 0]))


def a_token_far_above_one_still_has_a_gradient(ours: Composition) -> bool:
    return bool(gradient(ours, filled(batch_of([1, 0], [1, 1])), torch.tensor([[0.0], [-1.0]]))[0].any())


def one_outlying_token_is_judged_with_its_whole_response(ours: Composition) -> bool:
    current = torch.tensor([[-1 + 2e-3, *[-1 - 2e-4] * 9], [-1.0] * 10])
    found = gradient(ours, filled(batch_of([1, 0], [10, 10])), current)
    return bool(found[0, 0] != 0)


def a_lone_success_weighs_seven_times_a_failure(ours: Composition) -> bool:
    found = advantages(ours, filled(batch_of([1, *[0] * 7], [1] * 8)))
    return bool(torch.isclose(found[0], torch.tensor(7.0), atol=1e-3))


def a_higher_order_pushes_failures_harder(ours: Composition) -> bool:
    return bool(advantages(ours, filled(batch_of([1, 0, 0, 0], [1] * 4)))[1] < 0)


def a_small_probability_may_multiply(ours: Composition) -> bool:
    low = torch.full((2, 1), 1e-4).log()
    batch = filled(batch_of([1, 0], [1, 1]), logp_gen=low, logp_old=low)
    return bool(gradient(ours, batch, low + torch.tensor(5.0).log())[0].any())


def a_likely_token_of_the_sampler_may_not_wander(ours: Composition) -> bool:
    """p from 0.5 to 0.75 is a ratio that a clip at 2 would let pass."""
    gen = torch.full((2, 1), 0.5).log()
    batch = filled(batch_of([1, 0], [1, 1]), logp_gen=gen, logp_old=gen)
    return not bool(gradient(ours, batch, torch.full((2, 1), 0.75).log())[0].any())


def weights_are_against_the_sampler(ours: Composition) -> bool:
    """The trainer finds the answers twice as likely as the sampler said: the gradient doubles."""
    twice = torch.full((2, 1), -1.0 - float(torch.tensor(2.0).log()))
    batch = batch_of([1, 0], [1, 1])
    same, mismatched = gradient(ours, filled(batch)), gradient(ours, filled(batch, logp_gen=twice))
    return bool(torch.allclose(mismatched, 2 * same))


def prompts_weigh_the_same_however_long_their_answers(ours: Composition) -> bool:
    found = gradient(ours, filled(batch_of([1, 0, 1, 0], [1, 1, 8, 8], group_size=2)))
    return bool(torch.isclose(found[0].abs().sum(), found[2].abs().sum()))


def groups_share_one_scale(ours: Composition) -> bool:
    found = advantages(ours, filled(batch_of([1, -1, 0.1, -0.1], [1] * 4, group_size=2)))
    return bool(torch.isclose(found[0], 10 * found[2]))


def a_solved_task_is_never_drawn_again(ours: Composition) -> bool:
    ours.select([scored("solved", [1.0] * 10), scored("open", [1.0, 0.0])])
    sampler = ours.task_sampler
    return sampler is not None and list(sampler.weights(["solved", "open", "unseen"])) == [0, 1, 1]


def lengths_are_weighed_by_a_number_that_learns(ours: Composition) -> bool:
    prepared = ours.prepare(filled(batch_of([1, 0, 0], [1, 4, 2])))
    current = torch.full_like(prepared.mask, -1.0)
    ours.loss(prepared, Forward(current, current)).loss.requires_grad_().backward()  # pyright: ignore[reportUnknownMemberType] - torch's stub is partial
    learned = [sidecar.value.grad for sidecar in ours.sidecars if isinstance(sidecar, LearnableScalar)]
    return any(grad is not None and bool(grad != 0) for grad in learned)


def a_lone_response_per_prompt_teaches(ours: Composition) -> bool:
    return bool(advantages(ours, filled(batch_of([1, 0, 0], [1] * 3, groups=[0, 1, 2]))).abs().min() > 0.1)


def groups_are_whitened_together(ours: Composition) -> bool:
    found = advantages(ours, filled(batch_of([1, 0, 1, 0.9], [1] * 4, group_size=2)))
    return abs(float(found.std()) - 1) < 1e-3 and bool(found.dim() == 2)


def the_likeliest_wrong_answer_is_pushed_hardest(ours: Composition) -> bool:
    prepared = ours.prepare(filled(batch_of([1, 0, 0], [1] * 3)))
    found = ours.rescore(prepared, torch.tensor([[-1.0], [-0.1], [-3.0]])).advantage
    return found is not None and bool(found[1] < 1.05 * found[2])


def the_policy_is_held_near_the_old_one(ours: Composition) -> bool:
    flat = filled(batch_of([1, 1], [1, 1]))
    return bool(gradient(ours, flat, torch.full((2, 1), -2.0)).any())


def a_better_prefix_of_a_wrong_answer_is_worth_more(ours: Composition) -> bool:
    batch = replace(filled(batch_of([0, 0, 0], [1] * 3)), channels={"rts": torch.tensor([0.0, 0.5, 0.9])})
    found = advantages(ours, batch)
    return bool(found[0] < found[1] < found[2])


def an_all_wrong_group_pushes_away(ours: Composition) -> bool:
    return bool((advantages(ours, filled(batch_of([0, 0, 0], [1] * 3))) < 0).all())


def an_all_correct_group_is_left_out_and_an_all_wrong_one_stays(ours: Composition) -> bool:
    return [decision.action for decision in ours.select([scored("a", [1, 1]), scored("b", [0, 0])])] == ["drop", "keep"]


def a_stale_group_is_left_out(ours: Composition) -> bool:
    groups = [scored("old", [1, 0], version=1), scored("new", [1, 0], version=12)]
    return [decision.reason for decision in ours.select(groups)] == ["stale", ""]


def explanations_are_made_likelier(ours: Composition) -> bool:
    batch = replace(filled(batch_of([1, 0, 0], [1, 1, 2])), channels={"nll": torch.tensor([0.0, 0.0, 1.0])})
    return bool((gradient(ours, batch)[2] < 0).all())


def a_policy_that_ran_ahead_is_pulled_back(ours: Composition) -> bool:
    found = gradient(ours, filled(batch_of([1, 1], [1, 1])), torch.tensor([[0.0], [-1.0]]))
    return bool(found[0, 0] > 0)


def a_shorter_correct_answer_is_worth_more_after_the_warm_up(ours: Composition) -> bool:
    for _ in range(100):
        ours.prepare(filled(batch_of([1, 1, 0], [1, 4, 2])))
    found = ours.prepare(filled(batch_of([1, 1, 0], [1, 4, 2]))).advantage
    return found is not None and bool(found[0] > found[1])


def worse_ordered_pairs_are_pushed_harder(ours: Composition) -> bool:
    """Two pairs: the policy already prefers the best in the first, and the worst in the second."""
    batch = filled(batch_of([1, 0, 1, 0], [1] * 4, group_size=2))
    found = gradient(ours, batch, torch.tensor([[-0.1], [-9.0], [-9.0], [-0.1]]))
    return bool(found[2].abs() > 1.5 * found[0].abs())


def only_the_best_and_the_worst_are_a_pair(ours: Composition) -> bool:
    found = gradient(ours, filled(batch_of([1, 0.5, 0], [1] * 3)))
    return bool(found[0] < 0) and bool(found[1] == 0) and bool(found[2] > 0)


def history_is_the_baseline(ours: Composition) -> bool:
    advantages(ours, filled(batch_of([0, 0], [1, 1])))
    return bool((advantages(ours, filled(batch_of([1, 1], [1, 1]))) > 0.5).all())


def a_state_that_promised_more_earns_less(ours: Composition) -> bool:
    values = torch.tensor([[0.9], [0.1], [0.0], [0.0]])
    batch = filled(batch_of([1, 1, 0, 0], [1] * 4), values=values)
    found = advantages(ours, batch)
    return bool(found.flatten()[0] < found.flatten()[1])


def drift_from_the_reference_costs(ours: Composition) -> bool:
    reference = torch.tensor([[-3.0], [-1.0]])
    batch = filled(batch_of([1, 1], [1, 1]), logp_ref=reference, values=torch.zeros(2, 1))
    found = advantages(ours, batch).flatten()
    return bool(found[0] < found[1])


def what_a_dpo_model_prefers_earns_more(ours: Composition) -> bool:
    batch = filled(batch_of([0, 0], [2, 2]), values=torch.zeros(2, 2))
    batch = replace(batch, extra={"logp_dpo": torch.tensor([[-0.5, -1.0], [-1.5, -1.0]])})
    found = advantages(ours, batch)
    return bool(found[0, 0] > found[1, 0])


def a_good_step_earns_more_in_equal_outcomes(ours: Composition) -> bool:
    batch = filled(batch_of([1, 1], [2, 2]), token_reward=torch.tensor([[0.2, 0.0], [0.0, 0.0]]))
    found = advantages(ours, batch)
    return bool(found[0, 0] > found[1, 0])


def what_costs_is_avoided(ours: Composition) -> bool:
    batch = filled(batch_of([1, 1], [1, 1]), values=torch.zeros(2, 1))
    batch = replace(
        batch, channels={"cost": torch.tensor([1.0, -1.0])}, extra={"values_cost_critic": torch.zeros(2, 1)}
    )
    found = advantages(ours, batch).flatten()
    return bool(found[0] < found[1])


def an_answer_that_does_not_end_is_the_worst(ours: Composition) -> bool:
    batch = filled(batch_of([1, 0], [1, 1], truncated=[True, False]), values=torch.zeros(2, 1))
    found = advantages(ours, batch).flatten()
    return bool(found[0] < found[1])


def a_ratio_far_below_one_is_left_alone_where_the_advantage_is_negative(ours: Composition) -> bool:
    return not bool(gradient(ours, filled(batch_of([1, 0], [1, 1])), torch.tensor([[-1.0], [-2.0]]))[1].any())


def equal_rewards_of_a_batch_say_nothing(ours: Composition) -> bool:
    return not bool(advantages(ours, filled(batch_of([1, 1], [1, 1]))).any())


def an_older_sampler_changes_the_gradient(ours: Composition) -> bool:
    fresh = filled(batch_of([1, 0], [1, 1]))
    stale = replace(fresh, logp_gen=torch.full((2, 1), -1.1))
    return not torch.equal(gradient(ours, fresh), gradient(ours, stale))


def a_pair_weighs_by_how_it_is_ordered(ours: Composition) -> bool:
    return only_the_best_and_the_worst_are_a_pair(ours) and worse_ordered_pairs_are_pushed_harder(ours)


NO_CLIP = {"ratio": "none", "trust_region": "none"}
CASES = [
    Case("reinforce", {"baseline": "batch_mean"}, history_is_the_baseline),
    Case("reinforce_batch_mean", {"baseline": "none"}, equal_rewards_of_a_batch_say_nothing),
    Case("ppo", {"baseline": "none", "credit": "return_to_go", "shaping": []}, a_state_that_promised_more_earns_less),
    Case("ppo", {"shaping": []}, drift_from_the_reference_costs),
    Case("grpo", {"scale": "none"}, rewards_of_any_size_give_the_same_advantages),
    Case("grpo", {"regularisers": []}, the_reference_pulls_where_rewards_say_nothing),
    Case("dr_grpo", NO_CLIP, a_ratio_far_below_one_is_left_alone_where_the_advantage_is_negative),
    Case("rloo", {"baseline": "group_mean"}, the_own_reward_is_not_in_the_baseline),
    Case(
        "dr_grpo",
        {"aggregation": "seq_mean_token_mean"},
        tokens_of_a_long_wrong_answer_weigh_as_much_as_those_of_a_short_one,
    ),
    Case("dr_grpo", {"scale": "group_std"}, a_group_with_larger_rewards_keeps_its_larger_weight),
    Case("dapo", {"trust_region": {"high": 0.2}}, a_rare_token_may_still_grow_beyond_a_fifth),
    Case("dapo", {"batch_rules": []}, a_flat_group_is_replaced_by_another_prompt),
    Case("dapo", {"shaping": []}, an_answer_near_the_limit_is_worth_less),
    Case("dapo", {"aggregation": "seq_mean_token_mean"}, every_token_weighs_the_same),
    Case("cispo", {"trust_region": {"use": "clip", "high": 0.2}}, a_token_far_above_one_still_has_a_gradient),
    Case("gspo", {"ratio": "token"}, one_outlying_token_is_judged_with_its_whole_response),
    Case("gspo_token", {"ratio": "token"}, one_outlying_token_is_judged_with_its_whole_response),
    Case("maxrl", {"scale": "group_std"}, a_lone_success_weighs_seven_times_a_failure),
    Case("maxrl_t", {"estimator": {"order": 1}}, a_higher_order_pushes_failures_harder),
    Case("dppo", {"trust_region": "clip"}, a_small_probability_may_multiply),
    Case("dppo", {"trust_region": {"use": "clip", "high": 1.0}}, a_likely_token_of_the_sampler_may_not_wander),
    Case("dppo_kl", {"trust_region": "clip"}, a_small_probability_may_multiply),
    Case("scalerl", {"ratio": {"denominator": "old"}}, weights_are_against_the_sampler),
    Case("scalerl", {"aggregation": "token_mean"}, prompts_weigh_the_same_however_long_their_answers),
    Case("scalerl", {"scale": "group_std"}, groups_share_one_scale),
    Case("scalerl", {"task_sampler": "curriculum"}, a_solved_task_is_never_drawn_again),
    Case("lambda_grpo", {"aggregation": "token_mean"}, lengths_are_weighed_by_a_number_that_learns),
    Case("reinforce_pp", {"baseline": "group_mean"}, a_lone_response_per_prompt_teaches),
    Case("reinforce_pp_baseline", {"scale": "group_std"}, groups_are_whitened_together),
    Case("disco", {"estimator": {"hard_negatives": False}}, the_likeliest_wrong_answer_is_pushed_hardest),
    Case("disco", {"regularisers": []}, the_policy_is_held_near_the_old_one),
    Case("disco_ratio", {"estimator": {"hard_negatives": False}}, the_likeliest_wrong_answer_is_pushed_hardest),
    Case("sgpo", {"shaping": []}, a_better_prefix_of_a_wrong_answer_is_worth_more),
    Case("ngrpo", {"virtual_samples": None}, an_all_wrong_group_pushes_away),
    Case("ngrpo", {"batch_rules": ["zero_variance"]}, an_all_correct_group_is_left_out_and_an_all_wrong_one_stays),
    Case("off_policy_grpo", {"batch_rules": ["zero_variance"]}, a_stale_group_is_left_out),
    Case("off_policy_grpo", {"ratio": {"denominator": "old"}}, an_older_sampler_changes_the_gradient),
    Case("expo", {"regularisers": []}, explanations_are_made_likelier),
    Case("kimi", {"estimator": {"tau": 0.0}, "shaping": []}, a_policy_that_ran_ahead_is_pulled_back),
    Case("kimi", {"shaping": []}, a_shorter_correct_answer_is_worth_more_after_the_warm_up),
    Case("online_dpo", {"estimator": {"beta": 1e-6}}, worse_ordered_pairs_are_pushed_harder),
    Case(
        "online_dpo",
        {"estimator": None, "baseline": "group_mean", "scale": "group_mean"},
        a_pair_weighs_by_how_it_is_ordered,
    ),
    Case("rto", {"shaping": ["reward_clip"]}, what_a_dpo_model_prefers_earns_more),
    Case(
        "prime", {"shaping": [{"use": "process_reward", "coefficient": 0.0}]}, a_good_step_earns_more_in_equal_outcomes
    ),
    Case("repo", {"estimator": {"start": 0.0}, "shaping": []}, what_costs_is_avoided),
    Case("tulu3", {"shaping": []}, an_answer_that_does_not_end_is_the_worst),
    Case("tulu3_1", {"regularisers": []}, the_reference_pulls_where_rewards_say_nothing),
    Case("rlvr_world", {"scale": "none"}, rewards_of_any_size_give_the_same_advantages),
]


def name_of(case: Case) -> str:
    return f"{case.preset}-without-{'-'.join(case.without)}"


@pytest.mark.parametrize("case", CASES, ids=name_of)
def test_the_term_is_seen_and_without_it_is_not(case: Case) -> None:
    assert case.seen(optimizer(case.preset))
    assert not case.seen(optimizer(case.preset, **case.without))


def test_every_preset_is_itself_somewhere() -> None:
    """The two top-k forms have a test of their own below."""
    assert {case.preset for case in CASES} | {"dppo_topk", "dppo_topk_kl"} == {preset.name for preset in PRESETS}


def test_top_k_mass_that_moved_elsewhere_is_seen_only_by_the_top_k_form() -> None:
    """The token itself hardly moved; the rest of the sampler's top tokens did."""
    gen = torch.tensor([[[0.3, 0.5, 0.1]], [[0.3, 0.5, 0.1]]]).log()
    now = torch.tensor([[[0.35, 0.1, 0.5]], [[0.35, 0.1, 0.5]]]).log()
    batch = filled(batch_of([1, 0], [1, 1]), logp_gen=gen[..., 0], logp_old=gen[..., 0], topk_gen=gen)
    for name, kept in (("dppo_topk", False), ("dppo_topk_kl", False), ("dppo", True), ("dppo_kl", True)):
        ours = optimizer(name)
        logp = now[..., 0].clone().requires_grad_()
        forward = replace(forward_of(ours.needs, batch, logp), topk=now)
        ours.loss(ours.prepare(batch), forward).loss.backward()  # pyright: ignore[reportUnknownMemberType] - torch's stub is partial
        assert logp.grad is not None
        assert bool(logp.grad[0].any()) == kept
