"""assay: rewards that can be trusted, for reinforcement learning of language models."""

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

__version__ = "0.1.0"

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
    "hookimpl",
    "verifier",
]
