"""A low-rank adapter on the policy, in place (extra `peft`)."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportMissingImports=false
from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import torch

from assay.config.training import LoraSettings
from assay.errors import ConfigError

if TYPE_CHECKING:
    from assay.training.model import PolicyModel


def add_adapter(policy: PolicyModel, settings: LoraSettings, *, seed: int = 0) -> None:
    """Freeze the policy and add an adapter that starts at zero effect; `policy.model` becomes the wrapped model.

    Layers are replaced inside the very same base model, so an engine that shares it samples from the adapted policy.
    With the adapter off (`model.disable_adapter()`) the model is the reference.

    Raises:
        ConfigError: `peft` is not installed.
    """
    try:
        import peft
    except ImportError as cause:
        raise ConfigError(
            "optimizer.lora: adapters need the package 'peft'; it is not installed. "
            "Install it with: python -m pip install 'assay[lora]'"
        ) from cause
    targets = settings.targets if isinstance(settings.targets, str) else list(settings.targets)
    config = peft.LoraConfig(
        r=settings.rank,
        lora_alpha=cast(Any, settings.alpha),
        target_modules=targets,
        lora_dropout=0.0,
        task_type="CAUSAL_LM",
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        policy.model = peft.get_peft_model(policy.model, config)
    policy.model.eval()


def merged_state(model: Any) -> dict[str, torch.Tensor]:
    """The state of the base model with the adapter's update added to its weights, under the base model's own names."""
    model.merge_adapter()
    try:
        return {
            name.replace(".base_layer", ""): tensor.detach().clone()
            for name, tensor in model.get_base_model().state_dict().items()
            if "lora_" not in name
        }
    finally:
        model.unmerge_adapter()
