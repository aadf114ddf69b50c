"""One update: scored groups in, new weights and numbers out.

The trainer scores, splits, accumulates and steps; what the loss is, it leaves to a `PolicyOptimizer` or an `Objective`.
Guaranteed: the split into micro-batches changes the result by rounding only, since every denominator is counted over
the whole mini-batch first; the same seed, weights and groups give the same weights; a batch without a gradient moves
nothing, momentum included. Not guaranteed: equal bits across thread counts or packings.

Metrics of micro-batches are joined by name: `*_max` and `*_min` by maximum and minimum, `*_sum` and `*_count` by sum,
all others by the mean over the mini-batch's tokens.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from assay.config.training import OptimizerSettings
from assay.contracts.batch import ScoredGroup, UpdateReport
from assay.contracts.tensors import Forward, TrainBatch
from assay.errors import ConfigError, TrainingError
from assay.protocols import Example, Needs, Objective, PolicyOptimizer
from assay.training.batch import TokenBatch, count_denominators, make_batch, plan_micro_batches, take_rows
from assay.training.forward import ForwardSettings, TokenRow, response_forward, supports_shared_prompt
from assay.training.schedule import learning_rate_share

if TYPE_CHECKING:
    from torch.nn import Parameter

    from assay.training.model import PolicyModel


class Trainer:
    """Owns the optimizer state of one policy; every call is synchronous and makes whole steps only."""

    def __init__(
        self,
        policy: PolicyModel,
        optimizer: PolicyOptimizer | None,
        settings: OptimizerSettings | None = None,
        *,
        seed: int = 0,
        reference: PolicyModel | None = None,
        total_steps: int | None = None,
        max_tokens: int | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """A trainer of `policy`.

        Args:
            policy: the model that is trained, in place.
            optimizer: turns rewards into a loss; None where only `step_examples` is used.
            settings: step size, splitting, precision.
            seed: decides the split into mini-batches.
            reference: frozen policy for `logp_ref`; None copies the policy where the optimizer needs one (with a LoRA
                adapter: the policy with the adapter off, without a copy).
            total_steps: optimizer steps that `linear` and `cosine` are stretched over.
            max_tokens: L, the fixed length limit; None takes it from the rollouts' sampling.
            clock: seconds, for the phase times.
        """
        self.policy = policy
        self.optimizer = optimizer
        self.settings = settings or OptimizerSettings()
        self.version = 0
        """Batches that were consumed: the version of the weights that come after them."""
        self.updates = 0
        """Optimizer steps that were made."""
        self._seed = seed
        self._total_steps = total_steps
        self._max_tokens = max_tokens
        self._clock = clock
        self._sidecars = list(optimizer.sidecars) if optimizer is not None else []
        self._critic = next((sidecar for sidecar in self._sidecars if hasattr(sidecar, "values")), None)
        if self._critic is not None and hasattr(self._critic, "attach"):
            head = policy.model.get_output_embeddings()
            self._critic.attach(head.weight.shape[1], head.weight.device)  # pyright: ignore[reportAttributeAccessIssue]  # looked for above
        if self.settings.lora is not None:
            from assay.training.lora import add_adapter

            add_adapter(policy, self.settings.lora, seed=seed)
        self._reference = reference
        needs = optimizer.needs if optimizer is not None else Needs()
        if needs.values and self._critic is None:
            raise ConfigError(
                "optimizer: the advantage needs a critic; no sidecar of it gives values. Add the sidecar `critic`"
            )
        if needs.logp_ref:
            self._need_reference()
        if self.settings.gradient_checkpointing:
            _checkpoint_activations(policy.model)
        self._groups = _parameter_groups(policy.model, self._sidecars, self.settings)
        self._adamw = torch.optim.AdamW(
            self._groups,
            lr=self.settings.learning_rate,
            betas=self.settings.betas,
            eps=self.settings.adam_epsilon,
            fused=True,
        )

    @property
    def adamw(self) -> torch.optim.AdamW:
        """The torch optimizer, for checkpoints."""
        return self._adamw

    @property
    def device(self) -> torch.device:
        """Where the policy lives."""
        return next(self.policy.model.parameters()).device

    @property
    def reference(self) -> PolicyModel | None:
        """The frozen policy behind `logp_ref`, or None (not needed, or the adapter switched off)."""
        return self._reference

    def step(self, groups: Sequence[ScoredGroup]) -> UpdateReport:
        """Update on one batch and report; the version counts up also when nothing could be learned from it.

        Raises:
            TrainingError: the loss or the gradient is not finite; the weights are those before the failing step.
        """
        if self.optimizer is None:
            raise TrainingError("trainer: rewards need a policy optimizer; none was given. Pass one to Trainer(...)")
        optimizer, needs = self.optimizer, self.optimizer.needs
        started = self._clock()
        tokens = make_batch(groups, device=self.device, max_tokens=self._max_tokens, tokenizer=self.policy.tokenizer)
        masked = sum(value is None for group in groups for value in group.values)
        ledger = _Ledger()
        ledger.totals.update(groups=len(groups), rows=len(tokens.rows), masked_rows=masked, tokens=tokens.tokens)
        parts = self.settings.epochs * self.settings.updates_per_batch
        if needs.logp_gen and tokens.batch.logp_gen is None and tokens.rows:
            raise TrainingError(
                "trainer: the optimizer needs the sampler's log-probs; these rollouts have none. "
                "Use an engine that reports them"
            )
        if tokens.tokens:
            tokens = self._score(tokens, needs, parts)
            scored = self._clock()
            ledger.totals["score_s"] = scored - started
            batch = optimizer.prepare(tokens.batch)
            generator = torch.Generator().manual_seed(_mix(self._seed, self.version))
            for _ in range(self.settings.epochs):
                for index in self._mini_batches(batch, generator):
                    self._policy_update(tokens, batch, index, ledger)
            for sidecar in self._sidecars:
                ledger.totals.update(sidecar.after_step(batch, ledger.metrics()))
        self.version += 1
        ledger.totals["update_s"] = self._clock() - started
        return self._report(ledger)

    def step_examples(self, examples: Sequence[Example], objective: Objective) -> UpdateReport:
        """One optimizer step on supervised or preference examples; all of them make one loss.

        Raises:
            TrainingError: the loss or the gradient is not finite.
        """
        started = self._clock()
        ledger = _Ledger()
        rows = [TokenRow(prompt, response) for example in examples for prompt, response in example.sequences]
        owner = [index for index, example in enumerate(examples) for _ in example.sequences]
        reference = None
        if objective.needs.logp_ref:
            self._need_reference()
            reference = self._score_reference(rows)
        plan = self._plan(rows, owner)
        total = _share(objective, examples)
        for members in plan:
            chosen = sorted({owner[index] for index in members})
            part = [examples[index] for index in chosen]
            inside = [index for index, example in enumerate(owner) if example in set(chosen)]
            with self._training():
                forward = self._forward([rows[index] for index in inside], objective.needs)
                ref = None
                if reference is not None:
                    ref = reference[inside, : forward.logp.shape[1]]
                report = objective.loss(part, forward, ref)
                weight = _share(objective, part) / total if total else 0.0
                self._backward(report.loss * weight)
            ledger.add(report.metrics, weight, float(report.loss.detach()) * weight)
        self._apply(ledger)
        self.version += 1
        ledger.totals.update(examples=len(examples), tokens=sum(len(row.response) for row in rows))
        ledger.totals["update_s"] = self._clock() - started
        return self._report(ledger)

    def refresh_reference(self) -> None:
        """Move the reference to the current policy (an iteration's end, for moving references)."""
        if self._reference is None:
            self._reference = _frozen_copy(self.policy)
        else:
            self._reference.model.load_state_dict(self.policy.model.state_dict())

    def reset_optimizer(self) -> None:
        """Forget AdamW's moments (methods whose iterations are separate problems)."""
        self._adamw.state.clear()

    # -- scoring ---------------------------------------------------------------------------------------------------

    def _score(self, tokens: TokenBatch, needs: Needs, parts: int) -> TokenBatch:
        """What the optimizer must know of the policy before the first step on this batch."""
        batch = tokens.batch
        if needs.logp_ref:
            batch = replace(batch, logp_ref=self._score_reference(tokens.rows))
        # With a single step the current log-probs, detached, are the old ones: no pass of their own.
        wanted = needs.batch_logp or needs.values or needs.topk > 0 or (needs.logp_old and parts > 1)
        if wanted:
            logp, values = torch.zeros_like(batch.mask), torch.zeros_like(batch.mask)
            top = batch.mask.new_zeros((*batch.mask.shape, needs.topk)) if needs.topk else None
            top_ids = torch.zeros_like(top, dtype=torch.long) if top is not None else None
            for members in self._plan(tokens.rows, None):
                with torch.no_grad():
                    forward = self._forward(
                        [tokens.rows[index] for index in members], Needs(values=needs.values, logits=needs.topk > 0)
                    )
                width = forward.logp.shape[1]
                logp[members, :width] = forward.logp
                if forward.values is not None:
                    values[members, :width] = forward.values
                if top is not None and top_ids is not None and forward.logits is not None:
                    best = forward.logits.log_softmax(dim=-1).topk(needs.topk, dim=-1)
                    top[members, :width], top_ids[members, :width] = best.values, best.indices
            batch = replace(batch, logp_old=logp, values=values if needs.values else batch.values)
            if top is not None and top_ids is not None:
                batch = replace(batch, topk_gen=top, extra={**batch.extra, "topk_ids": top_ids})
        return replace(tokens, batch=batch)

    def _score_reference(self, rows: Sequence[TokenRow]) -> Tensor:
        """(N, T) log-probs of the reference."""
        width = max((len(row.response) for row in rows), default=0)
        logp = torch.zeros(len(rows), width, device=self.device)
        model = self.policy.model if self._reference is None else self._reference.model
        adapter_off = model.disable_adapter() if self._reference is None else nullcontext()
        with torch.no_grad(), adapter_off:
            for members in self._plan(rows, None):
                part = response_forward(model, [rows[index] for index in members], settings=self._forward_settings())
                logp[members, : part.logp.shape[1]] = part.logp
        return logp

    def _need_reference(self) -> None:
        if self._reference is None and not hasattr(self.policy.model, "disable_adapter"):
            self._reference = _frozen_copy(self.policy)

    # -- one optimizer step ----------------------------------------------------------------------------------------

    def _policy_update(self, tokens: TokenBatch, batch: TrainBatch, index: Tensor, ledger: _Ledger) -> None:
        assert self.optimizer is not None
        needs = self.optimizer.needs
        part = take_rows(batch, index)
        part = replace(part, denominators=count_denominators(part.mask, part.group, part.denominators.max_tokens))
        rows = [tokens.rows[position] for position in index.tolist()]
        together = part.group.tolist() if needs.complete_groups else None
        total = part.denominators.tokens
        for members in self._plan(rows, together):
            chosen = [rows[position] for position in members]
            width = max(len(row.response) for row in chosen)
            piece = take_rows(part, torch.tensor(members, device=self.device), width=width)
            with self._training():
                forward = self._forward(chosen, needs, topk_ids=piece.extra.get("topk_ids"))
                piece = self._complete(piece, forward, needs)
                report = self.optimizer.loss(piece, forward)
                self._backward(report.loss)
            share = float(piece.mask.sum()) / total if total else 0.0
            ledger.add(report.metrics, share, float(report.loss.detach()))
            ledger.add(_token_metrics(piece, forward), share, 0.0)
        self._apply(ledger)

    def _complete(self, piece: TrainBatch, forward: Forward, needs: Needs) -> TrainBatch:
        """Old log-probs where no pass was made for them, and the correction for a sampler that differs."""
        if piece.logp_old is None and (needs.logp_old or self.settings.importance_correction != "none"):
            piece = replace(piece, logp_old=forward.logp.detach())
        if self.settings.importance_correction == "none" or piece.advantage is None:
            return piece
        if piece.logp_gen is None or piece.logp_old is None:
            raise TrainingError(
                "optimizer.importance_correction: the sampler's log-probs are missing. "
                'Use an engine that reports them, or importance_correction = "none"'
            )
        difference = (piece.logp_old - piece.logp_gen) * piece.mask
        if self.settings.importance_correction == "sequence":
            difference = difference.sum(dim=1, keepdim=True).expand_as(difference)
        weight = difference.clamp(-20, 20).exp().clamp(max=self.settings.importance_cap)
        advantage = piece.advantage if piece.advantage.ndim == 2 else piece.advantage[:, None]
        return replace(piece, advantage=advantage * weight)

    def _apply(self, ledger: _Ledger) -> None:
        """Clip, step, forget the gradients; a gradient that is zero everywhere makes no step."""
        parameters = [parameter for group in self._adamw.param_groups for parameter in group["params"]]
        limit = self.settings.max_grad_norm
        norm = float(torch.nn.utils.clip_grad_norm_(parameters, math.inf if limit is None else limit))
        if not math.isfinite(norm):
            self._adamw.zero_grad(set_to_none=True)
            raise TrainingError(
                f"trainer: the gradient is not finite at update {self.updates + 1}; norm {norm}. The weights are those "
                "before this step: lower the learning rate, or look for extreme rewards or log-probs"
            )
        ledger.totals["grad_norm"] = norm
        ledger.totals["grad_clipped"] = float(limit is not None and norm > limit)
        share = learning_rate_share(self.settings, self.updates, self._total_steps)
        for group in self._adamw.param_groups:
            group["lr"] = group["full_lr"] * share
        ledger.totals["lr"] = self.settings.learning_rate * share
        if norm > 0.0:
            self._adamw.step()
            self.updates += 1
            ledger.count("updates")
        else:
            ledger.count("skipped_updates")
        self._adamw.zero_grad(set_to_none=True)

    def _backward(self, loss: Tensor) -> None:
        value = float(loss.detach())
        if not math.isfinite(value):
            self._adamw.zero_grad(set_to_none=True)
            raise TrainingError(
                f"trainer: the loss is not finite at update {self.updates + 1}; found {value}. The weights are those "
                "before this step: look for extreme rewards or log-probs"
            )
        if loss.requires_grad:
            loss.backward()

    # -- forwards and splits ---------------------------------------------------------------------------------------

    def _forward(self, rows: Sequence[TokenRow], needs: Needs, *, topk_ids: Tensor | None = None) -> Forward:
        critic = getattr(self._critic, "values", None) if needs.values else None
        return response_forward(
            self.policy.model,
            rows,
            settings=self._forward_settings(),
            entropy_grad=needs.entropy_grad,
            logits=needs.logits,
            topk_ids=topk_ids,
            critic=critic,
        )

    def _forward_settings(self) -> ForwardSettings:
        return ForwardSettings(
            shared_prompt=self.settings.packing != "padded",
            float32_head=self.settings.float32_head,
            chunk_tokens=self.settings.head_chunk_tokens,
            autocast=torch.bfloat16 if self.settings.compute_dtype == "bfloat16" else None,
        )

    def _plan(self, rows: Sequence[TokenRow], together: Sequence[int] | None) -> list[list[int]]:
        packed = self.settings.packing != "padded" and supports_shared_prompt(self.policy.model)
        if self.settings.packing == "shared_prompt" and not packed:
            raise ConfigError(
                f"optimizer.packing: {self.policy.name!r} does not give the same result with shared prompts; "
                'use packing = "auto" or "padded"'
            )
        return plan_micro_batches(rows, self.settings.micro_batch_tokens, shared_prompt=packed, together=together)

    def _mini_batches(self, batch: TrainBatch, generator: torch.Generator) -> Iterator[Tensor]:
        """Row indices of each optimizer step: whole groups, in a new order per pass where there is more than one."""
        count = self.settings.updates_per_batch
        everything = torch.arange(len(batch.group), device=batch.group.device)
        if count == 1:
            yield everything
            return
        groups = batch.group.unique()
        order = groups[torch.randperm(len(groups), generator=generator).to(groups.device)]
        for part in order.tensor_split(min(count, len(order))):
            yield everything[torch.isin(batch.group, part)]

    @contextmanager
    def _training(self) -> Generator[None]:
        """Train mode only where gradient checkpointing asks for it; dropout stays off, since ratios compare passes."""
        model = self.policy.model
        if not self.settings.gradient_checkpointing:
            yield
            return
        model.train()
        for module in model.modules():
            if isinstance(module, torch.nn.Dropout):
                module.eval()
            if getattr(module, "attention_dropout", 0.0):
                setattr(module, "attention_dropout", 0.0)  # noqa: B010  # a plain attribute, which stubs call a tensor
        try:
            yield
        finally:
            model.eval()

    def _report(self, ledger: _Ledger) -> UpdateReport:
        metrics = {name: value for name, value in ledger.metrics().items() if math.isfinite(value)}
        return UpdateReport(step=self.version, version=self.version, metrics=metrics)


class _Ledger:
    """Metrics of one batch: joined over micro-batches, averaged over its optimizer steps."""

    def __init__(self) -> None:
        self.totals: dict[str, float] = {}
        self._sums: dict[str, float] = {}
        self._weights: dict[str, float] = {}
        self._loss = 0.0
        self._has_loss = False

    def add(self, metrics: Mapping[str, float], share: float, loss: float) -> None:
        """Add one micro-batch that holds `share` of its mini-batch's tokens and `loss` of its loss."""
        self._loss += loss
        self._has_loss = True
        for name, value in metrics.items():
            if name.endswith("_max"):
                self.totals[name] = max(value, self.totals.get(name, value))
            elif name.endswith("_min"):
                self.totals[name] = min(value, self.totals.get(name, value))
            elif name.endswith(("_sum", "_count")):
                self.totals[name] = self.totals.get(name, 0.0) + value
            else:
                self._sums[name] = self._sums.get(name, 0.0) + value * share
                self._weights[name] = self._weights.get(name, 0.0) + share

    def count(self, name: str) -> None:
        """Count one event."""
        self.totals[name] = self.totals.get(name, 0.0) + 1

    def metrics(self) -> dict[str, float]:
        """Everything so far; the loss is the mean over optimizer steps."""
        means = {name: value / self._weights[name] for name, value in self._sums.items() if self._weights[name]}
        steps = self.totals.get("updates", 0.0) + self.totals.get("skipped_updates", 0.0)
        loss = {"loss": self._loss / max(steps, 1.0)} if self._has_loss else {}
        return {**self.totals, **means, **loss}


def _token_metrics(piece: TrainBatch, forward: Forward) -> dict[str, float]:
    """Entropy, length and the distance of sampler and trainer, over the rows of a micro-batch."""
    with torch.no_grad():
        count = float(piece.mask.sum())
        if not count:
            return {}
        metrics = {"entropy": float((forward.entropy * piece.mask).sum()) / count}
        if piece.logp_gen is not None:
            old = forward.logp if piece.logp_old is None else piece.logp_old
            gap = ((old - piece.logp_gen) * piece.mask).abs()
            metrics["logp_diff_mean"] = float(gap.sum()) / count
            metrics["logp_diff_max"] = float(gap.max())
        return metrics


def _parameter_groups(model: Any, sidecars: Iterable[Any], settings: OptimizerSettings) -> list[dict[str, Any]]:
    """Matrices that decay, vectors that do not, and what the sidecars own."""
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    matrices = [parameter for parameter in trainable if parameter.ndim >= 2]
    vectors = [parameter for parameter in trainable if parameter.ndim < 2]
    own: list[Parameter] = [parameter for sidecar in sidecars for parameter in sidecar.parameters()]
    rate = settings.learning_rate
    side_rate = rate if settings.sidecar_learning_rate is None else settings.sidecar_learning_rate
    groups = [
        {"params": matrices, "weight_decay": settings.weight_decay, "full_lr": rate},
        {"params": vectors, "weight_decay": 0.0, "full_lr": rate},
        {"params": own, "weight_decay": 0.0, "full_lr": side_rate},
    ]
    return [group for group in groups if group["params"]]


def _checkpoint_activations(model: Any) -> None:
    # transformers renamed the method in 5.2x; the old name warns where the new one exists.
    enable = getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable
    enable({"use_reentrant": False})


def _frozen_copy(policy: PolicyModel) -> PolicyModel:
    frozen = copy.copy(policy)
    frozen.model = copy.deepcopy(policy.model).eval().requires_grad_(False)
    return frozen


def _share(objective: Objective, examples: Sequence[Example]) -> float:
    """What `examples` count for in the loss of a larger batch: their total weight, or what the objective says."""
    own = getattr(objective, "share", None)
    return float(own(examples)) if own is not None else sum(example.weight for example in examples)


def _mix(seed: int, version: int) -> int:
    return (seed * 1_000_003 + version) % (2**63)
