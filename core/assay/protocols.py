"""What a part must offer; a third party's parts and the built-in ones have exactly the same doors."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, runtime_checkable

from assay.contracts.batch import Candidate, RolloutRequest, ScoredGroup, WeightsRef
from assay.contracts.limits import Limits
from assay.contracts.rollout import Rollout
from assay.contracts.sandbox import Guarantee, Job, RunResult
from assay.contracts.task import Task
from assay.contracts.tensors import Forward, LossReport, TrainBatch
from assay.contracts.verdict import Verdict

if TYPE_CHECKING:
    from torch import Tensor
    from torch.nn import Parameter


class RewardSource(Protocol):
    """Turns candidates into verdicts; stateless from the caller's view."""

    @property
    def limits(self) -> Limits:
        """How it likes to be called and what its answers may be; fixed once built."""
        ...

    async def judge(self, batch: Sequence[Candidate]) -> Sequence[Verdict]:
        """One verdict per candidate, in order. Raise only when broken as a whole; the guard then asks one by one."""
        ...

    async def aclose(self) -> None:
        """Let go of everything; called once."""
        ...


@runtime_checkable
class LearningSource(RewardSource, Protocol):
    """A reward source that learns inside the loop (an online process reward model)."""

    async def learn(self, groups: Sequence[ScoredGroup]) -> Mapping[str, float]:
        """Update on scored groups and return metrics."""
        ...


class RolloutEngine(Protocol):
    """Draws responses; every token knows the weights that made it."""

    @property
    def policy_version(self) -> int:
        """Version of the weights in use."""
        ...

    def generate(self, requests: Sequence[RolloutRequest]) -> AsyncIterator[Rollout]:
        """Stream each rollout as it finishes, in any order; every request yields exactly one rollout."""
        ...

    async def pause(self, mode: Literal["keep", "abort", "wait"] = "keep") -> None:
        """Stop making tokens: keep requests for later, abort them, or wait until they are done."""
        ...

    async def push_weights(self, weights: WeightsRef) -> None:
        """Take new weights; rollouts in flight carry both versions. Call between `pause` and `resume`."""
        ...

    async def resume(self) -> None:
        """Go on after `pause`."""
        ...

    async def abort(self, ids: Collection[str]) -> None:
        """End these requests now; their partial rollouts come back with finish `abort`."""
        ...

    async def aclose(self) -> None:
        """Let go of everything; called once."""
        ...


@dataclass(frozen=True)
class Needs:
    """What an optimizer must be given; the trainer computes nothing that is not asked for."""

    logp_gen: bool = False
    """The sampler's log-probs."""
    logp_old: bool = True
    """Log-probs recomputed before the first step; for a single step they are the detached current ones."""
    logp_ref: bool = False
    """Log-probs of a reference policy."""
    values: bool = False
    """A critic."""
    topk: int = 0
    """K of the sampler's top-k log-probs, 0 for none."""
    logits: bool = False
    """Full logits (N, T, V)."""
    entropy_grad: bool = False
    """Entropy with graph."""
    complete_groups: bool = False
    """All responses of a group in one micro-batch, scored before the backward (policy-dependent advantages)."""
    group_size_min: int = 1
    """Smallest group that the advantage is defined for."""
    batch_logp: bool = False
    """`logp_old`-like statistics over the whole batch before the loss (a no-grad scoring pass)."""


class Decision(NamedTuple):
    """What becomes of one group, and why."""

    action: Literal["keep", "drop", "refill"]
    """`refill` drops the group and draws another prompt in its place."""
    reason: str
    """A short name that is counted in the metrics; empty for a plain keep."""


Selection = Sequence[Decision]
"""One decision per group, in order."""


class Sidecar(Protocol):
    """State that an optimizer owns beside its pure parts: a critic's head, a dual variable, a moving scalar."""

    name: str

    def parameters(self) -> Iterable[Parameter]:
        """Trainable parameters; the trainer puts them into an optimizer group of their own."""
        ...

    def after_step(self, batch: TrainBatch, metrics: Mapping[str, float]) -> Mapping[str, float]:
        """Move what moves once per update (EMA, adaptive KL); returns metrics."""
        ...

    def state_dict(self) -> Mapping[str, Any]:
        """State as tensors and plain JSON values, for the checkpoint."""
        ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The inverse of `state_dict`."""
        ...


class PolicyOptimizer(Protocol):
    """Rewards to gradient; pure except for its declared sidecars."""

    @property
    def needs(self) -> Needs:
        """What it must be given."""
        ...

    @property
    def sidecars(self) -> Sequence[Sidecar]:
        """Its state, empty for a pure composition."""
        ...

    def select(self, groups: Sequence[ScoredGroup]) -> Selection:
        """Keep, drop or refill each group, with a reason."""
        ...

    def prepare(self, batch: TrainBatch) -> TrainBatch:
        """Shaped rewards and advantages (N,) or (N, T) for the whole batch, before it is split."""
        ...

    def loss(self, batch: TrainBatch, forward: Forward) -> LossReport:
        """The loss of these rows with the batch's global denominators, and detached metrics."""
        ...


@dataclass(frozen=True)
class Example:
    """One supervised or preference example as token ids; the trainer packs it and calls the objective."""

    sequences: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]
    """(prompt ids, response ids) per sequence: one for supervised, two (chosen, rejected) or more for preferences."""
    weight: float = 1.0
    facts: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """What the objective reads beside the tokens (labels, margins, step ends)."""


class Objective(Protocol):
    """A loss for the training kinds `sft`, `preference` and `prm`."""

    kind: Literal["sft", "preference", "prm"]

    @property
    def needs(self) -> Needs:
        """What it must be given, as for an optimizer."""
        ...

    def loss(self, examples: Sequence[Example], forward: Forward, reference: Tensor | None) -> LossReport:
        """The loss over the rows of `forward` (the sequences of all examples in order)."""
        ...


class TaskSource(Protocol):
    """Where tasks come from; checked as a whole before the first token is generated."""

    def __len__(self) -> int:
        """Number of tasks."""
        ...

    def tasks(self) -> Iterable[Task]:
        """All tasks, in a fixed order; a bad row raises `ConfigError` with file, line and column."""
        ...


class Tracker(Protocol):
    """Copies metrics somewhere else; the run's own log is always kept."""

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Record the metrics of one step."""
        ...

    def close(self) -> None:
        """Flush and let go."""
        ...


class Sandbox(Protocol):
    """Runs programs that nobody trusts."""

    @property
    def guarantees(self) -> frozenset[Guarantee]:
        """What holds on this machine; declared only where `sandbox_suite` proves it."""
        ...

    async def run(self, job: Job) -> RunResult:
        """The job's result; raises `SandboxError` for the sandbox's own failure, never for the job's."""
        ...

    async def aclose(self) -> None:
        """Remove every jail, process, mount and file; called once."""
        ...
