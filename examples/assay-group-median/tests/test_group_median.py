"""The suite that every part passes inside an optimizer, and the numbers that make this one what it is."""

import torch

from assay.protocols import GroupMoments
from assay.registry import Registry
from assay.testing import optimizer_suite
from assay.testing.optimizer_suite import batch_of

test_group_median = optimizer_suite("group_median")
test_group_median_on_graded_rewards = optimizer_suite("group_median", binary=False)


def test_an_outlier_moves_its_own_advantage_alone(assay_registry: Registry) -> None:
    part = assay_registry.parts()["baseline", "group_median"]
    batch = batch_of([0.0, 1.0, 100.0, 5.0, 7.0, float("nan")], [1] * 6, groups=[0, 0, 0, 1, 1, 1])
    moments = GroupMoments(batch.reward, batch.reward, batch.reward)
    centred = part.build(part.config()).centre(batch, moments).reward
    assert torch.equal(centred[:5], torch.tensor([-1.0, 0.0, 99.0, -1.0, 1.0]))
    assert bool(centred[5].isnan())
