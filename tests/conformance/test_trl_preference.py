"""TRL's own preference losses, called with the same log-probs, give the same losses and gradients."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportPrivateUsage=false, reportPrivateImportUsage=false, reportMissingTypeStubs=false
# TRL has no stubs, and the oracle's entry points are private methods.

import tomllib
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from assay.contracts.tensors import Forward
from assay.protocols import Example
from assay_optim import objective

pytestmark = pytest.mark.filterwarnings("ignore")

ROWS = tomllib.loads((Path(__file__).parent / "golden" / "trl_preference.toml").read_text())["row"]
TOLERANCE = 1e-5
LENGTHS = ([3, 6, 2, 5, 4, 1, 6, 2], [6, 5, 3, 6, 1, 2, 3, 4], [1, 2, 5, 2, 6, 4, 3, 6])


def itself(value: Tensor) -> Tensor:
    return value


ACCELERATOR = SimpleNamespace(device=torch.device("cpu"), gather=itself, gather_for_metrics=itself)


class FakeModel(torch.nn.Module):
    """Gives the log-probs that it was made with, in the form of TRL's patched forward."""

    is_gradient_checkpointing = False

    def __init__(self, answer: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.answer = answer

    def forward(self, input_ids: Tensor, **_: Any) -> SimpleNamespace:
        logp = self.answer(input_ids)
        zeros = torch.zeros_like(logp)
        return SimpleNamespace(log_probs=logp, entropy=zeros, mean_logits=zeros, is_top1=zeros > 0)


def bare(trainer: type, **attributes: Any) -> Any:
    """An instance of a trainer with these attributes, its constructor not run."""
    made = object.__new__(trainer)
    for name, value in attributes.items():
        setattr(made, name, value)
    return made


def inputs_of(lengths: list[int]) -> dict[str, Tensor]:
    """One prompt token, then the responses; the first id tells a fake model which rows are asked for."""
    width = max(lengths)
    mask = torch.cat([torch.zeros(len(lengths), 1), mask_of(lengths, width)], dim=1).long()
    ids = torch.ones_like(mask)
    return {"input_ids": ids, "attention_mask": torch.ones_like(mask), "completion_mask": mask}


def mask_of(lengths: list[int], width: int) -> Tensor:
    return (torch.arange(width).unsqueeze(0) < torch.tensor(lengths).unsqueeze(1)).float()


def common(options: dict[str, Any], model: FakeModel, reference: FakeModel) -> dict[str, Any]:
    return {
        "accelerator": ACCELERATOR, "model": model, "ref_model": reference, "aux_loss_enabled": False,
        "precompute_ref_logps": False, "args": SimpleNamespace(gradient_checkpointing_kwargs=None),
        "_metrics": {"train": defaultdict(list), "eval": defaultdict(list)}, "_total_train_tokens": 0, "_tp_size": 1,
        **options,
    }  # fmt: skip


def theirs_dpo(row: dict[str, Any], logp: Tensor, reference: Tensor, lengths: list[int]) -> Tensor:
    from trl import DPOTrainer

    order = [*range(0, len(lengths), 2), *range(1, len(lengths), 2)]  # TRL stacks chosen above rejected
    model, frozen = FakeModel(lambda _: logp[order]), FakeModel(lambda _: reference[order])
    trainer = bare(
        DPOTrainer, **common(row["trl"], model, frozen), ld_alpha=None, use_weighting=False, label_smoothing=0.0,
        loss_weights=[1.0] * len(row["trl"]["loss_types"]), f_divergence_type="reverse_kl",
    )  # fmt: skip
    return trainer._compute_loss(model, inputs_of([lengths[index] for index in order]), False)


def theirs_scores(row: dict[str, Any], logp: Tensor, reference: Tensor, lengths: list[int]) -> Tensor:
    from trl.experimental.cpo import CPOTrainer
    from trl.experimental.orpo import ORPOTrainer

    counts = torch.tensor(lengths)
    scores = logp.sum(1) / counts if row["scores"] == "means" else logp.sum(1) - reference.sum(1)
    chosen, rejected = scores[0::2], scores[1::2]
    if row["trainer"] == "orpo":
        trainer = bare(ORPOTrainer, accelerator=ACCELERATOR, **row["trl"])
        nll = -logp[0::2].sum() / counts[0::2].sum()
        return nll - trainer.odds_ratio_loss(chosen, rejected)[0].mean()
    trainer = bare(CPOTrainer, **{"accelerator": ACCELERATOR, "alpha": 0.0, "label_smoothing": 0.0, **row["trl"]})
    return trainer.cpo_loss(chosen, rejected)[0].mean()


def theirs_kto(row: dict[str, Any], logp: Tensor, reference: Tensor, lengths: list[int]) -> Tensor:
    from trl import KTOTrainer

    def answer(rows: Tensor) -> Callable[[Tensor], Tensor]:
        return lambda ids: rows[1::2] if int(ids[0, 0]) == 9 else rows[0::2]

    own, shown = inputs_of(lengths[0::2]), inputs_of(lengths[1::2])
    width = logp.shape[1] + 1
    for batch in (own, shown):
        for key, value in batch.items():
            batch[key] = torch.nn.functional.pad(value, (0, width - value.shape[1]))
    shown["input_ids"][:] = 9
    inputs = {**own, **{f"KL_{key}": value for key, value in shown.items()}, "label": torch.tensor(labels_of(lengths))}
    model, frozen = FakeModel(answer(logp)), FakeModel(answer(reference))
    trainer = bare(KTOTrainer, **common(row["trl"], model, frozen), calculate_KL=True)
    return trainer._compute_loss(model, inputs, False)


def labels_of(lengths: list[int]) -> list[bool]:
    return [index % 2 == 0 for index in range(len(lengths) // 2)]


THEIRS = {"dpo": theirs_dpo, "cpo": theirs_scores, "orpo": theirs_scores, "kto": theirs_kto}


def examples_of(row: dict[str, Any], lengths: list[int]) -> list[Example]:
    sequences = [((row_, 100), tuple(range(length))) for row_, length in enumerate(lengths)]
    if row["trainer"] == "kto":
        # A second sequence stands for the mismatched pair, as `prepare` makes it.
        return [
            Example((sequences[index], sequences[index + 1]), facts={"label": labels_of(lengths)[index // 2]})
            for index in range(0, len(lengths), 2)
        ]
    return [Example((sequences[index], sequences[index + 1])) for index in range(0, len(lengths), 2)]


def name_of(row: dict[str, Any]) -> str:
    return row["method"].replace(" ", "_")


@pytest.mark.parametrize("row", ROWS, ids=name_of)
@pytest.mark.parametrize("seed", range(3))
def test_equals_trl(row: dict[str, Any], seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    lengths = LENGTHS[seed]
    mask = mask_of(lengths, max(lengths))
    values = -2 * torch.rand(mask.shape, generator=generator) * mask
    reference = (values + 0.5 * torch.randn(mask.shape, generator=generator)) * mask
    theirs, ours = values.clone().requires_grad_(), values.clone().requires_grad_()

    their_loss = THEIRS[row["trainer"]](row, theirs * mask, reference, lengths)
    their_loss.backward()
    made = objective(row["objective"], **row.get("options", {}))
    report = made.loss(examples_of(row, lengths), Forward(ours, ours), reference)
    report.loss.backward()

    assert theirs.grad is not None
    assert ours.grad is not None
    assert float(theirs.grad.abs().max()) > 0
    for mine, other in ((report.loss.detach(), their_loss.detach()), (ours.grad, theirs.grad)):
        assert float((mine - other).abs().max()) <= TOLERANCE * max(1.0, float(other.abs().max()))
