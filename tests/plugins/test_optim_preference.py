"""Objectives: readers, any split, what is left out, and what is chosen."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from assay.contracts.tensors import Forward
from assay.errors import ConfigError
from assay.protocols import ChoosesExamples, Example, ExampleTotals, Objective
from assay_optim import assay_objectives, objective
from assay_optim.preference.selection import MarginFusion, MarginSource, keep_surest

NAMES = [component.name for component in assay_objectives()]
PAIRS = ["dpo", "dpo_norm", "ipo", "simpo", "spin", "iterative_dpo", "hinge", "psipo", "orpo"]
VOCABULARY = 11


class Characters:
    """One token a character, 0 for the end."""

    fingerprint = "characters"

    def __call__(self, prompt: Any, response: str, /) -> tuple[tuple[int, ...], tuple[int, ...]]:
        text = prompt if isinstance(prompt, str) else " ".join(message["content"] for message in prompt)
        return self.ids(text), (*self.ids(response), 0)

    def offsets(self, response: str) -> tuple[tuple[int, int], ...]:
        return (*((at, at + 1) for at in range(len(response))), (len(response), len(response)))

    def ids(self, text: str) -> tuple[int, ...]:
        return tuple(map(ord, text))


encode = Characters()


def examples_for(name: str) -> list[Example]:
    """Examples of different lengths, weights and prompts."""
    lengths = [(3, 2), (1, 4), (5, 5), (2, 6), (4, 1)]
    responses = [
        tuple(tuple(range(10 * row + side, 10 * row + side + length)) for side, length in enumerate(pair))
        for row, pair in enumerate(lengths)
    ]
    if name == "sft":
        return [Example((((row,), pair[0]),), weight=1.0 + row) for row, pair in enumerate(responses)]
    if name == "kto":
        return [Example((((row,), pair[0]),), facts={"label": row % 2 == 0}) for row, pair in enumerate(responses)]
    if name.startswith("larpo"):
        return [Example((((row,), a), ((row,), b), ((row,), (99, row)))) for row, (a, b) in enumerate(responses)]
    return [
        Example((((row,), a), ((row,), b)), weight=1.0 + row, facts={"margin": 0.1 * row})
        for row, (a, b) in enumerate(responses)
    ]


def tensors(examples: Sequence[Example], seed: int = 0) -> tuple[Tensor, Tensor]:
    """Logits (N, T, V) and reference log-probs (N, T) of all sequences."""
    rows = [response for example in examples for _, response in example.sequences]
    generator = torch.Generator().manual_seed(seed)
    width = max(map(len, rows)) + 2  # padding beyond the longest, filled like everything else
    logits = torch.randn(len(rows), width, VOCABULARY, generator=generator)
    return logits, logits.log_softmax(-1)[..., 0] + 0.3 * torch.randn(len(rows), width, generator=generator)


def run(ours: Objective, examples: Sequence[Example], slices: Sequence[Sequence[int]]) -> tuple[float, Tensor]:
    """Loss and gradient by the logits, over slices of examples."""
    prepared = ours.prepare(examples)
    logits, reference = tensors(prepared)
    logits.requires_grad_()
    starts = [sum(len(example.sequences) for example in prepared[:index]) for index in range(len(prepared))]
    totals = ExampleTotals(
        examples=sum(example.weight for example in prepared),
        tokens=float(sum(len(response) for example in prepared for _, response in example.sequences)),
    )
    if ours.needs.batch_logp:
        prepared = ours.rescore(prepared, logits.detach().log_softmax(-1)[..., 0], reference)
    total = 0.0
    for members in slices:
        chosen = [prepared[index] for index in members]
        rows = [starts[index] + step for index in members for step in range(len(prepared[index].sequences))]
        part = logits[rows]
        forward = Forward(part.log_softmax(-1)[..., 0], part[..., 0] * 0, logits=part if ours.needs.logits else None)
        report = ours.loss(chosen, forward, reference[rows] if ours.needs.logp_ref else None, totals=totals)
        report.loss.backward()  # pyright: ignore[reportUnknownMemberType] - torch's stub is partial
        total += float(report.loss.detach())
    assert logits.grad is not None
    return total, logits.grad


@pytest.mark.parametrize("name", NAMES)
def test_any_split_gives_the_same_loss_and_gradient(name: str) -> None:
    whole = run(objective(name), examples_for(name), [[0, 1, 2, 3, 4]])
    for slices in ([[0, 1], [2, 3, 4]], [[4], [2], [0], [1], [3]]):
        parts = run(objective(name), examples_for(name), slices)
        assert parts[0] == pytest.approx(whole[0], rel=2e-6, abs=2e-6)
        assert torch.allclose(parts[1], whole[1], rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize("name", NAMES)
def test_padding_has_no_gradient(name: str) -> None:
    examples = examples_for(name)
    prepared = objective(name).prepare(examples)
    _, gradient = run(objective(name), examples, [[0, 1, 2, 3, 4]])
    assert bool(gradient.isfinite().all())
    for row, response in enumerate(response for example in prepared for _, response in example.sequences):
        assert not bool(gradient[row, len(response) :].any())


@pytest.mark.parametrize("name", PAIRS)
def test_a_pair_with_an_empty_or_an_equal_response_is_left_out(name: str) -> None:
    prompt = (1,)
    examples = [
        Example(((prompt, (1, 2)), (prompt, ()))),
        Example(((prompt, (1, 2)), (prompt, (1, 2)))),
        Example(((prompt, (1, 2)), (prompt, (3,)))),
    ]
    assert len(objective(name).prepare(examples)) == 1


def test_kto_takes_the_next_response_to_another_prompt() -> None:
    ours = objective("kto")
    rows = [Example((((prompt,), (token,)),), facts={"label": True}) for prompt, token in ((1, 5), (1, 6), (2, 7))]
    prepared = ours.prepare(rows)
    assert [example.sequences[1] for example in prepared] == [((1,), (7,)), ((1,), (7,)), ((2,), (5,))]
    alone = ours.prepare(rows[:1])
    assert len(alone[0].sequences) == 1
    logp = torch.tensor([[-1.0]])
    assert ours.rescore(alone, logp, logp - 1)[0].facts["z0"] == 0


ROWS: list[tuple[str, dict[str, Any], int]] = [
    ("dpo", {"prompt": "q", "chosen": "a", "rejected": "b"}, 2),
    ("dpo", {"prompt": [{"role": "user", "content": "q"}], "chosen": "a", "rejected": "b"}, 2),
    (
        "dpo",
        {
            "chosen": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}],
            "rejected": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "b"}],
        },
        2,
    ),
    ("kto", {"prompt": "q", "response": "a", "label": True}, 1),
    ("kto", {"prompt": "q", "response": "a", "label": -1}, 1),
    ("larpo", {"prompt": "q", "responses": ["a", "b", "c"]}, 3),
    ("sft", {"prompt": "q", "response": "a"}, 1),
    ("bnf", {"prompt": "q", "chosen": "a", "rejected": "b"}, 2),
]


@pytest.mark.parametrize(("name", "row", "sequences"), ROWS)
def test_a_row_becomes_an_example(name: str, row: dict[str, Any], sequences: int) -> None:
    example = objective(name).read(row, encode)
    assert example is not None
    assert len(example.sequences) == sequences
    assert example.sequences[0] == ((ord("q"),), (ord("a"), 0))


def test_columns_scores_ends_and_weights_are_options() -> None:
    ranked = objective("larpo", scores_column="s", top=1, bottom=1)
    example = ranked.read({"prompt": "q", "responses": ["b", "c", "a"], "s": [2, 1, 3]}, encode)
    assert example is not None
    assert [chr(response[0]) for _, response in example.sequences] == ["a", "c"]
    renamed = objective("dpo", prompt_column="question", margin_column="gap", weight_column="w")
    example = renamed.read({"question": "q", "chosen": "a", "rejected": "b", "gap": 0.5, "w": 2}, encode)
    assert example is not None
    assert (example.facts["margin"], example.weight) == (0.5, 2)
    plain = objective("sft", text_column="text").read({"text": "abc"}, encode)
    assert plain is not None
    assert plain.sequences[0] == ((ord("a"),), (ord("b"), ord("c"), 0))
    single = objective("bnf", layout="single").read({"prompt": "q", "response": "a", "label": 0}, encode)
    assert single is not None
    assert single.facts["label"] is False


BAD: list[tuple[str, dict[str, Any], str]] = [
    ("dpo", {"prompt": "q", "chosen": "a"}, "column 'rejected': missing; found 'prompt', 'chosen'"),
    ("dpo", {"prompt": "q", "chosen": 3, "rejected": "b"}, "column 'chosen': a text or a list of messages is expected"),
    ("kto", {"prompt": "q", "response": "a", "label": "good"}, "column 'label': a label is true or false, 1, 0 or -1"),
    ("larpo", {"prompt": "q", "responses": "a"}, "column 'responses': a list is expected; found str"),
]


def said(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}


PAIR = {"prompt": "q", "chosen": "a", "rejected": "b"}
RANKED = {"prompt": "q", "responses": ["a", "b"]}
BAD.extend(
    [
        ("larpo", {**RANKED, "responses": ["a", 2]}, "column 'responses': a list of texts is expected; found 2"),
        (
            "larpo",
            {**RANKED, "responses": [[said("assistant", "a")], "b"]},
            "column 'responses': a list of texts is expected",
        ),
        (
            "dpo",
            {"chosen": [said("user", "p"), said("user", "a")], "rejected": [said("user", "p"), said("user", "b")]},
            "column 'chosen': the last message is the response, and its role is 'user'",
        ),
        (
            "dpo",
            {
                "chosen": [said("user", "p"), said("assistant", "a")],
                "rejected": [said("user", "o"), said("assistant", "b")],
            },
            "columns 'chosen' and 'rejected': they answer different prompts; a pair has one prompt",
        ),
    ]
)
WITH_OPTIONS: list[tuple[str, dict[str, Any], dict[str, Any], str]] = [
    ("larpo", {"scores_column": "s"}, {**RANKED, "s": ["x", 1]}, "column 's': a finite number is expected; found 'x'"),
    (
        "larpo",
        {"scores_column": "s"},
        {**RANKED, "s": [None, 1]},
        "column 's': a finite number is expected; found None",
    ),
    ("larpo", {"scores_column": "s"}, {**RANKED, "s": [float("nan"), 1]}, "column 's': a finite number is expected"),
    ("dpo", {"margin_column": "m"}, {**PAIR, "m": float("inf")}, "column 'm': a finite number is expected; found inf"),
    ("dpo", {"margin_column": "m"}, {**PAIR, "m": 10**400}, "column 'm': a finite number is expected; found 1000"),
    ("dpo", {"weight_column": "w"}, {**PAIR, "w": -0.5}, "column 'w': a weight is 0 or more; found -0.5"),
    (
        "sft",
        {"messages_column": "m"},
        {"m": [said("assistant", "a")]},
        "column 'm': a list of two messages or more is expected",
    ),
    ("sft", {"messages_column": "m"}, {"m": "a"}, "column 'm': a list of two messages or more is expected; found 'a'"),
    (
        "sft",
        {"messages_column": "m"},
        {"m": [said("user", "p"), said("assistant", "a"), said("user", "o")]},
        "column 'm': the last message is the response, and its role is 'user'",
    ),
]


@pytest.mark.parametrize(("name", "options", "row", "sentence"), WITH_OPTIONS)
def test_a_bad_cell_is_one_sentence(name: str, options: dict[str, Any], row: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError) as caught:
        objective(name, **options).read(row, encode)
    assert str(caught.value).startswith(sentence)
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize(("name", "row", "sentence"), BAD)
def test_a_bad_row_is_one_sentence(name: str, row: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError) as caught:
        objective(name).read(row, encode)
    assert str(caught.value).startswith(sentence)


@pytest.mark.parametrize("name", ["dpo", "kto", "sft"])
def test_a_row_without_a_response_is_left_out(name: str) -> None:
    row = {"prompt": "q", "chosen": "", "rejected": "b", "response": "", "label": 1}
    assert objective(name).read(row, encode) is None


def test_the_surest_pairs_are_kept_in_their_own_order() -> None:
    prompt = (1,)
    examples = [
        Example(((prompt, (1,)), (prompt, (2,))), facts={"reward": reward, "implicit": implicit})
        for reward, implicit in ((0.0, 0.0), (0.9, 0.8), (0.9, -0.9), (0.5, 0.9), (5.0, 5.0))
    ]
    fusion = MarginFusion(sources=(MarginSource(column="reward"), MarginSource(column="implicit")), keep=0.4)
    assert keep_surest(examples, fusion) == [examples[1], examples[4]]
    assert keep_surest([], fusion) == []
    with pytest.raises(ValueError, match="high must be above low"):
        MarginSource(column="x", low=1.0, high=1.0)


def test_margins_that_choose_are_columns_of_the_row() -> None:
    sources = [{"column": "gap", "low": 0.0}, {"column": "sure", "low": 0.0}]
    ours = objective("dpo", select={"sources": sources, "keep": 0.5})
    assert isinstance(ours, ChoosesExamples)
    row = {"prompt": "q", "chosen": "a", "rejected": "b"}
    pairs = [ours.read({**row, "gap": gap, "sure": sure}, encode) for gap, sure in ((0.2, 0.9), (0.9, 0.8))]
    assert ours.choose([pair for pair in pairs if pair is not None]) == [pairs[1]]
    with pytest.raises(ConfigError, match="column 'sure': missing"):
        ours.read({**row, "gap": 0.5}, encode)
