"""The learning rate as a pure function of the optimizer step."""

from __future__ import annotations

import math

from assay.config.training import OptimizerSettings


def learning_rate_share(settings: OptimizerSettings, step: int, total_steps: int | None) -> float:
    """Share (0 to 1) of the learning rate at optimizer step `step` (from 0).

    Step k of a warm-up of w steps uses (k + 1) / (w + 1), so that the first step moves already and the step after the
    warm-up is the first at full size. Afterwards `linear` and `cosine` fall to `final_lr_share` at the last step;
    without a known number of steps they stay constant.
    """
    warmup = settings.warmup_steps
    if step < warmup:
        return (step + 1) / (warmup + 1)
    total = settings.total_steps or total_steps
    if settings.schedule == "constant" or total is None:
        return 1.0
    done = min(1.0, (step - warmup) / max(1, total - 1 - warmup))
    fall = 1 - done if settings.schedule == "linear" else (1 + math.cos(math.pi * done)) / 2
    return settings.final_lr_share + (1 - settings.final_lr_share) * fall
