"""The data that crosses assay's boundaries: frozen pydantic models, and the tensor dataclasses of `tensors`."""

from assay.contracts._contract import Contract, JsonValue
from assay.contracts.batch import (
    Candidate,
    Reward,
    RewardPart,
    RolloutRequest,
    RunInfo,
    RunOutcome,
    ScoredGroup,
    UpdateReport,
    WeightsRef,
)
from assay.contracts.limits import Isolation, Limits, ResourceLimits
from assay.contracts.rollout import Finish, Rollout, Sampling, Span, Step, Turn, WeightSpan
from assay.contracts.task import Message, Role, Task
from assay.contracts.tensors import Denominators, Forward, LossReport, TrainBatch
from assay.contracts.verdict import Evidence, Fault, Judgement, Status, StepScore, Verdict

__all__ = [
    "Candidate",
    "Contract",
    "Denominators",
    "Evidence",
    "Fault",
    "Finish",
    "Forward",
    "Isolation",
    "JsonValue",
    "Judgement",
    "Limits",
    "LossReport",
    "Message",
    "ResourceLimits",
    "Reward",
    "RewardPart",
    "Role",
    "Rollout",
    "RolloutRequest",
    "RunInfo",
    "RunOutcome",
    "Sampling",
    "ScoredGroup",
    "Span",
    "Status",
    "Step",
    "StepScore",
    "Task",
    "TrainBatch",
    "Turn",
    "UpdateReport",
    "Verdict",
    "WeightSpan",
    "WeightsRef",
]
