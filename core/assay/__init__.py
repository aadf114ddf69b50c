"""assay: rewards that can be trusted, for reinforcement learning of language models."""

import importlib
from typing import TYPE_CHECKING, Any

from assay.component import BuildContext, Component, Options, Part
from assay.contracts import (
    Candidate,
    Evidence,
    Judgement,
    Limits,
    Message,
    Reward,
    Rollout,
    Span,
    Step,
    StepScore,
    Task,
    Turn,
    Verdict,
)
from assay.errors import (
    AssayError,
    ConfigError,
    EngineError,
    JudgingError,
    PluginError,
    SandboxError,
    StoreError,
    TrainingError,
)
from assay.hookspecs import hookimpl
from assay.protocols import (
    Objective,
    PolicyOptimizer,
    RewardSource,
    RolloutEngine,
    Sandbox,
    TaskSource,
    Tracker,
)
from assay.verifier import verifier

if TYPE_CHECKING:
    from assay.api import Run, arerank, ascore, atrain, load_config, open_run, rerank, score, train

__version__ = "0.1.0"

_SURFACE = ("Run", "arerank", "ascore", "atrain", "load_config", "open_run", "rerank", "score", "train")


def __getattr__(name: str) -> Any:
    """The functions of `assay.api`, loaded when they are first used: listing a plugin needs none of them."""
    if name in _SURFACE:
        return getattr(importlib.import_module("assay.api"), name)
    raise AttributeError(f"module 'assay' has no attribute {name!r}")


__all__ = [
    "AssayError",
    "BuildContext",
    "Candidate",
    "Component",
    "ConfigError",
    "EngineError",
    "Evidence",
    "Judgement",
    "JudgingError",
    "Limits",
    "Message",
    "Objective",
    "Options",
    "Part",
    "PluginError",
    "PolicyOptimizer",
    "Reward",
    "RewardSource",
    "Rollout",
    "RolloutEngine",
    "Run",
    "Sandbox",
    "SandboxError",
    "Span",
    "Step",
    "StepScore",
    "StoreError",
    "Task",
    "TaskSource",
    "Tracker",
    "TrainingError",
    "Turn",
    "Verdict",
    "__version__",
    "arerank",
    "ascore",
    "atrain",
    "hookimpl",
    "load_config",
    "open_run",
    "rerank",
    "score",
    "train",
    "verifier",
]
