"""What is learned, and by which processes: one alone, or several that torchrun started.

Rank 0 samples, judges, records and says what to do; every other rank holds the same trainer and does what it is told,
since each step, checkpoint and publication needs all parts of the weights.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from assay.config.refs import build
from assay.contracts import ScoredGroup
from assay.judging.divided import FollowedSource
from assay.preflight import Plan
from assay.protocols import Objective, PolicyOptimizer

if TYPE_CHECKING:
    from assay.training.model import PolicyModel
    from assay.training.online import GroupLearner, RewardLearner, Stream
    from assay.training.ranks import Ranks
    from assay.training.trainer import Trainer


@dataclass
class Taught:
    """Models and data of a run's updates."""

    policy: "PolicyModel"
    """The policy that is trained; an engine of this process shares it only where one process trains."""
    models: "Mapping[str, PolicyModel]"
    """Frozen policies by the optimizer's names for them."""
    stream: "Stream | None" = None
    ranks: "Ranks" = field(default_factory=lambda: _alone())


def make_learner(plan: Plan, taught: Taught) -> "tuple[Trainer, RewardLearner | GroupLearner]":
    """The trainer, and what turns judged groups into its steps."""
    from assay.training.online import GroupLearner, RewardLearner
    from assay.training.trainer import Trainer

    config, registry, context = plan.config, plan.registry, plan.context
    optimizer: PolicyOptimizer | None = None
    objective: Objective | None = None
    if config.objective is None:
        use = config.optimizer
        optimizer = build(registry, "policy_optimizer", use.use, use.options, context, where="optimizer")
    else:
        chosen = config.objective
        objective = build(registry, "objective", chosen.use, chosen.options, context, where="objective")
    trainer = Trainer(
        taught.policy,
        optimizer,
        config.optimizer,
        objective=objective,
        seed=config.seed,
        models=taught.models,
        total_steps=config.steps,
        max_tokens=config.engine.max_new_tokens,
        ranks=taught.ranks,
    )
    if optimizer is not None:
        return trainer, RewardLearner(trainer, optimizer, taught.stream)
    assert objective is not None
    return trainer, GroupLearner(trainer, objective, config.examples, taught.stream)


def follow(plan: Plan, taught: Taught) -> None:
    """On every other rank: take part until rank 0 ends the run or is gone."""
    from assay.training.checkpoint import load_trainer, save_trainer
    from assay.training.weights import Publisher

    sources: dict[str, FollowedSource] = {}
    while (command := taught.ranks.hear())["do"] == "source":
        sources[command["source"]] = _open_source(plan, command, taught.ranks)
    trainer, inner = make_learner(plan, taught)
    publisher = Publisher(taught.policy, folder=Path(), ranks=taught.ranks)
    while command["do"] != "end":
        match command["do"]:
            case "ask":
                sources[command["source"]].ask(command["call"], command["given"])
            case "step":
                inner.step([ScoredGroup.model_validate(group) for group in command["groups"]])
            case "weights":
                publisher.publish(command["version"])
            case "save":
                save_trainer(trainer, Path())
            case _:
                load_trainer(trainer, Path(command["folder"]))
        command = taught.ranks.hear()
    for source in sources.values():
        source.close()


def _open_source(plan: Plan, command: Mapping[str, Any], ranks: "Ranks") -> FollowedSource:
    """A source that rank 0 has opened, from the policy as it is before it is divided."""
    use, options, where = command["use"], command["options"], command["where"]
    return FollowedSource(build(plan.registry, "reward_source", use, options, plan.context, where=where), ranks)


def _alone() -> "Ranks":
    from assay.training.ranks import Ranks

    return Ranks()
