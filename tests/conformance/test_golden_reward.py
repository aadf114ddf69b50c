"""The golden numbers of reward models, each from the table in golden/reward.toml."""

import math
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from assay.contracts.tensors import Forward
from assay.protocols import Example
from assay.training.encoder import TextEncoder
from assay.training.tiny import tiny_tokenizer
from assay_prms import objective
from assay_prms.aggregate import Aggregation, Credit, aggregate, credit
from assay_prms.losses import bradley_terry, implicit_values, option_preference, pqm, step_rewards
from assay_prms.rows import StepLabel

ROWS: list[dict[str, Any]] = tomllib.loads((Path(__file__).parent / "golden" / "reward.toml").read_text())["row"]
AGGREGATIONS: tuple[Aggregation, ...] = ("product", "min", "last", "mean", "sum")
Numbers = list[float]


def headed(rows: list[Numbers]) -> Forward:
    """What a head gave after each token of each response."""
    width = max(map(len, rows))
    output = torch.tensor([row + [0.0] * (width - len(row)) for row in rows])
    zeros = torch.zeros_like(output)
    return Forward(zeros, zeros, extra={"head_reward": output})


def likely(rows: list[Numbers]) -> tuple[Forward, Tensor]:
    """Log-probs and those of a reference, which differ by the given ratios; padding holds 0 in both."""
    width = max(map(len, rows))
    ratios = torch.tensor([row + [0.0] * (width - len(row)) for row in rows])
    mask = torch.tensor([[1.0] * len(row) + [0.0] * (width - len(row)) for row in rows])
    return Forward((ratios - 2.0) * mask, torch.zeros_like(ratios)), -2.0 * mask


def of_tokens(count: int, **facts: Any) -> Example:
    return Example((((1,), tuple(range(count))),), facts=facts)


def preference(chosen: float, rejected: float, margin: float = 0.0, centring: float = 0.0, soft: float = 1.0) -> Tensor:
    return torch.stack(bradley_terry(torch.tensor(chosen), torch.tensor(rejected), margin, centring, soft))


def option(first: float, second: float, within: tuple[float, float]) -> Tensor:
    """As it is and held within; then through a row to the loss of both objectives on pairs."""
    free, held = option_preference(first, second), option_preference(first, second, within)
    row = {"prompt": "1", "chosen": "12", "rejected": "3", "preference": [first, second]}
    for name, more in (("bradley_terry", {"companion": 0.0}), ("implicit_dpo", {"beta": 1.0})):
        ours = objective(name, preference_within=within, **more)
        (pair,) = ours.read_all(row, TextEncoder(tiny_tokenizer()))
        values = [[0.0, 0.0, 0.9], [0.0, 0.2]]
        loss = ours.loss([pair], *((headed(values), None) if name == "bradley_terry" else likely(values))).loss
        assert float(loss) == pytest.approx(
            -held * math.log(1 / (1 + math.exp(-0.7))) - (1 - held) * math.log(1 / (1 + math.exp(0.7))), abs=1e-6
        )
    return torch.tensor([free, held], dtype=torch.float64)


def preference_objective(chosen: float, rejected: float, margin: float, centring: float) -> Tensor:
    ours = objective("bradley_terry", centring=centring, companion=0.0)
    pair = Example((((1,), (5, 6)), ((1,), (7, 8, 9))), facts={"margin": margin})
    return ours.loss([pair], headed([[9.0, chosen], [9.0, 9.0, rejected]]), None).loss


def counts(successes: int, attempts: int) -> Tensor:
    label = StepLabel(successes=successes, attempts=attempts)
    assert label.hard is not None
    assert label.soft is not None
    return torch.tensor([label.hard, label.soft])


def step_objective(logits: Numbers, labels: Numbers, outputs: int = 1) -> Tensor:
    ours = objective("step", outputs=outputs, companion=0.0)
    known = tuple(None if label < 0 else label for label in labels)
    example = of_tokens(2 * len(logits), labels=known, places=tuple(2 * k + 1 for k in range(len(logits))))
    row = [value for logit in logits for value in (7.0, logit)]
    forward = headed([row])
    if outputs == 2:
        single = forward.extra["head_reward"]
        two = torch.stack([1.5 - single / 2, 1.5 + single / 2], dim=-1)
        forward = Forward(forward.logp, forward.entropy, extra={"head_reward": two})
    return ours.loss(ours.prepare([example]), forward, None).loss


def implicit(ratios: Numbers, beta: float) -> Tensor:
    forward, reference = likely([ratios])
    return implicit_values(forward.logp, reference, torch.ones(1, len(ratios)), beta)[0]


def implicit_steps(ratios: Numbers, beta: float, ends: list[int]) -> Tensor:
    return step_rewards(implicit(ratios, beta), torch.tensor(ends))


def implicit_ce(ratios: Numbers, beta: float, label: bool) -> Tensor:
    ours = objective("implicit_ce", beta=beta)
    return ours.loss([of_tokens(len(ratios), label=label)], *likely([ratios])).loss


def implicit_dpo(chosen: Numbers, rejected: Numbers, beta: float) -> Tensor:
    pair = Example((((1,), tuple(range(len(chosen)))), ((1,), tuple(range(len(rejected))))), facts={"margin": 0.0})
    return objective("implicit_dpo", beta=beta).loss([pair], *likely([chosen, rejected])).loss


def ranking(q: Numbers, labels: Numbers) -> Tensor:
    """The pure loss, and the objective on the same values in a padded batch; they must agree."""
    pure = pqm(torch.tensor([q]), torch.tensor([labels]).float())[0]
    ours = objective("pqm", companion=0.0)
    first = of_tokens(2 * len(q), labels=tuple(map(float, labels)), places=tuple(2 * k + 1 for k in range(len(q))))
    second = of_tokens(9, labels=(1.0, None), places=(3, 8))
    rows = [[value for logit in q for value in (7.0, logit)], [0.0] * 9]
    whole = ours.loss(ours.prepare([first, second]), headed(rows), None).loss
    other = pqm(torch.tensor([[0.0]]), torch.tensor([[1.0]]))[0]
    assert float(whole) == pytest.approx(float(pure + other) / 2, abs=1e-6)
    return pure


def critiques(chances: Numbers) -> Tensor:
    return torch.tensor(aggregate(chances, "mean"), dtype=torch.float64)


def aggregations(values: Numbers) -> Tensor:
    return torch.tensor([aggregate(values, how) for how in AGGREGATIONS])


def credits_(values: Numbers, how: Credit) -> Tensor:
    return torch.tensor(credit(values, how))


def credit_total(values: Numbers, how: Credit) -> Tensor:
    return torch.tensor(sum(credit(values, how)))


CHECKS: dict[str, Callable[..., Tensor]] = {
    check.__name__.rstrip("_"): check
    for check in (
        preference, option, preference_objective, counts, step_objective, implicit, implicit_steps, implicit_ce,
        implicit_dpo, ranking, critiques, aggregations, credits_, credit_total,
    )
}  # fmt: skip


def name_of(row: dict[str, Any]) -> str:
    return row["method"].replace(" ", "_")


@pytest.mark.parametrize("row", ROWS, ids=name_of)
def test_golden_number(row: dict[str, Any]) -> None:
    found = CHECKS[row["check"]](**row["inputs"]).double()
    expected = torch.tensor(row["expected"], dtype=torch.float64)
    assert torch.allclose(found, expected, rtol=0.0, atol=row["tolerance"]), f"{found} is not {expected}"


def test_doubling_a_good_first_step_pays_by_sum_and_not_by_min() -> None:
    once, twice = [0.8, -0.2, 0.5], [0.8, 0.8, -0.2, 0.5]
    assert sum(credit(twice, "sum")) - sum(credit(once, "sum")) == pytest.approx(0.8)
    assert abs(sum(credit(twice, "min")) - sum(credit(once, "min"))) < 1e-4
