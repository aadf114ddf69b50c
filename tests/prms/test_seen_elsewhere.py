"""Defects that others were hurt by, one test each; the thread is named where there is one."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false
from collections.abc import Callable
from typing import Any

import pytest
import torch

from assay.contracts.tensors import Forward
from assay.errors import ConfigError
from assay.protocols import Example
from assay.steps import SplitterOptions, step_spans
from assay.training.encoder import TextEncoder
from assay.training.forward import TokenRow, response_forward
from assay.training.model import PolicyModel
from assay.training.tiny import tiny_tokenizer
from assay_prms import objective
from assay_prms.generative import verdict_of
from assay_prms.losses import bradley_terry, pqm, yes_or_no
from assay_prms.places import place_steps
from assay_prms.scoring import Response, Scorer

Make = Callable[..., Scorer]


def fusing_tokenizer() -> Any:
    """Words and the blank behind them are one token, as a full stop and two newlines are in several vocabularies."""
    from tokenizers import Regex, Tokenizer, pre_tokenizers
    from tokenizers.models import WordLevel
    from transformers import PreTrainedTokenizerFast

    words = ["<unk>", "</s>", "one", "two", "three", ".\n\n", ".", " ", "step\nstep"]
    raw = Tokenizer(WordLevel({word: index for index, word in enumerate(words)}, "<unk>"))
    raw.pre_tokenizer = pre_tokenizers.Split(Regex(r"step\nstep|\.\n\n|\.| |[a-z]+"), "isolated")
    return PreTrainedTokenizerFast(tokenizer_object=raw, unk_token="<unk>", eos_token="</s>")


def test_a_separator_that_fuses_with_its_neighbour_moves_no_step() -> None:
    """OpenRLHF#683, ReasonEval#5: positions are character spans, so the fused token is the step's last one."""
    encode = TextEncoder(fusing_tokenizer())
    text = "one.\n\ntwo.\n\nthree."
    spans = step_spans(text)
    placed = place_steps(encode, "one", text, spans)
    assert [text[span.start : span.end] for span in spans] == ["one.", "two.", "three."]
    assert placed.places == (1, 3, 5)
    assert [placed.response[place] for place in placed.places] == [5, 5, 6]


def test_two_steps_in_one_token_are_an_error_and_not_a_shorter_list() -> None:
    """OpenRLHF#633: never fewer scores than steps."""
    encode = TextEncoder(fusing_tokenizer())
    text = "step\nstep"
    with pytest.raises(ConfigError, match="response: 2 steps end in 1 tokens; two of them share one"):
        place_steps(encode, "one", text, step_spans(text, SplitterOptions(by="line")))


@pytest.mark.parametrize("marker", [None, "#"])
def test_what_is_trained_is_what_is_scored(policy: PolicyModel, scorer: Make, marker: str | None) -> None:
    """TRL documents another separator than it trains with; openr trains a place beside the one that it reads."""
    ours = scorer(marker=marker)
    assert ours.head is not None
    made = objective("step", marker=marker)
    row = {"prompt": "3*4+2=", "completions": ["3*4=12", "12+2=14"], "labels": [True, True]}
    (example,) = made.read_all(row, TextEncoder(policy.tokenizer))
    ((prompt, response),) = example.sequences
    with torch.no_grad():
        states = response_forward(policy.model, [TokenRow(prompt, response)], heads={"reward": ours.head.read})
    trained = states.extra["head_reward"][0, list(example.facts["places"])].sigmoid().tolist()
    (found,) = ours.score([Response("3*4+2=", "3*4=12\n\n12+2=14")])
    assert found.values == pytest.approx(trained, abs=1e-5)


def test_padding_that_is_the_end_token_hides_no_end() -> None:
    """Where pad is eos, looking for the last token that is no padding finds the wrong one; we know each length."""
    made = objective("bradley_terry", companion=0.0)
    tokenizer = tiny_tokenizer()
    tokenizer.pad_token = tokenizer.eos_token
    encode = TextEncoder(tokenizer)
    pair = {"prompt": "1+1=", "chosen": "2", "rejected": "3, I would say"}
    (example,) = made.read_all(pair, encode)
    (_, chosen), (_, rejected) = example.sequences
    assert chosen[-1] == rejected[-1] == tokenizer.pad_token_id
    output = torch.zeros(2, len(rejected))
    output[0, len(chosen) - 1], output[1, len(rejected) - 1] = 2.0, 1.0
    zeros = torch.zeros_like(output)
    loss = made.loss([example], Forward(zeros, zeros, extra={"head_reward": output}), None).loss
    assert float(loss) == pytest.approx(float(bradley_terry(torch.tensor(2.0), torch.tensor(1.0))[0]))


def example(labels: tuple[float | None, ...]) -> Example:
    return Example((((1,), tuple(range(6))),), facts={"labels": labels, "places": (2, 5)})


@pytest.mark.parametrize("name", ["step", "pqm"])
def test_a_response_without_labels_makes_no_nan(name: str) -> None:
    """OpenRLHF#509: it leaves the batch, and the others keep their mean."""
    made = objective(name, companion=0.0)
    output = torch.tensor([[0.0, 0.0, 1.0, 0.0, 0.0, -1.0]] * 2)
    zeros = torch.zeros_like(output)

    def loss(examples: list[Example]) -> float:
        kept = made.prepare(examples)
        forward = Forward(zeros[: len(kept)], zeros[: len(kept)], extra={"head_reward": output[: len(kept)]})
        return float(made.loss(kept, forward, None).loss)

    alone = loss([example((1.0, 0.0))])
    assert torch.isfinite(torch.tensor(alone))
    assert loss([example((1.0, 0.0)), example((None, None))]) == pytest.approx(alone)


@pytest.mark.parametrize("size", [50.0, 500.0])
def test_extreme_scores_have_finite_losses_and_gradients(size: float) -> None:
    """The log of a sigmoid's value is -inf, and 1e-5 inside a log is a floor; from logits neither happens."""
    q = torch.tensor([[size, -size, size]], requires_grad=True)
    labels = torch.tensor([[0.0, 1.0, 1.0]])
    for loss in (pqm(q, labels).sum(), yes_or_no(q, labels).sum(), bradley_terry(q[:, 1], q[:, 0])[0].sum()):
        (gradient,) = torch.autograd.grad(loss, q, retain_graph=True)
        assert torch.isfinite(loss)
        assert float(loss.detach()) > 0.5 * size
        assert torch.isfinite(gradient).all()
        assert float(gradient.abs().max()) > 0.1


def test_soft_labels_are_not_cut_to_hard_ones() -> None:
    """TRL trains 0.7 as 0; trl#2127: an ignored -100 became True."""
    encode = TextEncoder(fusing_tokenizer())
    row = {"prompt": "one", "completions": ["one", "two"], "labels": [0.7, -100]}
    (found,) = objective("step").read_all(row, encode)
    assert found.facts["labels"] == (0.7, None)


def test_counts_stay_counts_and_labels_are_views_of_them() -> None:
    """openr#57: what was stored is kept, and the view is chosen when training."""
    encode = TextEncoder(fusing_tokenizer())
    row = {"prompt": "one", "steps": ["one", "two"], "successes": [3, 0], "attempts": [8, 8]}
    views = {"hard": (1.0, 0.0), "soft": (0.375, 0.0), "label": (1.0, 0.0)}
    decided = {**row, "labels": [1.0, None], "successes": [2, 5], "attempts": [16, 8]}
    (found,) = objective("step").read_all(decided, encode)  # 2 of 16 was decided to be good: no error is there
    assert found.facts["labels"] == (1.0, 1.0)
    for targets, labels in views.items():
        (found,) = objective("step", targets=targets).read_all(row, encode)
        assert found.facts["labels"] == labels


def test_labels_behind_the_first_error_are_not_learned_unless_asked_for() -> None:
    """PURE#8: their meaning is disputed."""
    encode = TextEncoder(fusing_tokenizer())
    row = {"prompt": "one", "completions": ["one", "two", "three"], "labels": [False, True, True]}
    (found,) = objective("step").read_all(row, encode)
    assert found.facts["labels"] == (0.0, None, None)


@pytest.mark.parametrize("critique", ["", "It is right.", "Right? maybe", "Right?", "Right? Yes and no"])
def test_a_critique_without_a_verdict_is_no_vote(critique: str) -> None:
    """ThinkPRM#4: a short or unreadable critique is neither yes nor no."""
    assert verdict_of(critique, "Right?", " Yes", " No") == (None, False)


def test_the_last_verdict_of_a_critique_counts() -> None:
    assert verdict_of("Right? No... wait. Right? Yes.", "Right?", " Yes", " No") == ("Right? No... wait. Right?", True)


def test_domains_have_the_same_share_however_many_rows_they_have() -> None:
    """VersaPRM: a mean over all steps would be the mean of the largest domain."""
    made = objective("multi_domain", companion=0.0)
    rows = [("a", 4.0)] * 3 + [("b", -4.0)]
    examples = [
        Example((((1,), (1, 2)),), facts={"labels": (1.0,), "places": (1,), "domain": domain}) for domain, _ in rows
    ]
    output = torch.tensor([[0.0, logit] for _, logit in rows])
    zeros = torch.zeros_like(output)
    loss = made.loss(made.prepare(examples), Forward(zeros, zeros, extra={"head_reward": output}), None).loss
    expected = (yes_or_no(torch.tensor(4.0), torch.tensor(1.0)) + yes_or_no(torch.tensor(-4.0), torch.tensor(1.0))) / 2
    assert float(loss) == pytest.approx(float(expected))


def test_a_log_ratio_that_stays_in_the_sigmoids_flat_middle_is_warned_about(caplog: pytest.LogCaptureFixture) -> None:
    """The published beta of 0.05 fits answers of several hundred tokens; on short ones it hardly learns."""
    examples = [Example((((1,), (1, 2, 3)),), facts={"label": row % 2 == 0}) for row in range(1024)]
    for beta, told in ((0.5, 0), (0.05, 1)):
        made = objective("implicit_ce", beta=beta)
        for _ in range(5):
            logp = torch.full((1024, 3), 0.7, requires_grad=True)
            made.loss(examples, Forward(logp, torch.zeros(1024, 3)), torch.zeros(1024, 3))
        assert sum("raise beta (now 0.05)" in line for line in caplog.messages) == told
