"""The suite that every policy optimizer passes, and what this one learns from."""

import torch

from assay import BuildContext
from assay.registry import Registry
from assay.testing import optimizer_suite
from assay.testing.optimizer_suite import batch_of, loss_and_gradient

test_best_of_group = optimizer_suite("best-of-group")
test_best_of_group_on_graded_rewards = optimizer_suite("best-of-group", options={"margin": 0.1}, binary=False)


def test_the_best_answers_are_imitated_token_by_token_and_a_flat_group_teaches_nothing(
    assay_registry: Registry,
) -> None:
    component = assay_registry.component("policy_optimizer", "best-of-group")
    optimizer = component.build(component.config(), BuildContext())
    batch = batch_of([1.0, 0.0, 1.0, 1.0, 1.0], [2, 1, 1, 2, 2], groups=[0, 0, 0, 1, 1])
    loss, gradient = loss_and_gradient(optimizer, optimizer.prepare(batch), torch.full((5, 2), -0.3))
    assert abs(loss - 0.3) < 1e-6
    third = -1 / 3
    wanted = torch.tensor([[third, third], [0, 0], [third, 0], [0, 0], [0, 0]])
    assert torch.allclose(gradient, wanted)
