"""The golden numbers of supervised and preference objectives, each from the table in golden/preference.toml."""

# pyright: reportUnknownArgumentType=false, reportUnknownMemberType=false
# (torch's stubs leave `unflatten` and `backward` partial)

import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from assay.contracts.tensors import Forward
from assay.protocols import Example, Objective
from assay_optim import objective
from assay_optim.preference.links import softplus
from assay_optim.preference.pairs import log_odds
from assay_optim.preference.ranked import list_loss
from assay_optim.preference.selection import fuse
from assay_optim.preference.unpaired import bnf_terms

ROWS: list[dict[str, Any]] = tomllib.loads((Path(__file__).parent / "golden" / "preference.toml").read_text())["row"]


def pair(chosen: int, rejected: int) -> Example:
    """A pair with so many response tokens."""
    return Example((((1,), tuple(range(chosen))), ((1,), tuple(range(rejected)))))


def pair_loss(objective_: str, options: Mapping[str, Any] | None = None) -> Tensor:
    logp = torch.stack([torch.full((10,), -1.0), torch.full((10,), -1.5)])
    reference = torch.stack([torch.full((10,), -1.1), torch.full((10,), -11.5 / 8)])
    ours = objective(objective_, **(options or {}))
    return ours.loss(ours.prepare([pair(10, 8)]), Forward(logp, logp), reference).loss


def pair_of_ratios(objective_: str, chosen: float, rejected: float) -> Tensor:
    logp = torch.tensor([[chosen, 0.0], [rejected, 0.0]])
    ours = objective(objective_)
    return ours.loss(ours.prepare([pair(1, 2)]), Forward(logp, logp), torch.zeros(2, 2)).loss


def log_odds_(chosen: float, rejected: float) -> Tensor:
    odds = log_odds(torch.tensor([chosen, rejected]))
    return torch.stack([odds[0] - odds[1], softplus(odds[1] - odds[0])])


def _kto(
    desirable: list[float], undesirable: list[float], mismatched: list[float]
) -> tuple[Objective, Sequence[Example], Tensor]:
    """The objective, its examples and (2 x examples, 1) log-ratios."""
    u = [*desirable, *undesirable]
    labels = [True] * len(desirable) + [False] * len(undesirable)
    examples = [Example((((index,), (1,)),), facts={"label": label}) for index, label in enumerate(labels)]
    ours = objective("kto")
    prepared = ours.prepare(examples)
    logp = torch.tensor([value for pair in zip(u, mismatched, strict=True) for value in pair]).unsqueeze(1)
    return ours, ours.rescore(prepared, logp, torch.zeros_like(logp)), logp


def kto_mean(desirable: list[float], undesirable: list[float], mismatched: list[float]) -> Tensor:
    ours, scored, logp = _kto(desirable, undesirable, mismatched)
    return ours.loss(scored, Forward(logp, logp), torch.zeros_like(logp)).loss


def kto(desirable: list[float], undesirable: list[float], mismatched: list[float]) -> Tensor:
    ours, scored, logp = _kto(desirable, undesirable, mismatched)
    losses = [
        ours.loss([example], Forward(rows, rows), torch.zeros_like(rows)).loss
        for example, rows in zip(scored, logp.unflatten(0, (-1, 2)), strict=True)
    ]
    return torch.stack([torch.tensor(scored[0].facts["z0"]), *losses])


def _bnf(p: list[float], ref: float) -> tuple[Tensor, Tensor]:
    logits = torch.tensor([[p]]).log().requires_grad_()
    logp = logits.log_softmax(-1)[..., 0]
    term = bnf_terms(logits, logp, torch.tensor([[ref]]).log())
    term.sum().backward()
    assert logits.grad is not None
    return term[0].detach(), logits.grad[0, 0]


def bnf(p: list[float], ref: float) -> Tensor:
    return torch.cat(_bnf(p, ref))


def bnf_gradient(p: list[float], ref: float) -> Tensor:
    return _bnf(p, ref)[1]


def lists(scores: list[float], forms: list[Any]) -> Tensor:
    return torch.stack([list_loss(torch.tensor(scores), form) for form in forms])


def fusion(probabilities: list[float]) -> Tensor:
    return torch.tensor(fuse(probabilities))


CHECKS: dict[str, Callable[..., Tensor]] = {
    check.__name__.rstrip("_"): check
    for check in (pair_loss, pair_of_ratios, log_odds_, kto, kto_mean, bnf, bnf_gradient, lists, fusion)
}


def name_of(row: dict[str, Any]) -> str:
    return row["method"].replace(" ", "_")


@pytest.mark.parametrize("row", ROWS, ids=name_of)
def test_golden_number(row: dict[str, Any]) -> None:
    inputs = {("objective_" if key == "objective" else key): value for key, value in row["inputs"].items()}
    found = CHECKS[row["check"]](**inputs).double()
    expected = torch.tensor(row["expected"], dtype=torch.float64)
    assert torch.allclose(found, expected, rtol=0.0, atol=row["tolerance"]), f"{found} is not {expected}"


def test_the_larpo_pairs_have_the_mean_of_six() -> None:
    scores = torch.tensor([0.8, 0.1, -0.3, -0.6])
    assert float(list_loss(scores, "lambdarank")) / 6 == pytest.approx(0.396916, abs=1e-6)
