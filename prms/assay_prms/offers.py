"""The objectives and sources as components."""

from __future__ import annotations

from typing import Any

from assay.component import BuildContext, Component
from assay.errors import ConfigError
from assay.protocols import RewardObjective, RewardSource
from assay_prms.generative import CritiqueObjective, CritiqueOptions, GenerativeObjective, GenerativeOptions
from assay_prms.implicit import ImplicitCeObjective, ImplicitCeOptions
from assay_prms.loading import RewardModelOptions, VerifierOptions, build_reward_model, build_verifier
from assay_prms.pairs import BradleyTerryObjective, BradleyTerryOptions, ImplicitDpoObjective, ImplicitDpoOptions
from assay_prms.prime import PrimeOptions, build_prime
from assay_prms.steps import (
    MultiDomainOptions,
    OutcomeObjective,
    OutcomeOptions,
    PqmObjective,
    PqmOptions,
    StepObjective,
    StepOptions,
)

EXTRA = "train"
NO_GOLDS = {"check_task": "never"}
"""These sources read no gold; building one only to ask would load its model."""


def _head(outputs: int, hidden: int, context: BuildContext) -> Any:
    try:
        from assay_prms.heads import ScoreHead
    except ImportError as error:
        raise ConfigError(
            f"objective: a reward head needs torch ({error}); install it with: python -m pip install 'assay[train]'"
        ) from error
    return ScoreHead(outputs, hidden, seed=context.seed)


def build_step(options: StepOptions, context: BuildContext) -> RewardObjective:
    """The step classifier."""
    return StepObjective(options, _head(options.outputs, options.hidden, context))


def build_outcome(options: OutcomeOptions, context: BuildContext) -> RewardObjective:
    """The outcome model."""
    return OutcomeObjective(options, _head(1, options.hidden, context))


def build_pqm(options: PqmOptions, context: BuildContext) -> RewardObjective:
    """The ranking model."""
    return PqmObjective(options, _head(1, options.hidden, context))


def build_bradley_terry(options: BradleyTerryOptions, context: BuildContext) -> RewardObjective:
    """The preference model."""
    return BradleyTerryObjective(options, _head(1, options.hidden, context))


def build_implicit_ce(options: ImplicitCeOptions, _context: BuildContext) -> RewardObjective:
    """The implicit model, by outcomes."""
    return ImplicitCeObjective(options)


def build_implicit_dpo(options: ImplicitDpoOptions, _context: BuildContext) -> RewardObjective:
    """The implicit model, by pairs."""
    return ImplicitDpoObjective(options)


def build_generative(options: GenerativeOptions, _context: BuildContext) -> RewardObjective:
    """The verifier that answers at once."""
    return GenerativeObjective(options)


def build_critique(options: CritiqueOptions, _context: BuildContext) -> RewardObjective:
    """The verifier that writes a critique first."""
    return CritiqueObjective(options)


def objectives() -> list[Component[Any, RewardObjective]]:
    """Every objective of this plugin."""
    offers: list[tuple[str, type[Any], Any]] = [
        ("bradley_terry", BradleyTerryOptions, build_bradley_terry),
        ("outcome", OutcomeOptions, build_outcome),
        ("step", StepOptions, build_step),
        ("multi_domain", MultiDomainOptions, build_step),
        ("pqm", PqmOptions, build_pqm),
        ("implicit_ce", ImplicitCeOptions, build_implicit_ce),
        ("implicit_dpo", ImplicitDpoOptions, build_implicit_dpo),
        ("generative", GenerativeOptions, build_generative),
        ("generative_critique", CritiqueOptions, build_critique),
    ]
    return [
        Component(name, model, build, (model.__doc__ or "").partition("\n")[0], extra=EXTRA, facts={"kind": "prm"})
        for name, model, build in offers
    ]


def sources() -> list[Component[Any, RewardSource]]:
    """Every reward source of this plugin; forwards run in a thread, so the sources stand in the run's own process."""
    return [
        Component(
            "reward-model", RewardModelOptions, build_reward_model, "a trained reward model, by its folder",
            extra=EXTRA, isolation="inline", facts=NO_GOLDS,
        ),
        Component(
            "generative-verifier", VerifierOptions, build_verifier,
            "a model behind an engine writes critiques; the share that ends in yes", isolation="inline", facts=NO_GOLDS,
        ),
        Component(
            "prime", PrimeOptions, build_prime,
            "an implicit process reward model that learns inside the loop from verified outcomes", extra=EXTRA,
            isolation="inline", facts=NO_GOLDS,
        ),
    ]  # fmt: skip
