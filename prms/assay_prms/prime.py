"""PRIME: an implicit process reward model that learns inside the loop from verified outcomes (arXiv 2502.01456).

Per batch: the rollouts were judged with the weights of before; the model learns one step on the groups that are about
to be trained on; the optimizer gets the scores of before learning (single pass). The score of a token is
beta (log phi - log ref); it is paid as step rewards while the verdict's value is 0, so that an outcome source beside it
keeps its own reward and the optimizer preset `prime` can centre both apart. Weights, moments and version are in the
run's checkpoint; the version is in every verdict's evidence.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from __future__ import annotations

import asyncio
import copy
import json
import logging
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from pydantic import Field

from assay.component import BuildContext, Options
from assay.contracts import Candidate, Evidence, Limits, Reward, Rollout, ScoredGroup, Span, StepScore, Verdict
from assay.errors import ConfigError, TrainingError
from assay.protocols import RewardSource
from assay.steps import SplitterOptions, step_spans
from assay_prms.places import places_of

if TYPE_CHECKING:
    import torch

    from assay.training.forward import TokenRow
    from assay.training.model import PolicyModel
    from assay.training.ranks import Ranks

log = logging.getLogger(__name__)

TENSORS = "prime.safetensors"
NUMBERS = "prime.json"


class PrimeOptions(Options):
    """The online process reward model."""

    model: str | None = None
    """Folder or hub id that it starts from, and its frozen reference; None is the policy as it was at the start."""
    beta: float = Field(default=0.05, gt=0)
    """Factor of the log-ratio."""
    learning_rate: float = Field(default=1e-6, gt=0)
    """Of AdamW, constant."""
    max_grad_norm: float = Field(default=10.0, gt=0)
    """Longest gradient."""
    grain: Literal["token", "step"] = "token"
    """Whether every token is paid, or every step at its end."""
    splitter: SplitterOptions = SplitterOptions()
    """How steps are found, where `grain = "step"`."""
    outcome: str | None = None
    """Name of the source whose value says whether a response is right; None is the first other one in `rewards`."""
    correct_from: float = 0.5
    """Outcome values from here on are right."""
    accuracy_low: float = Field(default=0.2, ge=0, le=1)
    """Groups with a smaller share of right responses are not learned from."""
    accuracy_high: float = Field(default=0.8, ge=0, le=1)
    """Groups with a larger share are not learned from."""
    token_budget: int = Field(default=4096, ge=1)
    """Tokens per forward."""
    max_batch: int = Field(default=64, ge=1)
    """Responses that are judged together."""
    timeout_s: float = Field(default=300.0, gt=0)
    """Seconds for one batch."""


class Prime:
    """The source; see the module's text."""

    def __init__(self, policy: PolicyModel, reference: PolicyModel, options: PrimeOptions) -> None:
        """Learn in `policy`, in place, against `reference`, which stays as it is; both have the policy's tokenizer."""
        from assay.training.encoder import TextEncoder
        from assay.training.ranks import Ranks

        self.policy = policy
        self.reference = reference
        self.options = options
        self.version = 0
        """Updates that were made."""
        self.encoder = TextEncoder(policy.tokenizer)
        self.ranks = Ranks()
        """The processes that hold the weights together."""
        self.adamw = self._new_adamw()
        self.limits = Limits(
            max_batch=options.max_batch, max_wait_s=0.02, concurrency=1, timeout_s=options.timeout_s,
            value_range=(-1e9, 1e9), memory_mib=None, deterministic=False,
        )  # fmt: skip
        self._busy = asyncio.Lock()
        self._warned = False

    def divide(self, ranks: Ranks) -> None:
        """Hold a part of both models only, and share the work of every call."""
        self.ranks = ranks
        for model in (self.policy.model, self.reference.model):
            ranks.shard(model)
        self.adamw = self._new_adamw()

    def _new_adamw(self) -> torch.optim.AdamW:
        import torch

        parameters = self.policy.model.parameters()
        return torch.optim.AdamW(parameters, lr=self.options.learning_rate, betas=(0.9, 0.95), weight_decay=0.0)

    # -- judging -------------------------------------------------------------------------------------------------------

    async def judge(self, batch: Sequence[Candidate]) -> Sequence[Verdict]:
        """Token or step rewards under the current weights; value 0."""
        async with self._busy:
            return await asyncio.to_thread(self._judge, batch)

    def _judge(self, batch: Sequence[Candidate]) -> list[Verdict]:
        found = [_nothing("no token was generated")] * len(batch)
        ready = [index for index, candidate in enumerate(batch) if candidate.rollout.turns[-1].token_ids]
        for index, candidate in enumerate(batch):
            if candidate.rollout.turns[-1].token_ids is None:
                reason = "the rollout has no token ids; use an engine that gives them"
                found[index] = Verdict.abstain(reason, fault="ours")
        rows = [row_of(batch[index].rollout) for index in ready]
        for index, q in zip(ready, self.token_values(rows), strict=True):
            found[index] = self._verdict(batch[index].rollout, q)
        return found

    def token_values(self, rows: Sequence[TokenRow]) -> list[list[float]]:
        """Per row beta x the running log-ratio of its response's tokens.

        Raises:
            ValueError: one of them is not finite.
        """
        import torch

        from assay.training.forward import response_forward
        from assay_prms.losses import implicit_values

        if not rows:
            return []
        values = torch.zeros(len(rows), max(len(row.response) for row in rows), device=self.policy.device)
        for members, counts in self.ranks.share(self._plan(rows)):
            chosen = [rows[index] for index in members]
            with torch.no_grad():
                own = response_forward(self.policy.model, chosen).logp
                frozen = response_forward(self.reference.model, chosen).logp
                q = implicit_values(own, frozen, torch.ones_like(own), self.options.beta)
            if counts:
                values[members, : q.shape[1]] = q
        self.ranks.add(values)
        found = [line[: len(row.response)] for line, row in zip(values.tolist(), rows, strict=True)]
        if not all(math.isfinite(value) for line in found for value in line):
            raise ValueError("prime: a log-ratio is not finite")
        return found

    def _verdict(self, rollout: Rollout, q: Sequence[float]) -> Verdict:
        turn = rollout.turns[-1]
        offsets = self._offsets(turn.text, turn.token_ids or ())
        if self.options.grain == "token":
            ends, spans = list(range(len(q))), [Span(start=a, end=b) for a, b in offsets]
        else:
            spans = list(step_spans(turn.text, self.options.splitter))
            places = places_of(offsets, spans)
            if not spans or len(set(places)) != len(spans):
                return _nothing(f"{len(spans)} steps end in {len(set(places))} tokens")
            ends = [*places[:-1], len(q) - 1]
        values = [q[end] - (q[ends[number - 1]] if number else 0.0) for number, end in enumerate(ends)]
        steps = tuple(StepScore(span=span, value=value) for span, value in zip(spans, values, strict=True))
        data: dict[str, Any] = {"version": self.version, "q": q[-1], "p": 1 / (1 + math.exp(-max(min(q[-1], 60), -60)))}
        note = Evidence(kind="reward_model", summary=f"prime, version {self.version}: q {q[-1]:.4f}", data=data)
        return Verdict.score(0.0, steps=steps, credit=True, evidence=note)

    def _offsets(self, text: str, ids: Sequence[int]) -> list[tuple[int, int]]:
        """The characters of each sampled token: from the tokenizer where it cuts the text the same way."""
        own = self.encoder.response(text)
        ids = tuple(ids)
        if own == ids[: len(own)] and len(ids) - len(own) <= 1:
            return list(self.encoder.offsets(text))[: len(ids)]
        found: list[tuple[int, int]] = []
        before = 0
        for count in range(1, len(ids) + 1):
            after = min(len(self.policy.tokenizer.decode(list(ids[:count]))), len(text))
            found.append((before, max(before, after)))
            before = max(before, after)
        return found

    # -- learning ------------------------------------------------------------------------------------------------------

    async def learn(self, groups: Sequence[ScoredGroup]) -> Mapping[str, float]:
        """One step of cross entropy with verified outcomes; groups outside the accuracy band are left out.

        Raises:
            TrainingError: the loss or its gradient is not finite; the weights are those of before.
        """
        async with self._busy:
            return await asyncio.to_thread(self._learn, groups)

    def _learn(self, groups: Sequence[ScoredGroup]) -> Mapping[str, float]:
        import torch

        from assay.training.forward import response_forward
        from assay_prms.losses import yes_or_no

        lessons, left = self.lessons(groups)
        self._watch(groups)
        metrics: dict[str, float] = {"prime/version": float(self.version), "prime/groups_left_out": float(left)}
        metrics["prime/responses"] = float(len(lessons))
        if not lessons:
            return metrics
        rows = [lesson.row for lesson in lessons]
        parts: list[dict[str, float]] = []
        for members, counts in self.ranks.share(self._plan(rows)):
            chosen = [rows[index] for index in members]
            with torch.no_grad():
                frozen = response_forward(self.reference.model, chosen).logp.sum(dim=1)
            forward = response_forward(self.policy.model, chosen)
            q = self.options.beta * (forward.logp.sum(dim=1) - frozen)
            labels = q.new_tensor([float(lessons[index].right) for index in members])
            loss = yes_or_no(q, labels).sum() / len(lessons)
            if not self.ranks.agreed(math.isfinite(float(loss.detach()))):
                self.adamw.zero_grad(set_to_none=True)
                raise TrainingError(f"prime: the loss is not finite at update {self.version + 1}; lower learning_rate")
            self.ranks.scale(loss, forward, counts=counts).backward()
            if counts:
                right = float(((q > 0) == (labels > 0.5)).sum())
                square = float(q.detach().square().sum())
                parts.append({"loss": float(loss.detach()), "right": right, "square": square})
        parts = self.ranks.shares(parts)
        loss_sum, right, square = (sum(part[name] for part in parts) for name in ("loss", "right", "square"))
        norm = self.ranks.clip(list(self.policy.model.parameters()), self.options.max_grad_norm)
        if not math.isfinite(norm):
            self.adamw.zero_grad(set_to_none=True)
            raise TrainingError(f"prime: the gradient is not finite at update {self.version + 1}; lower learning_rate")
        self.adamw.step()
        self.adamw.zero_grad(set_to_none=True)
        self.version += 1
        count = len(lessons)
        return metrics | {
            "prime/loss": loss_sum,
            "prime/accuracy": right / count,
            "prime/good_share": sum(lesson.right for lesson in lessons) / count,
            "prime/q_spread": math.sqrt(square / count),
            "prime/grad_norm": norm,
            "prime/version": float(self.version),
        }

    def lessons(self, groups: Sequence[ScoredGroup]) -> tuple[list[Lesson], int]:
        """Responses with a verified outcome, of groups in the accuracy band, and how many groups were left out."""
        found: list[Lesson] = []
        left = 0
        for group in groups:
            mine: list[Lesson] = []
            for rollout, reward in zip(group.rollouts, group.rewards, strict=True):
                outcome = self._outcome(reward)
                if outcome is not None and rollout.turns[-1].token_ids:
                    mine.append(Lesson(row_of(rollout), outcome >= self.options.correct_from))
            share = sum(lesson.right for lesson in mine) / len(mine) if mine else -1.0
            if self.options.accuracy_low <= share <= self.options.accuracy_high:
                found.extend(mine)
            else:
                left += 1
        return found, left

    def _outcome(self, reward: Reward) -> float | None:
        """What the verified source said; None where it abstained or failed, which is nothing to learn from."""
        for part in reward.parts:
            if self._verifies(part.source):
                return part.value if part.status == "scored" else None
        return None

    def _verifies(self, source: str) -> bool:
        """Whether the source of that name says which responses are right."""
        wanted = self.options.outcome
        return source == wanted or (wanted is None and source.partition("#")[0] != "prime")

    def _watch(self, groups: Sequence[ScoredGroup]) -> None:
        """One warning where no source of a batch says which responses are right, so that nothing can be learned."""
        names = dict.fromkeys(part.source for group in groups for reward in group.rewards for part in reward.parts)
        if self._warned or not names or any(map(self._verifies, names)):
            return
        self._warned = True
        wanted = (
            "another source beside it" if self.options.outcome is None else f"a source named {self.options.outcome!r}"
        )
        log.warning(
            "prime: it learns from the verdicts of %s, and the rewards of this batch have none; found %s. Name one of "
            "rewards by its option outcome",
            wanted, ", ".join(names),
        )  # fmt: skip

    def _plan(self, rows: Sequence[TokenRow]) -> list[list[int]]:
        from assay.training.batch import plan_micro_batches
        from assay.training.forward import supports_shared_prompt

        if not rows:
            return []
        everything = sum(len(row.prompt) + len(row.response) for row in rows)
        budget = self.ranks.budget(self.options.token_budget, everything)
        return plan_micro_batches(rows, budget, shared_prompt=supports_shared_prompt(self.policy.model))

    # -- state ---------------------------------------------------------------------------------------------------------

    def save_state(self, folder: Path) -> None:
        """Write weights, moments and version into `folder`."""
        from safetensors.torch import save_file

        tensors = {f"model/{name}": value for name, value in self._named()}
        for index, state in self.adamw.state_dict()["state"].items():
            tensors |= {f"adamw/{index}/{name}": value for name, value in state.items()}
        whole = self.ranks.gathered(tensors)
        if self.ranks.rank > 0:
            return
        save_file(whole, folder / TENSORS)
        (folder / NUMBERS).write_text(json.dumps({"version": self.version}), encoding="utf-8")

    def load_state(self, folder: Path) -> None:
        """The inverse of `save_state`.

        Raises:
            TrainingError: the files are missing or of another model.
        """
        import torch
        from safetensors.torch import load_file

        try:
            tensors = load_file(folder / TENSORS)
            version = int(json.loads((folder / NUMBERS).read_text(encoding="utf-8"))["version"])
            with torch.no_grad():
                for name, value in self._named():
                    self.ranks.fill(value, tensors[f"model/{name}"])
        except (OSError, KeyError, ValueError, RuntimeError) as error:
            raise TrainingError(f"{folder}: the state of the source prime cannot be read: {error}") from error
        moved = list(self.policy.model.parameters())
        state: dict[int, dict[str, Any]] = {}
        for name, value in tensors.items():
            kind, _, rest = name.partition("/")
            if kind == "adamw":
                index, _, key = rest.partition("/")
                state.setdefault(int(index), {})[key] = self.ranks.like(moved[int(index)], value)
        self.adamw.load_state_dict({"state": state, "param_groups": self.adamw.state_dict()["param_groups"]})
        self.version = version

    def _named(self) -> list[tuple[str, torch.nn.Parameter]]:
        return list(self.policy.model.named_parameters())

    async def aclose(self) -> None:
        """Nothing to close."""


def _nothing(why: str) -> Verdict:
    """No process reward, which is worth 0 beside the outcome; never the lowest number of an unbounded range."""
    return Verdict.score(0.0, evidence=Evidence(kind="reward_model", summary=f"prime: no step rewards, {why}"))


class Lesson(NamedTuple):
    """One response to learn from."""

    row: TokenRow
    right: bool


def row_of(rollout: Rollout) -> TokenRow:
    """The last turn as response, everything before it as prompt, in the ids that were sampled.

    Raises:
        TrainingError: there are none.
    """
    from assay.training.forward import TokenRow

    if rollout.prompt_ids is None or any(turn.token_ids is None for turn in rollout.turns):
        raise TrainingError(f"prime: rollout {rollout.id!r} has no token ids; use an engine that gives them")
    before = (token for turn in rollout.turns[:-1] for token in turn.token_ids or ())
    return TokenRow((*rollout.prompt_ids, *before), rollout.turns[-1].token_ids or ())


def build_prime(options: PrimeOptions, context: BuildContext) -> RewardSource:
    """The source; raises `ConfigError` where there is no model to start from, or its tokenizer is another one."""
    try:
        from assay.training.encoder import TextEncoder
        from assay.training.forward import causal_model
        from assay.training.model import load_policy
    except ImportError as error:
        raise ConfigError(
            f"prime: torch and transformers are missing ({error}); install them with: "
            "python -m pip install 'assay[train]'"
        ) from error
    if options.accuracy_low > options.accuracy_high:
        raise ConfigError(
            f"prime: accuracy_low {options.accuracy_low} is above accuracy_high {options.accuracy_high}; swap them"
        )
    start = context.policy
    if options.model is not None:
        start = load_policy(
            options.model, device=context.device, cache_dir=context.cache_dir, base_dir=context.base_dir
        )
        if context.policy is not None:
            own, other = TextEncoder(start.tokenizer).fingerprint, TextEncoder(context.policy.tokenizer).fingerprint
            if own != other:
                raise ConfigError(
                    f"prime: {options.model!r} has another tokenizer than the policy, whose tokens it is to judge; "
                    "name a model with the policy's tokenizer"
                )
    if start is None:
        raise ConfigError("prime: there is no policy to start from; set its option model, or use it in a training run")

    def clone() -> PolicyModel:
        made = copy.copy(start)
        # The lean layers that training installs are kept by the copy; an adapter is not part of the start.
        made.model = copy.deepcopy(causal_model(start.model)).float().eval()
        return made

    learner, reference = clone(), clone()
    learner.model.requires_grad_(True)
    reference.model.requires_grad_(False)
    return Prime(learner, reference, options)
