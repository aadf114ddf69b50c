"""One update: scored groups in, new weights and numbers out.

The trainer scores, splits, accumulates and steps; what the loss is, it leaves to a `PolicyOptimizer` or an `Objective`.
Guaranteed: the split into micro-batches changes the result by rounding only, since every denominator is counted over
the whole mini-batch first; the same seed, weights and groups give the same weights; a batch without a gradient moves
nothing, momentum included. Not guaranteed: equal bits across thread counts or packings.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from assay.config.training import OptimizerSettings
from assay.contracts.batch import ScoredGroup, UpdateReport
from assay.contracts.tensors import Forward, TrainBatch
from assay.errors import ConfigError, TrainingError
from assay.protocols import Critic, Example, ExampleTotals, Needs, Objective, PolicyOptimizer, Sidecar, StateHead
from assay.training.batch import TokenBatch, count_denominators, make_batch, plan_micro_batches, take_rows
from assay.training.forward import ForwardSettings, TokenRow, response_forward, supports_shared_prompt
from assay.training.ledger import Ledger, token_metrics
from assay.training.masters import Masters
from assay.training.memory import FreeMemory
from assay.training.ranks import Ranks
from assay.training.schedule import learning_rate_share

if TYPE_CHECKING:
    from assay.training.model import PolicyModel


class ExampleStream(NamedTuple):
    """A second stream of examples beside the batch of a step."""

    examples: Sequence[Example]
    objective: Objective
    weight: float = 1.0


class Trainer:
    """Owns the optimizer state of one policy; every call is synchronous and makes whole steps only."""

    def __init__(
        self,
        policy: PolicyModel,
        optimizer: PolicyOptimizer | None,
        settings: OptimizerSettings | None = None,
        *,
        objective: Objective | None = None,
        seed: int = 0,
        reference: PolicyModel | None = None,
        models: Mapping[str, PolicyModel] | None = None,
        total_steps: int | None = None,
        max_tokens: int | None = None,
        ranks: Ranks | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """A trainer of `policy`.

        Args:
            policy: the model that is trained, in place.
            optimizer: turns rewards into a loss; None where only `step_examples` is used.
            settings: step size, splitting, precision.
            objective: turns examples into a loss; its heads are trained and checkpointed with the policy.
            seed: decides the split into mini-batches, and the first weights that critics and heads draw.
            reference: frozen policy for `logp_ref`; None copies the policy where the optimizer needs one (with a LoRA
                adapter: the policy with the adapter off, without a copy).
            models: further frozen policies by the names in `needs.models`.
            total_steps: batches of the run, over which `linear` and `cosine` are stretched.
            max_tokens: L, the fixed length limit; None takes it from the rollouts' sampling.
            ranks: the processes that train together, each with this trainer; None trains in this one alone.
            clock: seconds, for the phase times.
        """
        self.policy = policy
        self.optimizer = optimizer
        self.objective = objective
        self.settings = settings or OptimizerSettings()
        self.version = 0
        """Batches that were consumed: the version of the weights that come after them."""
        self.updates = 0
        """Optimizer steps that were made."""
        self._seed = seed
        per_batch = self.settings.epochs * self.settings.updates_per_batch
        self._total_steps = None if total_steps is None else total_steps * per_batch
        self._max_tokens = max_tokens
        self._clock = clock
        self.ranks = ranks or Ranks()
        """The processes that train together."""
        self._divided = False
        self._memory = FreeMemory()
        self._sidecars = [sidecar for part in (optimizer, objective) if part is not None for sidecar in part.sidecars]
        self._critics = [sidecar for sidecar in self._sidecars if isinstance(sidecar, Critic)]
        self._heads = [sidecar for sidecar in self._sidecars if isinstance(sidecar, StateHead)]
        with torch.random.fork_rng(devices=[]):  # what a part draws for its first weights is of the run's seed
            torch.manual_seed(seed)
            for critic in (*self._critics, *self._heads):
                critic.bind(policy.model.get_output_embeddings().weight.shape[1])
        self._models = dict(models or {})
        if self.settings.lora is not None:
            from assay.training.lora import add_adapter

            add_adapter(policy, self.settings.lora, seed=seed)
        self._reference = reference
        self._remembered: dict[tuple[tuple[int, ...], tuple[int, ...]], Tensor] = {}
        """Prompt and response to (T,) log-probs under the reference, on the CPU."""
        self.reference_moved = False
        """Whether the reference is no longer the policy that the run started from, and belongs into checkpoints."""
        needs = optimizer.needs if optimizer is not None else Needs()
        if needs.values and not self._critics:
            raise ConfigError(
                "optimizer: its advantage needs a critic; it has no sidecar that gives values. Add the sidecar `critic`"
            )
        if missing := sorted(set(needs.models) - set(self._models)):
            raise ConfigError(
                f"optimizer: it needs the log-probs of a policy named {missing[0]!r}; given: "
                f"{', '.join(sorted(self._models)) or 'none'}. Name its folder in the table models"
            )
        if needs.logp_ref or (objective is not None and objective.needs.logp_ref):
            self._need_reference()
        if self.settings.gradient_checkpointing:
            _checkpoint_activations(policy.model)
        for model in (policy, self._reference, *self._models.values()):
            if model is not None:
                self.ranks.shard(model.model)
        self._divided = self.ranks.size > 1
        groups = _parameter_groups(policy.model, self._sidecars, self.settings)
        self.masters = Masters(groups)
        """Float32 copies of the weights that AdamW moves where the policy is narrower."""
        self._adamw = torch.optim.AdamW(
            groups,
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
    def sidecars(self) -> Sequence[Sidecar]:
        """The optimizer's stateful parts."""
        return self._sidecars

    @property
    def device(self) -> torch.device:
        """Where the policy lives."""
        return next(self.policy.model.parameters()).device

    @property
    def reference(self) -> PolicyModel | None:
        """The frozen policy behind `logp_ref`, or None (not needed, or the adapter switched off)."""
        return self._reference

    def step(self, groups: Sequence[ScoredGroup], *, also: Sequence[ExampleStream] = ()) -> UpdateReport:
        """Update on one batch and report; the version counts up also when nothing could be learned from it.

        Args:
            groups: the batch.
            also: examples whose losses are added, with their weights, to that of each optimizer step (PPO-ptx).

        Raises:
            TrainingError: the loss or the gradient is not finite; the weights are those before the failing step.
        """
        if self.optimizer is None:
            raise TrainingError("trainer: rewards need a policy optimizer; none was given. Pass one to Trainer(...)")
        optimizer, needs = self.optimizer, self.optimizer.needs
        started = self._clock()
        self.policy.announce_update()
        tokens = make_batch(groups, device=self.device, max_tokens=self._max_tokens, tokenizer=self.policy.tokenizer)
        if needs.logp_gen and tokens.batch.logp_gen is None and tokens.rows:
            raise TrainingError(
                "trainer: the optimizer needs the sampler's log-probs; these rollouts have none. "
                "Use an engine that reports them"
            )
        ledger = Ledger()
        ledger.facts["score_s"] = 0.0
        if tokens.tokens:
            tokens = self._score(tokens, needs)
            ledger.facts["score_s"] = self._clock() - started
            batch = optimizer.prepare(tokens.batch)
            ledger.facts.update(batch.metrics)
            generator = torch.Generator().manual_seed(_mix(self._seed, self.version))
            for _ in range(self.settings.epochs):
                for index in self._mini_batches(batch, generator):
                    self._policy_update(tokens.rows, batch, index, ledger, also)
            for sidecar in self._sidecars:
                ledger.facts.update(sidecar.after_step(batch, ledger.metrics()))
        self._count_batch(needs)
        ledger.facts.update(
            groups=len(groups),
            rows=len(tokens.rows),
            masked_rows=sum(value is None for group in groups for value in group.values),
            tokens=tokens.tokens,
            update_s=self._clock() - started,
        )
        return self._report(ledger)

    def step_examples(
        self, examples: Sequence[Example], objective: Objective | None = None, *, also: Sequence[ExampleStream] = ()
    ) -> UpdateReport:
        """Update on supervised or preference examples; the version counts up by one.

        By default this is one optimizer step and all examples make one loss; `epochs` and `updates_per_batch` split
        them as they split a batch of groups. A reference that moves does so after every `needs.reference_every` calls.

        Args:
            examples: the batch.
            objective: the loss; default the trainer's own.
            also: further streams whose losses are added, with their weights, to that of each optimizer step; their
                metrics are named `stream_...`.

        Raises:
            TrainingError: the loss or the gradient is not finite.
        """
        started = self._clock()
        self.policy.announce_update()
        objective = self._own(objective)
        ledger, tokens = Ledger(), 0.0
        generator = torch.Generator().manual_seed(_mix(self._seed, self.version))
        for _ in range(self.settings.epochs):
            for part in _parts(examples, self.settings.updates_per_batch, generator):
                tokens += self._example_pass(part, objective, ledger, weight=1.0).tokens
                self._stream_pass(also, ledger)
                self._apply(ledger)
        self._count_batch(objective.needs)
        ledger.facts.update(examples=len(examples), tokens=tokens, update_s=self._clock() - started)
        return self._report(ledger)

    def measure_examples(self, examples: Sequence[Example], objective: Objective | None = None) -> Mapping[str, float]:
        """Loss and metrics of all examples together under the current weights; nothing is learned and nothing moves."""
        ledger = Ledger()
        with torch.no_grad():
            totals = self._example_pass(examples, self._own(objective), ledger, weight=None)
        metrics = {**ledger.metrics(), "examples": totals.examples, "tokens": totals.tokens}
        return {name: value for name, value in metrics.items() if math.isfinite(value)}

    def remember_reference(self, examples: Sequence[Example]) -> None:
        """Score sequences under the reference now and never again, for examples that come back while it stands still.

        What is remembered costs 4 bytes per response token, until the reference moves.
        """
        self._need_reference()
        wanted = dict.fromkeys(ids for example in examples for ids in example.sequences if ids not in self._remembered)
        rows = [TokenRow(prompt, response) for prompt, response in wanted]
        for row, logp in zip(rows, self._logp(self._reference_model(), rows).cpu(), strict=True):
            self._remembered[row.prompt, row.response] = logp[: len(row.response)].clone()

    def _own(self, objective: Objective | None) -> Objective:
        found = self.objective if objective is None else objective
        if found is None:
            raise TrainingError("trainer: examples need an objective; none was given. Pass one to Trainer(...)")
        return found

    def _example_pass(
        self, examples: Sequence[Example], objective: Objective, ledger: Ledger, *, weight: float | None
    ) -> ExampleTotals:
        """Every slice of the examples forward, and backward with this weight; None only measures."""
        needs = objective.needs
        examples = objective.prepare(examples)
        rows = [TokenRow(prompt, response) for example in examples for prompt, response in example.sequences]
        owner = [index for index, example in enumerate(examples) for _ in example.sequences]
        reference = None
        if needs.logp_ref:
            self._need_reference()
            reference = self._reference_logp(rows)
        if needs.batch_logp:
            examples = objective.rescore(examples, self._logp(self.policy.model, rows), reference)
        totals = ExampleTotals(
            examples=sum(example.weight for example in examples), tokens=float(sum(len(row.response) for row in rows))
        )
        metrics: list[dict[str, float]] = []
        for members, counts in self.ranks.share(self._plan(rows, owner)) if rows else ():
            chosen = {owner[index] for index in members}
            inside = [index for index, example in enumerate(owner) if example in chosen]
            with self._training():
                forward = self._forward([rows[index] for index in inside], needs)
                ref = None if reference is None else reference[inside, : forward.logp.shape[1]]
                report = objective.loss([examples[index] for index in sorted(chosen)], forward, ref, totals=totals)
                if weight is not None:
                    loss = report.loss if weight == 1.0 else report.loss * weight
                    self._backward(loss, forward, counts=counts)
            if counts:
                metrics.append({**report.metrics, "loss": float(report.loss.detach())})
        for shares in self.ranks.shares(metrics):
            ledger.add(shares)
        return totals

    def _stream_pass(self, also: Sequence[ExampleStream], ledger: Ledger) -> None:
        """Every further stream forward and backward; its numbers are named `stream_...`."""
        for stream in also:
            inner = Ledger()
            self._example_pass(stream.examples, stream.objective, inner, weight=stream.weight)
            ledger.add({f"stream_{name}": value for name, value in inner.metrics().items()})

    def _count_batch(self, needs: Needs) -> None:
        """One more batch was consumed; a moving reference follows where its iteration ends."""
        self._memory.release()
        self.version += 1
        if needs.reference_every and self.version % needs.reference_every == 0:
            self.refresh_reference()
            if needs.reset_optimizer:
                self.reset_optimizer()

    def refresh_reference(self) -> None:
        """Move the reference to the current policy (an iteration's end, for moving references)."""
        if self._reference is None:
            self._reference = self._copy_of_policy()
        else:
            self._reference.model.load_state_dict(self.policy.model.state_dict())
        self._remembered.clear()
        self.reference_moved = True

    def reset_optimizer(self) -> None:
        """Forget AdamW's moments (methods whose iterations are separate problems)."""
        self._adamw.state.clear()

    # -- scoring ---------------------------------------------------------------------------------------------------

    def _score(self, tokens: TokenBatch, needs: Needs) -> TokenBatch:
        """What the optimizer must know of the policy and of frozen models before the first step on this batch."""
        batch, rows, extra = tokens.batch, tokens.rows, dict(tokens.batch.extra)
        if needs.logp_ref:
            batch = replace(batch, logp_ref=self._logp(self._reference_model(), rows))
        for name in needs.models:
            extra[f"logp_{name}"] = self._logp(self._models[name].model, rows)
        # With a single step the current log-probs, detached, are the old ones: no pass of their own.
        several = self.settings.epochs * self.settings.updates_per_batch > 1
        if needs.old_in_prepare or needs.values or needs.topk or (needs.logp_old and several):
            old = self._whole_forward(rows, needs)
            batch = replace(batch, logp_old=old.logp, values=old.values, topk_gen=old.topk)
            extra |= old.extra
        return replace(tokens, batch=replace(batch, extra=extra))

    def _whole_forward(self, rows: Sequence[TokenRow], needs: Needs) -> Forward:
        """A forward of all rows without a graph, slice by slice: log-probs, values, and the likeliest K tokens.

        Rollouts carry no top-k of the sampler; the policy that made them, recomputed, stands in for it. The ids are in
        `extra["topk_ids"]`.
        """
        shape = (len(rows), max((len(row.response) for row in rows), default=0))
        logp = torch.zeros(shape, device=self.device)
        values = torch.zeros_like(logp) if needs.values else None
        top = logp.new_zeros((*shape, needs.topk)) if needs.topk else None
        extra = {f"values_{critic.name}": torch.zeros_like(logp) for critic in self._critics[1:] if needs.values}
        if top is not None:
            extra["topk_ids"] = torch.zeros_like(top, dtype=torch.long)
        asked = Needs(values=needs.values, logits=needs.topk > 0)
        for members, counts in self.ranks.share(self._plan(rows, None)):
            with torch.no_grad():
                part = self._forward([rows[index] for index in members], asked)
            if not counts:
                continue
            width = part.logp.shape[1]
            logp[members, :width] = part.logp
            if values is not None and part.values is not None:
                values[members, :width] = part.values
            for name, value in part.extra.items():
                extra[name][members, :width] = value
            if top is not None and part.logits is not None:
                best = part.logits.log_softmax(dim=-1).topk(needs.topk, dim=-1)
                top[members, :width], extra["topk_ids"][members, :width] = best.values, best.indices
        self.ranks.add(logp, values, top, *extra.values())
        return Forward(logp, torch.zeros_like(logp), values=values, topk=top, extra=extra)

    def _logp(self, model: Any, rows: Sequence[TokenRow]) -> Tensor:
        """(N, T) log-probs of all rows under `model`, without a graph; None is the policy with its adapter off."""
        width = max((len(row.response) for row in rows), default=0)
        logp = torch.zeros(len(rows), width, device=self.device)
        target = self.policy.model if model is None else model
        adapter_off = target.disable_adapter() if model is None else nullcontext()
        with torch.no_grad(), adapter_off:
            for members, counts in self.ranks.share(self._plan(rows, None)):
                part = response_forward(target, [rows[index] for index in members], settings=self._forward_settings())
                if counts:
                    logp[members, : part.logp.shape[1]] = part.logp
        self.ranks.add(logp)
        return logp

    def _reference_logp(self, rows: Sequence[TokenRow]) -> Tensor:
        """(N, T) log-probs of all rows under the reference: what is remembered, and a forward of the others."""
        known = [self._remembered.get((row.prompt, row.response)) for row in rows]
        others = [index for index, logp in enumerate(known) if logp is None]
        if len(others) == len(rows):
            return self._logp(self._reference_model(), rows)
        found = torch.zeros(len(rows), max(len(row.response) for row in rows))
        for index, logp in enumerate(known):
            if logp is not None:
                found[index, : len(logp)] = logp
        found = found.to(self.device)
        if others:
            logp = self._logp(self._reference_model(), [rows[index] for index in others])
            found[others, : logp.shape[1]] = logp
        return found

    def _reference_model(self) -> Any:
        return None if self._reference is None else self._reference.model

    def _need_reference(self) -> None:
        if self._reference is None and not hasattr(self.policy.model, "disable_adapter"):
            self._reference = self._copy_of_policy()

    def _copy_of_policy(self) -> PolicyModel:
        if self._divided:
            raise TrainingError(
                "trainer: a reference can be copied only before the weights are divided among processes; use one"
            )
        return _frozen_copy(self.policy)

    # -- one optimizer step ----------------------------------------------------------------------------------------

    def _policy_update(
        self, rows: Sequence[TokenRow], batch: TrainBatch, index: Tensor, ledger: Ledger, also: Sequence[ExampleStream]
    ) -> None:
        assert self.optimizer is not None
        needs = self.optimizer.needs
        part = batch
        if len(index) < len(rows):
            part = batch.take(index)
            counts = count_denominators(part.mask, part.group, part.denominators.max_tokens)
            part = replace(part, denominators=counts)
        # `prepare` may have cleared rows: they cost no forward.
        marked = part.extra.get("nll_mask")  # texts set apart from their group, to be made likelier
        counted = part.mask if marked is None else part.mask + marked
        live = (counted.sum(dim=1) > 0).tolist()
        mine = [rows[at] if alive else _unscored(rows[at]) for at, alive in zip(index.tolist(), live, strict=True)]
        plan = self._plan(mine, part.group.tolist() if needs.complete_groups else None)
        if needs.batch_logp and len(plan) > 1:
            first = part.logp_old is not None and not ledger.started
            current = part.logp_old if first and part.logp_old is not None else self._logp(self.policy.model, mine)
            part = self.optimizer.rescore(part, current)
        metrics: list[dict[str, float]] = []
        for members, counts in self.ranks.share(plan):
            chosen = [mine[at] for at in members]
            width = max(len(row.response) for row in chosen)
            piece = take_rows(part, torch.tensor(members, device=self.device), width=width)
            with self._training():
                forward = self._forward(chosen, needs, topk_ids=piece.extra.get("topk_ids"))
                piece = self._complete(piece, forward, needs)
                report = self.optimizer.loss(piece, forward)
                self._backward(report.loss, forward, counts=counts)
            if counts:
                own = {**token_metrics(piece, forward), **report.metrics, "loss": float(report.loss.detach())}
                metrics.append(own)
        for shares in self.ranks.shares(metrics):
            ledger.add(shares)
        self._stream_pass(also, ledger)
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
        return replace(piece, advantage=advantage * weight, extra={**piece.extra, "importance": weight})

    def _apply(self, ledger: Ledger) -> None:
        """Clip, step, forget the gradients; a gradient that is zero everywhere makes no step."""
        parameters = [parameter for group in self._adamw.param_groups for parameter in group["params"]]
        limit = self.settings.max_grad_norm
        norm = self.ranks.clip(parameters, limit)
        if not math.isfinite(norm):
            self._adamw.zero_grad(set_to_none=True)
            raise TrainingError(
                f"trainer: the gradient is not finite at update {self.updates + 1}; norm {norm}. The weights are those "
                "before this step: lower the learning rate, or look for extreme rewards or log-probs"
            )
        ledger.add({"grad_norm": norm, "grad_clipped": float(limit is not None and norm > limit)})
        share = learning_rate_share(self.settings, self.updates, self._total_steps)
        for group in self._adamw.param_groups:
            group["lr"] = group["full_lr"] * share
        ledger.facts["lr"] = self.settings.learning_rate * share
        if norm > 0.0:
            self._adamw.step()
            self.masters.round()
            self.updates += 1
        ledger.close_step(moved=norm > 0.0)
        self._adamw.zero_grad(set_to_none=True)

    def _backward(self, loss: Tensor, forward: Forward, *, counts: bool) -> None:
        value = float(loss.detach())
        if not self.ranks.agreed(math.isfinite(value)):
            self._adamw.zero_grad(set_to_none=True)
            self.policy.model.zero_grad(set_to_none=True)
            raise TrainingError(
                f"trainer: the loss is not finite at update {self.updates + 1}; found {value}. The weights are those "
                "before this step: look for extreme rewards or log-probs"
            )
        loss = self.ranks.scale(loss, forward, counts=counts)
        if loss.requires_grad:
            loss.backward()
            self.masters.collect()

    # -- forwards and splits ---------------------------------------------------------------------------------------

    def _forward(self, rows: Sequence[TokenRow], needs: Needs, *, topk_ids: Tensor | None = None) -> Forward:
        return response_forward(
            self.policy.model,
            rows,
            settings=self._forward_settings(),
            entropy_grad=needs.entropy_grad,
            logits=needs.logits,
            topk_ids=topk_ids,
            critics={critic.name: critic.values for critic in self._critics} if needs.values else None,
            heads={head.name: head.read for head in self._heads} if needs.states else None,
            logp=needs.logp,
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
        everything = sum(len(row.prompt) + len(row.response) for row in rows)
        budget = self.ranks.budget(self.settings.micro_batch_tokens, everything)
        return plan_micro_batches(rows, budget, shared_prompt=packed, together=together)

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

    def _report(self, ledger: Ledger) -> UpdateReport:
        metrics = {name: value for name, value in ledger.metrics().items() if math.isfinite(value)}
        return UpdateReport(step=self.version, version=self.version, metrics=metrics)


def _parameter_groups(model: Any, sidecars: Iterable[Sidecar], settings: OptimizerSettings) -> list[dict[str, Any]]:
    """Matrices that decay, vectors that do not, and what the sidecars own."""
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    matrices = [parameter for parameter in trainable if parameter.ndim >= 2]
    vectors = [parameter for parameter in trainable if parameter.ndim < 2]
    rate = settings.learning_rate
    groups = [
        {"params": matrices, "weight_decay": settings.weight_decay, "full_lr": rate},
        {"params": vectors, "weight_decay": 0.0, "full_lr": rate},
    ]
    for sidecar in sidecars:
        own = getattr(sidecar, "learning_rate", None) or settings.sidecar_learning_rate or rate
        groups.append({"params": list(sidecar.parameters()), "weight_decay": 0.0, "full_lr": own})
    return [group for group in groups if group["params"]]


def _checkpoint_activations(model: Any) -> None:
    # transformers renamed the method in 5.2x; the old name warns where the new one exists.
    enable = getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable
    enable({"use_reentrant": False})


def _frozen_copy(policy: PolicyModel) -> PolicyModel:
    frozen = copy.copy(policy)
    frozen.model = copy.deepcopy(policy.model).eval().requires_grad_(False)
    return frozen


def _parts(examples: Sequence[Example], count: int, generator: torch.Generator) -> Iterator[list[Example]]:
    """The examples of each optimizer step: all of them, or `count` parts of them in a new order."""
    if count == 1:
        yield list(examples)
        return
    order = torch.randperm(len(examples), generator=generator)
    for part in order.tensor_split(max(1, min(count, len(examples)))):
        yield [examples[index] for index in part.tolist()]


def _unscored(row: TokenRow) -> TokenRow:
    return replace(row, scored=(False,) * len(row.response))


def _mix(seed: int, version: int) -> int:
    return (seed * 1_000_003 + version) % (2**63)
