"""The numbers of a learning curve, each by hand on three tokens."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from assay.contracts.tensors import Forward, TrainBatch
from assay.testing.optimizer_suite import batch_of
from assay.training.batch import take_rows
from assay.training.ledger import Ledger
from assay_optim import optimizer

RHO = torch.tensor([[1.5, 1.0], [0.5, 1.0]])
"""One clipped above with A > 0, one untouched, one clipped below with A < 0; the last is padding."""
ENTROPY = torch.tensor([[0.2, 0.4], [0.6, 9.0]])
OF_BATCH = {
    "reward_mean": 0.5,
    "zero_variance_share": 0.0,
    "groups_of_one": 0.0,
    "truncated_share": 0.0,
    "trained_rows": 2.0,
    "trained_tokens": 3.0,
    "advantage_std": 0.577350,  # of 0.5, 0.5, -0.5
    "advantage_abs_max": 0.5,
}
SHARES = {
    "entropy": 0.4,
    "clip_fraction": 2 / 3,
    "clip_fraction_high": 1 / 3,
    "clip_fraction_low": 1 / 3,
    "reflection_tokens": 1 / 3,
    "clip_fraction_reflection": 1 / 3,
    "kl_old": 0.126328,  # (1/1.5 + ln 1.5 - 1 + 0 + 1/0.5 + ln 0.5 - 1) / 3
    "kl_ref": 0.126328,
    "kl_ref_k1": -0.095894,  # (ln 1.5 + 0 + ln 0.5) / 3
    "kl_ref_sequence": -0.143841,  # the same over two responses
}
OF_RATIOS = {"ratio_p01": 0.51, "ratio_p50": 1.0, "ratio_p99": 1.49, "ess": 0.857143}  # ess: 3^2 / (3 x 3.5)


def prepared() -> tuple[Any, TrainBatch, torch.Tensor]:
    """Dr. GRPO, its batch and the current log-probs."""
    ours = optimizer("dr_grpo")
    old = torch.full((2, 2), -1.0)
    batch = batch_of([1.0, 0.0], [2, 1])
    batch = replace(batch, logp_old=old, logp_ref=old, extra={"reflection": torch.tensor([[1.0, 0.0], [0.0, 1.0]])})
    return ours, ours.prepare(batch), old + RHO.log()


def test_the_numbers_of_a_batch_and_of_its_loss() -> None:
    ours, batch, logp = prepared()
    assert {name: batch.metrics[name] for name in OF_BATCH} == pytest.approx(OF_BATCH, abs=1e-6)
    found = ours.loss(batch, Forward(logp, ENTROPY)).metrics
    expected = SHARES | OF_RATIOS | {"ratio_max": 1.5, "ratio_clamped": 0.0}
    assert {name: found[name] for name in expected} == pytest.approx(expected, abs=1e-6)


def test_shares_of_slices_add_up_to_the_numbers_of_the_whole() -> None:
    ours, batch, logp = prepared()
    ledger = Ledger()
    for row in range(2):
        piece = take_rows(batch, torch.tensor([row]), width=2)
        ledger.add(ours.loss(piece, Forward(logp[row : row + 1], ENTROPY[row : row + 1])).metrics)
    ledger.close_step(moved=True)
    found = ledger.metrics()
    expected = SHARES | {"ratio_max": 1.5}
    assert {name: found[name] for name in expected} == pytest.approx(expected, abs=1e-6)
