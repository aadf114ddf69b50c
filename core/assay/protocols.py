"""What a part must offer; a third party's parts and the built-in ones have exactly the same doors."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, Protocol, runtime_checkable

from assay.contracts.batch import Candidate, RolloutRequest, ScoredGroup, WeightsRef
from assay.contracts.limits import Limits
from assay.contracts.rollout import Rollout
from assay.contracts.sandbox import Guarantee, Job, RunResult
from assay.contracts.task import Task
from assay.contracts.tensors import Forward, LossReport, TrainBatch
from assay.contracts.verdict import Verdict

if TYPE_CHECKING:
    from pydantic import JsonValue
    from torch import Tensor
    from torch.nn import Parameter

    from assay.training.model import PolicyModel
    from assay.training.ranks import Ranks


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


@runtime_checkable
class KeepsState(Protocol):
    """A learning source whose state belongs into the run's checkpoints."""

    def save_state(self, folder: Path) -> None:
        """Write everything that `load_state` needs into an existing, empty folder."""
        ...

    def load_state(self, folder: Path) -> None:
        """Go on from what `save_state` wrote; raises `TrainingError` where it cannot be read."""
        ...


@runtime_checkable
class DividedSource(LearningSource, KeepsState, Protocol):
    """A learning source whose weights the processes of torchrun can hold in parts, as they hold the policy's.

    Every process builds it with the same options. After `divide` all of them make the same calls of `judge`, `learn`,
    `save_state` and `load_state`, in the same order and one at a time. The verdicts and metrics of rank 0 count, and
    rank 0 alone writes files, of the whole tensors. What can be wrong with the data is raised on every process or on
    none. Without `divide` a source stays whole, on rank 0 alone.
    """

    def divide(self, ranks: Ranks) -> None:
        """Divide the weights, in place (`ranks.shard`); called once, before anything is judged or learned."""
        ...


class RolloutEngine(Protocol):
    """Draws responses; every token knows the weights that made it."""

    @property
    def policy_version(self) -> int:
        """Version of the weights in use."""
        ...

    def generate(self, requests: Sequence[RolloutRequest]) -> AsyncIterator[Rollout]:
        """Stream each rollout as it finishes, in any order; every request yields exactly one rollout.

        A request with `prompt_ids` is answered after those, and its rollout has them; an engine without token ids
        refuses it.
        """
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


@runtime_checkable
class ReadsWeights(Protocol):
    """An engine that takes new weights from files; any other one shares the trained module in memory."""

    weights_folder: Path
    """Where versions are published for it; at most two lie there, each with the trained model's `probe.json`."""


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
    """Before every update, `rescore` with the current log-probs of the whole batch (a no-grad scoring pass; before the
    first update of a batch `logp_old` serves). Not needed where the whole batch is one slice."""
    old_in_prepare: bool = False
    """`logp_old` already in `prepare` (a KL penalty inside the reward), even for a single update."""
    token_reward: bool = False
    """Rewards of single tokens or steps (a process reward model)."""
    models: tuple[str, ...] = ()
    """Further frozen policies whose log-probs go into `TrainBatch.extra["logp_<name>"]` (RTO: `dpo`)."""
    channels: tuple[str, ...] = ()
    """Reward channels beside `reward` (RePO: `cost`)."""
    reference_every: int = 0
    """The reference moves: the policy is copied into it after every so many updates; 0 for a frozen one."""
    set_apart: bool = False
    """Texts beside the groups (explanations), in the channel `assay.contracts.batch.APART`."""
    reset_optimizer: bool = False
    """Whether the gradient optimizer's moments are forgotten whenever the reference moves."""
    states: bool = False
    """What the objective's heads read from the states after each response token (`StateHead`)."""
    logp: bool = True
    """Log-probs of the response tokens; False spares a head-only objective the output layer."""


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


@runtime_checkable
class Critic(Sidecar, Protocol):
    """A sidecar that values states: the trainer fills `Forward.values` and `TrainBatch.values` by it.

    The first critic of an optimizer is that of the reward; others are told apart by their `name`
    (`Forward.extra["values_<name>"]`, the same key in `TrainBatch.extra`).
    """

    def bind(self, hidden_size: int) -> None:
        """Make the parameters for a policy of this width; called once, before `parameters`, with torch's seed set."""
        ...

    def values(self, hidden: Tensor) -> Tensor:
        """Values (...) of the policy's last hidden states (..., H), each *before* the token that it precedes."""
        ...


@runtime_checkable
class StateHead(Sidecar, Protocol):
    """A sidecar that reads the model's last hidden states *after* each response token (a reward model's head).

    The trainer binds it as it binds a critic and, where `Needs.states`, puts what it reads into
    `Forward.extra["head_<name>"]`, (N, T) or (N, T, C); hidden states themselves are not kept.
    """

    def bind(self, hidden_size: int) -> None:
        """Make the parameters for a model of this width; called once, before `parameters`, with torch's seed set."""
        ...

    def read(self, hidden: Tensor) -> Tensor:
        """What the head says of states (n, H): (n,) or (n, C) float32."""
        ...


@runtime_checkable
class TaskSampler(Sidecar, Protocol):
    """A sidecar that chooses which tasks are drawn next, from what it has seen; checkpointed as every sidecar."""

    def weights(self, task_ids: Sequence[str]) -> Sequence[float]:
        """One non-negative weight per task, 0 for never; all 0 means that nothing is left to learn from."""
        ...

    def observe(self, groups: Sequence[ScoredGroup]) -> None:
        """Take note of judged groups (before any is dropped); `PolicyOptimizer.select` calls it."""
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
        """Shaped rewards and advantages (N,) or (N, T) for the whole batch, before it is split; once per batch.

        May clear rows of `mask` (a masked reward, a truncated response); `denominators` then count what is left.
        """
        ...

    def rescore(self, batch: TrainBatch, logp: Tensor) -> TrainBatch:
        """The prepared batch with what depends on the current policy, from its log-probs (N, T), before a split.

        Called before every update where `needs.batch_logp`; returns the batch unchanged otherwise.
        """
        ...

    def loss(self, batch: TrainBatch, forward: Forward) -> LossReport:
        """The loss of these rows with the batch's global denominators, and detached metrics."""
        ...


# ---- Parts of the optimizer composition, one protocol per axis ------------------------------------------------------
#
# A part may also have the attributes `needs: Needs`, `sidecars: Sequence[Sidecar]` and `regularisers:
# Sequence[Regulariser]`; the composition merges them.


@dataclass(frozen=True)
class GroupMoments:
    """Statistics of the rewards of each row's group, NaN rows left out, virtual samples counted; all (N,)."""

    count: Tensor
    mean: Tensor
    std: Tensor
    """With ddof = 1; exactly 0 where it is below 1e-6 or the group has one value."""


class RewardShaper(Protocol):
    """Changes rewards before any statistic is taken."""

    def shape(self, batch: TrainBatch) -> TrainBatch:
        """The batch with another `reward` (N,) or `token_reward` (N, T)."""
        ...


class BatchRule(Protocol):
    """Decides which groups, and which rows of the kept ones, are learned from."""

    def select(self, groups: Sequence[ScoredGroup]) -> Selection:
        """One decision per group, on unshaped rewards."""
        ...

    def apply(self, batch: TrainBatch) -> TrainBatch:
        """The batch with rows of `mask` cleared, or rewards set to NaN; denominators are recounted afterwards."""
        ...


class Baseline(Protocol):
    """What is subtracted from a reward."""

    def centre(self, batch: TrainBatch, moments: GroupMoments) -> TrainBatch:
        """The batch with centred `reward` (N,) (and `token_reward`, where the baseline speaks of it)."""
        ...


class Scale(Protocol):
    """What a centred reward is divided by."""

    @property
    def level(self) -> Literal["sample", "token"]:
        """Whether it acts on (N,) before the credit or on (N, T) after it."""
        ...

    def scale(self, advantage: Tensor, batch: TrainBatch, moments: GroupMoments) -> Tensor:
        """The scaled advantage: (N,) for `sample`, (N, T) for `token`."""
        ...


class Credit(Protocol):
    """How the reward of a response is spread over its tokens."""

    @property
    def whole_response(self) -> bool:
        """True where a response is one action: token rewards are then summed into the reward before the baseline."""
        ...

    def assign(self, reward: Tensor, batch: TrainBatch) -> tuple[Tensor, Tensor | None]:
        """Advantages (N,) or (N, T), and the critic's targets (N, T) or None, from centred rewards (N,)."""
        ...


class Estimator(Protocol):
    """Advantages that are not baseline x scale x credit; may depend on the current policy."""

    def advantages(self, batch: TrainBatch) -> TrainBatch:
        """The batch with `advantage` (N,) or (N, T), and `returns` where a critic learns."""
        ...

    def at_policy(self, batch: TrainBatch, logp: Tensor, ratio: Tensor) -> Tensor | None:
        """Advantages (N,) under the current policy, from detached log-probs and ratios (N, T); None if independent."""
        ...


@dataclass(frozen=True)
class Ratios:
    """The probability ratio of each token, with graph, and what it was made of."""

    rho: Tensor
    """(N, T): exp of the log-ratio (of the token or of its sequence), the exponent clamped to +-20; 1 for no ratio."""
    logp: Tensor
    """(N, T): log-probs under the current policy."""
    denominator: Tensor
    """(N, T): the log-probs that they are compared with."""
    plain: bool
    """True for no ratio at all: the surrogate is then `logp` itself."""
    clamped: Tensor
    """(N, T) bool: where the exponent hit the clamp."""


class Ratio(Protocol):
    """Which ratio stands in the surrogate."""

    def ratios(self, batch: TrainBatch, forward: Forward) -> Ratios:
        """The ratios of a slice's rows."""
        ...


@dataclass(frozen=True)
class Surrogate:
    """What is maximised, token by token."""

    value: Tensor
    """(N, T) A x S with graph."""
    weight: Tensor
    """(N, T) detached: the gradient is advantage x weight x grad logp."""
    clipped: Tensor
    """(N, T) bool: tokens whose ratio was cut, or whose gradient was taken away."""


class TrustRegion(Protocol):
    """How far the ratio may carry the policy."""

    def surrogate(self, advantage: Tensor, ratios: Ratios, batch: TrainBatch, forward: Forward) -> Surrogate:
        """The surrogate of a slice, for advantages (N, T)."""
        ...


class Aggregation(Protocol):
    """How token losses become one number."""

    def weights(self, batch: TrainBatch) -> Tensor:
        """(N, T) or (N, 1): the loss is sum(weights x mask x token loss), with global denominators."""
        ...


class Regulariser(Protocol):
    """A term added to the loss."""

    name: ClassVar[str]

    def prepare(self, batch: TrainBatch) -> TrainBatch:
        """What it must know of the whole batch, put into `extra`; the batch itself where nothing."""
        ...

    def rescore(self, batch: TrainBatch, logp: Tensor) -> TrainBatch:
        """What it must know of the whole batch under the current policy (see `PolicyOptimizer.rescore`)."""
        ...

    def penalty(self, batch: TrainBatch, forward: Forward, weights: Tensor) -> LossReport:
        """This slice's share of the term; `weights` are those of the aggregation."""
        ...


# ---- Supervised, preference and reward-model objectives -------------------------------------------------------------


@dataclass(frozen=True)
class Example:
    """One supervised or preference example as token ids; the trainer packs it and calls the objective."""

    sequences: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]
    """(prompt ids, response ids) per sequence: one for supervised, two (chosen, rejected) or more for preferences."""
    weight: float = 1.0
    facts: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """What the objective reads beside the tokens (labels, margins, step ends)."""


@dataclass(frozen=True)
class ExampleTotals:
    """Global counts over all slices and ranks of a batch of examples, so that any split gives the same loss."""

    examples: float
    """Sum of the examples' weights."""
    tokens: float
    """Response tokens of all sequences."""


Encode = Callable[[Any, str], tuple[tuple[int, ...], tuple[int, ...]]]
"""A prompt (a text, or a list of messages with role and content) and a response to (prompt ids, response ids), the end
token included: all that most objectives ask of an `Encoder`."""


class Encoder(Protocol):
    """How texts become token ids of one model, the same for training and for scoring."""

    @property
    def fingerprint(self) -> str:
        """A hash of the tokenizer and of how prompts are rendered; equal ones give equal ids."""
        ...

    def __call__(self, prompt: Any, response: str, /) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """(prompt ids, response ids) of a prompt, a text or a list of messages, and a response; see `Encode`."""
        ...

    def offsets(self, response: str) -> tuple[tuple[int, int], ...]:
        """The characters [start, end) of `response` that each of its tokens stands for, as `self(...)` cuts it.

        One entry per response id; the end token stands for nothing, (len(response), len(response)).
        """
        ...

    def ids(self, text: str) -> tuple[int, ...]:
        """The ids of a text alone, without special tokens (a marker, the word Yes)."""
        ...


RowLayout = Literal["texts", "pairs", "responses", "ranked", "steps"]
"""What a row of an objective's data holds: one response to imitate (`response`); (`chosen`, `rejected`); one judged
response (`response`, `label`); a list of `responses`, best first; or one response with judged steps."""


class Objective(Protocol):
    """A loss for the training kinds `sft`, `preference` and `prm`."""

    kind: Literal["sft", "preference", "prm"]

    @property
    def layout(self) -> RowLayout:
        """What a row holds, so that rows can be made of a run's own rewards."""
        ...

    @property
    def needs(self) -> Needs:
        """What it must be given, as for an optimizer."""
        ...

    @property
    def sidecars(self) -> Sequence[Sidecar]:
        """Its state beside the model (a reward model's head), trained and checkpointed with it; mostly empty."""
        ...

    def read(self, row: Mapping[str, Any], encode: Encoder) -> Example | None:
        """The example that one row of a data file holds, or None for a row to be left out (counted by the caller).

        A missing or mistyped column raises `ConfigError`; the caller adds file and line.
        """
        ...

    def prepare(self, examples: Sequence[Example]) -> Sequence[Example]:
        """The batch as it is to be trained on, before it is split (KTO adds mismatched pairs)."""
        ...

    def rescore(self, examples: Sequence[Example], logp: Tensor, reference: Tensor | None) -> Sequence[Example]:
        """Examples with what depends on the whole batch under the current policy, where `needs.batch_logp`."""
        ...

    def loss(
        self,
        examples: Sequence[Example],
        forward: Forward,
        reference: Tensor | None,
        *,
        totals: ExampleTotals | None = None,
    ) -> LossReport:
        """This slice's share of the loss over the rows of `forward` (N, T): the sequences of all examples in order.

        Row k holds the response of sequence k from column 0 on, padded on the right; `reference` are the reference's
        log-probs in the same shape. Without `totals` the examples are taken for the whole batch.
        """
        ...


@runtime_checkable
class ChoosesExamples(Protocol):
    """An objective that learns from the better part of its data only."""

    def choose(self, examples: Sequence[Example]) -> Sequence[Example]:
        """The examples that are kept, in their own order; asked once, over the whole trained half."""
        ...


@runtime_checkable
class RewardObjective(Objective, Protocol):
    """An objective of kind `prm`: what it trains is a reward model that becomes a reward source."""

    @property
    def layout(self) -> Literal["pairs", "responses", "steps"]:
        """What a row holds: (chosen, rejected) responses, one judged response, or one response with judged steps.

        In an example's `facts`, `label` is a response's outcome (bool) and `labels` are those of its steps, each a
        number from 0 to 1 or None: class balance and baselines are counted from them.
        """
        ...

    def read_all(self, row: Mapping[str, Any], encode: Encoder) -> Sequence[Example]:
        """All examples that a row holds: as `read`, but formats such as PRM800K keep several responses in one row."""
        ...

    def describe(self, policy: PolicyModel, reference: PolicyModel | None = None) -> Mapping[str, JsonValue]:
        """What is saved beside the weights as `reward_model.json`, plain data.

        `use` names the reward source and `options` holds its options, to which the loader adds `path`, the folder; all
        else (template, step boundary, head, token ids, aggregation, the tokenizer's hash) is the source's, under
        `model`; a `threshold` there that is None is filled with one that was fitted later.
        """
        ...

    def source(self, policy: PolicyModel, reference: PolicyModel | None = None) -> RewardSource:
        """The scorer in memory, by the code and with the numbers of a source that is loaded from the saved folder."""
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


@runtime_checkable
class ProgramSandbox(Sandbox, Protocol):
    """A sandbox that also knows languages, visits of one program with many inputs, and pairs of programs."""

    def require(self, languages: Collection[str]) -> Mapping[str, str]:
        """Versions of the tools of `languages`; raises `SandboxError` in one sentence where one is missing."""
        ...

    def run_each(self, jobs: Sequence[Job]) -> AsyncGenerator[RunResult, None]:
        """Results in order, each of a fresh process in one visit of one jail, as they come.

        All jobs share language, source and files; what has to be built is built once. Closing the generator early
        leaves the rest out.
        """
        ...

    async def run_pair(self, asking: Job, answering: Job) -> tuple[RunResult, RunResult]:
        """Run two programs at once: `asking` writes calls to descriptor 3, `answering` answers them in call mode.

        A frame is four bytes of length, big end first, and JSON: the calls of `Job.calls` one way, the answers of
        `RunResult.returns` the other. Neither program can see anything else of the other.
        """
        ...
