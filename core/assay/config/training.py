"""How an update is computed: the trainer's own keys of the `optimizer` and the `training` table.

The `optimizer` table mixes them with `use` and the component's options, as a person thinks of both as one thing;
`split_optimizer_table` takes them apart. Nothing here imports torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from assay.errors import ConfigError


class LoraSettings(BaseModel):
    """A low-rank adapter in place of full training; the reference is then the same model with the adapter off."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True)

    rank: int = Field(default=16, ge=1)
    """Rank of the update of each adapted matrix."""
    alpha: float = Field(default=32.0, gt=0)
    """The update is scaled by alpha / rank."""
    targets: tuple[str, ...] | Literal["all-linear"] = "all-linear"
    """Names of the adapted modules; `all-linear` adapts every linear layer but the output head."""


class UpdateSettings(BaseModel):
    """What every kind of training has: step size, precision, memory."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True)

    learning_rate: float = Field(default=1e-6, ge=0)
    """Step size of AdamW after the warm-up."""
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """What the learning rate does after the warm-up; `linear` and `cosine` end at `final_lr_share` of it."""
    warmup_steps: int = Field(default=0, ge=0)
    """Optimizer steps over which the learning rate rises linearly from 0."""
    total_steps: int | None = Field(default=None, ge=1)
    """Optimizer steps that the schedule is stretched over; None takes them from the run's number of steps."""
    final_lr_share: float = Field(default=0.0, ge=0, le=1)
    """Share of the learning rate that `linear` and `cosine` end at."""
    betas: tuple[float, float] = (0.9, 0.999)
    """Decay of AdamW's two moments; each at least 0 and below 1."""
    adam_epsilon: float = Field(default=1e-8, gt=0)
    """Added to the root of AdamW's second moment."""
    weight_decay: float = Field(default=0.0, ge=0)
    """Decoupled decay of matrices; vectors (norms, biases) never decay."""
    max_grad_norm: float | None = Field(default=1.0, gt=0)
    """Gradients with a larger global L2 norm are scaled down to it; None never clips."""
    sidecar_learning_rate: float | None = Field(default=None, ge=0)
    """Step size of parameters that the optimizer component owns (a critic's head); None takes `learning_rate`."""
    micro_batch_tokens: int = Field(default=2048, ge=1)
    """Tokens whose activations exist at the same time, shared prompts counted once; changes memory, not results."""
    packing: Literal["auto", "shared_prompt", "padded"] = "auto"
    """How rows are put together: `auto` computes a shared prompt once where the model gives the same result."""
    float32_head: bool = False
    """Multiply the output head in float32 even where the weights are narrower."""
    head_chunk_tokens: int = Field(default=128, ge=1)
    """Tokens whose logits exist at the same time."""
    compute_dtype: Literal["model", "bfloat16"] = "model"
    """Type of the body's matrix products; weights, moments and log-probs keep their own."""
    gradient_checkpointing: bool = False
    """Keep only each layer's input and compute the layer again in the backward pass: less memory, a third more time."""
    lora: LoraSettings | None = None
    """Train a low-rank adapter instead of all weights (needs `peft`)."""

    @model_validator(mode="after")
    def _decays(self) -> Self:
        if not all(0 <= beta < 1 for beta in self.betas):
            raise ValueError(f"betas must be at least 0 and below 1; found {self.betas[0]} and {self.betas[1]}")
        return self


class OptimizerSettings(UpdateSettings):
    """The trainer's settings: step size, batch splitting, precision, memory."""

    epochs: int = Field(default=1, ge=1)
    """Passes over each batch."""
    updates_per_batch: int = Field(default=1, ge=1)
    """Optimizer steps per pass: the batch's groups are split into as many parts."""
    importance_correction: Literal["none", "token", "sequence"] = "none"
    """Weigh advantages by exp(logp_old - logp_gen), per token or per response, for a sampler that differs from the
    trainer."""
    importance_cap: float = Field(default=2.0, gt=0)
    """Upper bound of that weight."""


class TrainingConfig(UpdateSettings):
    """The `training` table of the kinds that learn from examples: passes, batches, and the trainer's settings."""

    epochs: int = Field(default=1, ge=1)
    """Passes over the examples, each in another order."""
    batch_size: int = Field(default=16, ge=1)
    """Examples of one optimizer step; the last step of a pass takes what is left."""

    @property
    def settings(self) -> OptimizerSettings:
        """What the trainer is given: one update per batch."""
        return OptimizerSettings(**{key: getattr(self, key) for key in UpdateSettings.model_fields})


class OptimizerTable(NamedTuple):
    """An `optimizer` table taken apart."""

    settings: OptimizerSettings
    use: str
    """Name of the component."""
    options: dict[str, Any]
    """The component's own options."""


def split_optimizer_table(table: Mapping[str, Any], *, where: str = "optimizer") -> OptimizerTable:
    """The trainer's settings, the component's name and its options.

    Raises:
        ConfigError: `use` is missing.
        pydantic.ValidationError: a trainer's key has a wrong value; unknown keys are left to the component's model.
    """
    use = table.get("use")
    if not isinstance(use, str):
        raise ConfigError(f'{where}.use: no optimizer is named; found {use!r}. Add, for example, use = "grpo"')
    own = OptimizerSettings.model_fields
    settings = OptimizerSettings.model_validate({key: value for key, value in table.items() if key in own})
    options = {key: value for key, value in table.items() if key not in own and key != "use"}
    return OptimizerTable(settings, use, options)
