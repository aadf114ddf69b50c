"""Scored groups to tensors, and the split into micro-batches."""

# pyright: reportUnknownMemberType=false
from __future__ import annotations

from dataclasses import replace

import pytest
import tokenizers
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast

from assay.contracts import Message, Reward, Rollout, Sampling, ScoredGroup, Span, StepScore, Task, Turn
from assay.errors import TrainingError
from assay.training.batch import count_denominators, make_batch, plan_micro_batches, step_ends, take_rows
from assay.training.forward import TokenRow
from assay.training.tiny import tiny_tokenizer


def group(
    name: str, responses: list[list[int]], rewards: list[float | None], *, prompt: tuple[int, ...] = (5, 6)
) -> ScoredGroup:
    rollouts = tuple(
        Rollout(
            id=f"{name}-{index}",
            task_id=name,
            group_id=name,
            prompt_ids=prompt,
            turns=(Turn(text="x", token_ids=tuple(ids), logprobs=tuple(-float(t) for t in range(len(ids)))),),
            sampling=Sampling(max_new_tokens=8),
            finish="length" if len(ids) > 2 else "stop",
        )
        for index, ids in enumerate(responses)
    )
    return ScoredGroup(
        task=Task(id=name, messages=(Message(role="user", content="x"),)),
        rollouts=rollouts,
        rewards=tuple(
            Reward(
                rollout_id=rollout.id, value=value, channels={"reward": value, "cost": None if value is None else 2.0}
            )
            for rollout, value in zip(rollouts, rewards, strict=True)
        ),
    )


def test_masked_rewards_are_left_out_and_empty_responses_stay_in() -> None:
    made = make_batch([group("a", [[1, 2, 3], [4], []], [1.0, None, 0.0]), group("b", [[7, 8]], [0.5])])
    batch = made.batch
    assert batch.reward.tolist() == [1.0, 0.0, 0.5]
    assert batch.group.tolist() == [0, 0, 1]
    assert batch.mask.tolist() == [[1, 1, 1], [0, 0, 0], [1, 1, 0]]
    assert batch.truncated.tolist() == [True, False, False]
    assert batch.logp_gen is not None
    assert batch.logp_gen.tolist() == [[0, -1, -2], [0, 0, 0], [0, -1, 0]]
    assert batch.channels["cost"].tolist() == [2.0, 2.0, 2.0]
    counts = batch.denominators
    assert (counts.rows, counts.tokens, counts.groups, counts.max_tokens) == (2, 5, 2, 8)
    assert counts.group_tokens.tolist() == [3, 3, 2]
    assert counts.group_rows.tolist() == [2, 2, 1]


def test_tokens_of_others_are_masked_and_need_no_log_probs() -> None:
    scored = group("a", [[1, 2]], [1.0])
    rollout = scored.rollouts[0].model_copy(
        update={
            "turns": (
                Turn(text="x", token_ids=(1, 2), logprobs=(-1.0, -2.0)),
                Turn(role="tool", text="y", token_ids=(9,), trainable=False),
                Turn(text="z", token_ids=(3,), logprobs=(-3.0,)),
            )
        }
    )
    made = make_batch([scored.model_copy(update={"rollouts": (rollout,)})])
    assert made.rows[0].response == (1, 2, 9, 3)
    assert made.batch.mask.tolist() == [[1, 1, 0, 1]]
    assert made.batch.logp_gen is not None
    assert made.batch.logp_gen.tolist() == [[-1, -2, 0, -3]]


def test_a_rollout_without_ids_is_refused_by_name() -> None:
    scored = group("a", [[1]], [1.0])
    rollout = scored.rollouts[0].model_copy(update={"turns": (Turn(text="x"),)})
    with pytest.raises(TrainingError, match="trainer: rollout 'a-0' cannot be trained on; it has no token ids"):
        make_batch([scored.model_copy(update={"rollouts": (rollout,)})])


def test_step_values_stand_at_the_last_token_of_their_step() -> None:
    tokenizer = tiny_tokenizer()
    text = "a=1\nb=2"
    ids = tokenizer(text).input_ids
    assert step_ends(tokenizer, ids, [3, 7]) == [2, 6]
    scored = group("a", [ids], [1.0])
    reward = scored.rewards[0].model_copy(
        update={
            "steps": (StepScore(span=Span(start=0, end=3), value=0.25), StepScore(span=Span(start=4, end=7), value=0.5))
        }
    )
    made = make_batch([scored.model_copy(update={"rewards": (reward,)})], tokenizer=tokenizer)
    assert made.batch.token_reward is not None
    assert made.batch.token_reward.tolist() == [[0, 0, 0.25, 0, 0, 0, 0.5]]


def test_a_slice_keeps_the_global_counts_and_loses_its_trailing_padding() -> None:
    made = make_batch([group("a", [[1, 2, 3], [4]], [1.0, 0.0])])
    batch = replace(made.batch, extra={"flag": torch.tensor([1.0, 2.0]), "wide": torch.ones(2, 3)})
    piece = take_rows(batch, torch.tensor([1]), width=1)
    assert piece.mask.tolist() == [[1]]
    assert piece.denominators.tokens == 4
    assert piece.denominators.group_tokens.tolist() == [4]
    assert piece.extra["flag"].tolist() == [2.0]
    assert piece.extra["wide"].shape == (1, 1)


def test_groups_without_tokens_are_not_counted() -> None:
    counts = count_denominators(torch.tensor([[1.0, 1.0], [0.0, 0.0]]), torch.tensor([0, 3]), 4)
    assert (counts.rows, counts.tokens, counts.groups) == (1, 2, 1)


ROWS = st.lists(
    st.tuples(st.integers(0, 3), st.integers(0, 9), st.booleans()).map(
        lambda facts: TokenRow(
            tuple(range(facts[0] + 1)), tuple(range(facts[1])), None if facts[2] else tuple([False] * facts[1])
        )
    ),
    max_size=25,
)


@given(rows=ROWS, budget=st.integers(1, 60), shared=st.booleans(), pairs=st.booleans())
def test_a_plan_holds_every_scored_row_once_and_keeps_to_its_budget(
    rows: list[TokenRow], budget: int, shared: bool, pairs: bool
) -> None:
    together = [index // 2 for index in range(len(rows))] if pairs else None
    plan = plan_micro_batches(rows, budget, shared_prompt=shared, together=together)
    wanted = [index for index, row in enumerate(rows) if row.response and row.scored is None]
    assert sorted(index for members in plan for index in members) == wanted
    for members in plan:
        if shared:
            prompts = {rows[index].prompt for index in members}
            cost = sum(map(len, prompts)) + sum(len(rows[index].response) - 1 for index in members)
        else:
            cost = len(members) * max(len(rows[index].prompt) + len(rows[index].response) - 1 for index in members)
        units = {index if together is None else together[index] for index in members}
        assert cost <= budget or len(units) == 1
    if together is not None:
        for number in set(together):
            assert sum(any(together[index] == number for index in members) for members in plan) <= 1


def test_tokens_that_begin_a_reflection_word_are_marked() -> None:
    vocabulary = {text: index for index, text in enumerate(["?", "5", "Wait", "hmm", "ver", "ify", "However"])}
    model = tokenizers.models.WordLevel(vocabulary, unk_token="?")
    words = tokenizers.Tokenizer(model)
    words.pre_tokenizer = tokenizers.pre_tokenizers.Split(tokenizers.Regex(r"ver(?=ify)|\s+"), "isolated")
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, unk_token="?")
    ids = [vocabulary[text] for text in ("5", "Wait", "ver", "ify", "hmm")]
    made = make_batch([group("a", [ids, ids[:1]], [1.0, 0.0])], tokenizer=tokenizer)
    assert made.batch.extra["reflection"].tolist() == [[0, 1, 0, 0, 1], [0, 0, 0, 0, 0]]
