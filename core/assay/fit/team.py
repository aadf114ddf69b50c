"""What the processes of a run do together: rank 0 says what, every other one does it, each with the same plan.

The batch of a step depends on data, config and seed alone, so its number is all that the others must be told.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from assay.contracts import UpdateReport
from assay.fit.plan import FitPlan, stream_size

if TYPE_CHECKING:
    from assay.training.model import PolicyModel
    from assay.training.ranks import Ranks
    from assay.training.trainer import Trainer


def make_trainer(plan: FitPlan, ranks: Ranks) -> Trainer:
    """The trainer of the plan's models, which it divides where there are several processes."""
    from assay.training.trainer import Trainer

    return Trainer(
        plan.policy,
        None,
        plan.config.training.settings,
        objective=plan.objective,
        seed=plan.config.seed,
        reference=plan.reference,
        total_steps=max(1, plan.total_steps),
        ranks=ranks,
    )


def update(plan: FitPlan, trainer: Trainer, step: int) -> UpdateReport:
    """The optimizer step that comes after `step` others."""
    from assay.training.examples import batch_of
    from assay.training.trainer import ExampleStream

    config = plan.config
    batch = batch_of(plan.examples, step, config.training.batch_size, seed=config.seed)
    if plan.reference_repeats:
        trainer.remember_reference(batch)
    also: list[ExampleStream] = []
    stream = config.stream_data
    if stream is not None and plan.stream is not None and plan.stream_objective is not None:
        second = batch_of(plan.stream, step, stream_size(stream, config), seed=config.seed + 1)
        also.append(ExampleStream(second, plan.stream_objective, stream.weight))
    return trainer.step_examples(batch, also=also)


def restore(plan: FitPlan, trainer: Trainer, folder: Path) -> None:
    """Put a checkpoint into the trainer, and score what the first pass had scored by then.

    A row's log-probs under the reference are those of its first batch, to the last bit, after a resume too.
    """
    from assay.training.checkpoint import load_trainer
    from assay.training.examples import batch_of

    load_trainer(trainer, folder)
    if plan.reference_repeats:
        for step in range(min(trainer.version, plan.steps_per_epoch)):
            batch = batch_of(plan.examples, step, plan.config.training.batch_size, seed=plan.config.seed)
            trainer.remember_reference(batch)


def measure(plan: FitPlan, trainer: Trainer) -> Mapping[str, float]:
    """Loss and metrics of the held-out half."""
    return trainer.measure_examples(plan.examples.held_out)


def follow(plan: FitPlan, ranks: Ranks) -> None:
    """On every rank but the first: take part until rank 0 ends the run or is gone."""
    from assay.training.checkpoint import save_trainer
    from assay.training.weights import save_policy

    trainer = make_trainer(plan, ranks)
    while (command := ranks.hear())["do"] != "end":
        match command["do"]:
            case "update":
                update(plan, trainer, command["step"])
            case "measure":
                measure(plan, trainer)
            case "gather":
                gather(trainer, None)
            case "save":
                save_trainer(trainer, Path())
            case "write":
                save_policy(trainer.policy, Path(), ranks)
            case _:
                restore(plan, trainer, Path(command["folder"]))


class Whole(NamedTuple):
    """The models of this process alone, as a reward source reads them."""

    policy: PolicyModel
    reference: PolicyModel | None


def whole_models(plan: FitPlan) -> Whole:
    """Copies of what is about to be divided."""
    compares = plan.objective.needs.logp_ref
    return Whole(_copy(plan.policy), _copy(plan.reference or plan.policy) if compares else None)


def gather(trainer: Trainer, whole: Whole | None) -> None:
    """Fill the copy of the policy on rank 0 with the weights of now; the reference stays as it was."""
    from assay.training.weights import policy_state

    state = trainer.ranks.gathered(policy_state(trainer.policy))
    if whole is not None:
        whole.policy.model.load_state_dict(state, strict=False)  # tied weights have one name of their own


def _copy(policy: PolicyModel) -> PolicyModel:
    made = copy.copy(policy)
    made.model = copy.deepcopy(policy.model).eval().requires_grad_(False)
    return made
