"""Everything that can be found wrong before the first update: parts, models, data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from assay.component import BuildContext
from assay.config.fit import AnyFit, PrmConfig, StreamData
from assay.config.refs import build, checked
from assay.errors import ConfigError
from assay.preflight import check_model, make_context
from assay.protocols import Objective
from assay.registry import Registry
from assay.reports.step_rows import StepRow, read_step_rows

if TYPE_CHECKING:
    from assay.training.examples import ExampleSet
    from assay.training.model import PolicyModel


@dataclass
class FitPlan:
    """A checked config, its parts built, and its data read."""

    config: AnyFit
    registry: Registry
    context: BuildContext
    objective: Objective
    policy: PolicyModel
    reference: PolicyModel | None
    examples: ExampleSet
    stream: ExampleSet | None = None
    stream_objective: Objective | None = None
    first_errors: Sequence[StepRow] = ()
    """Rows with known wrong steps, for a reward model."""
    notes: list[str] = field(default_factory=list[str])
    """Sentences for the user that are no errors."""

    @property
    def steps_per_epoch(self) -> int:
        """Optimizer steps of one pass."""
        return -(-len(self.examples.trained) // self.config.training.batch_size)

    @property
    def total_steps(self) -> int:
        """Optimizer steps of the run."""
        passes = self.config.training.epochs * self.steps_per_epoch
        return passes if self.config.steps is None else min(passes, self.config.steps)

    @property
    def reference_repeats(self) -> bool:
        """Whether one frozen reference meets the same rows in several passes."""
        needs = self.objective.needs
        return needs.logp_ref and not needs.reference_every and self.total_steps > self.steps_per_epoch


def plan_fit(config: AnyFit, *, base_dir: Path, where: str) -> FitPlan:
    """The plan of a run; raises `ConfigError` in one sentence for the first thing that is wrong."""
    registry = Registry.load(allow=config.plugins.allow)
    trained = config.trained
    context = make_context(registry, base_dir=base_dir, seed=config.seed, device=trained.device)
    for index, tracker in enumerate(config.trackers):
        # Built, since a tracker begins with its first step: a missing library is told before any work.
        build(registry, "tracker", tracker.use, tracker.options, context, where=f"{where}: trackers[{index}]")
    options = config.objective_options
    checked(registry, "objective", config.objective.use, options, where=f"{where}: objective")
    check_model(trained.model, base_dir, where)
    if config.reference_model is not None:
        check_model(config.reference_model, base_dir, where)
    objective = _objective(registry, config, config.objective.use, options, context, where=f"{where}: objective")
    stream = config.stream_data
    second = None
    if stream is not None:
        use = stream.objective or config.objective
        second = _objective(registry, config, use.use, use.options, context, where=f"{where}: stream.objective")
        if second.sidecars:
            raise ConfigError(f"{where}: stream.objective: {use.use!r} has weights of its own; use one that has none")
    _check_reference(config, objective, where)
    policy, reference = _models(config, objective, context)
    from assay.training.encoder import TextEncoder
    from assay.training.examples import read_examples  # torch is loaded by now

    encoder = TextEncoder(policy.tokenizer)
    if reference is not None and TextEncoder(reference.tokenizer).fingerprint != encoder.fingerprint:
        raise ConfigError(
            f"{where}: the reference {reference.name!r} has another tokenizer than {policy.name!r}; log-probs of the "
            "same tokens are compared, so both must cut texts alike"
        )

    def read(data: Any, objective: Objective, place: str) -> ExampleSet:
        return read_examples(
            data,
            objective,
            encoder,
            seed=config.seed,
            base_dir=base_dir,
            runs_dir=Path(config.runs_dir),
            longest=getattr(policy.model.config, "max_position_embeddings", None),
            where=f"{where}: {place}",
        )

    return FitPlan(
        config,
        registry,
        context,
        objective,
        policy,
        reference,
        examples=read(config.data, objective, "data"),
        stream=None if stream is None or second is None else read(stream, second, "stream"),
        stream_objective=second,
        first_errors=_first_errors(config, base_dir),
        notes=list(registry.problems),
    )


def _objective(
    registry: Registry, config: AnyFit, name: str, options: dict[str, Any], context: BuildContext, *, where: str
) -> Objective:
    objective: Objective = build(registry, "objective", name, options, context, where=where)
    kind = config.kind
    if objective.kind != kind:
        offers = [row.offer for row in registry.rows if row.kind == "objective"]
        same = [offer.name for offer in offers if offer.facts.get("kind") == kind]
        raise ConfigError(
            f"{where}.use: {name!r} is an objective of kind {objective.kind!r} and the config's kind is {kind!r}; "
            f"of that kind are {', '.join(sorted(same)) or 'none'}"
        )
    return objective


def _check_reference(config: AnyFit, objective: Objective, where: str) -> None:
    if config.reference_model is not None and not objective.needs.logp_ref:
        raise ConfigError(
            f"{where}: a reference is given, and the objective {config.objective.use!r} compares with none; "
            "remove the reference or choose another objective"
        )


def _first_errors(config: AnyFit, base_dir: Path) -> list[StepRow]:
    if not isinstance(config, PrmConfig) or config.evaluate.first_error is None:
        return []
    return read_step_rows(base_dir / Path(config.evaluate.first_error).expanduser())


def _models(config: AnyFit, objective: Objective, context: BuildContext) -> tuple[PolicyModel, PolicyModel | None]:
    """The trained model and the reference that must be loaded for itself, once there is room for checkpoints."""
    from assay.training.checkpoint import check_free_space, checkpoint_bytes
    from assay.training.model import load_policy
    from assay.training.threads import use_threads

    use_threads()
    trained = config.trained

    def load(name: str) -> PolicyModel:
        return load_policy(
            name, dtype=trained.dtype, device=trained.device, cache_dir=context.cache_dir, base_dir=context.base_dir
        )

    policy = load(trained.model)
    room = checkpoint_bytes(policy, config.training.settings) * (config.checkpoint.keep + 1)
    check_free_space(Path(config.runs_dir), room)
    named = config.reference_model
    # With an adapter the reference is the policy with the adapter off, which no reward source could hold.
    if named is None and objective.needs.logp_ref and objective.kind == "prm" and config.training.lora is not None:
        named = trained.model
    reference = None if named is None else load(named)
    if reference is not None:
        reference.model.requires_grad_(False)
    context.policy = policy
    return policy, reference


def stream_size(stream: StreamData, config: AnyFit) -> int:
    """Examples of the second stream in one step."""
    return stream.batch_size or config.training.batch_size
