"""What this package offers to assay; nothing heavy is imported before an engine is built."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from assay.component import BuildContext, Component, Options
from assay.errors import ConfigError
from assay.hookspecs import hookimpl
from assay.protocols import RolloutEngine
from assay_engines.openai import OpenAIEngine, OpenAIOptions
from assay_engines.stored import StoredOptions, build_stored
from assay_engines.vllm.options import VLLMOptions


class TransformersOptions(Options):
    """Options of the engine `transformers`."""

    model: str | None = None
    """Folder, hub id or embedded model to sample from; default: the policy that is trained, shared in memory."""
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    """Type of the weights; only read together with `model`."""
    max_rows: int = Field(default=32, ge=1)
    """Responses decoded at once; further ones wait and take the place of those that finish."""
    prefill_tokens: int = Field(default=512, ge=1)
    """Bound of new prompt tokens in one forward, padding included (one prompt always goes)."""
    template: Literal["auto", "chat", "plain"] = "auto"
    """How messages become a prompt: `chat` by the tokenizer's template, `plain` their texts joined by a blank line,
    `auto` the template where there is one."""
    packed: bool = True
    """Keep a copy of the weights that is laid out for decoding, where that helps (float32 on a CPU): a quarter to a
    third less time per step for as much memory as the weights."""
    ignore_end: bool = False
    """Go on after the end token until `max_new_tokens`; for benchmarks."""


def _build_transformers(options: TransformersOptions, context: BuildContext) -> RolloutEngine:
    try:
        from assay_engines.transformers.engine import TransformersEngine
    except ImportError as error:
        raise ConfigError(
            f"engine 'transformers': torch and transformers are missing ({error}); "
            "install them with: python -m pip install 'assay[train]'"
        ) from error
    policy = context.policy
    if options.model is not None:
        from assay.training.model import load_policy

        policy = load_policy(
            options.model,
            dtype=options.dtype,
            device=context.device,
            cache_dir=context.cache_dir,
            base_dir=context.base_dir,
        )
    if policy is None:
        raise ConfigError("engine 'transformers': there is no policy to sample from; set its option model")
    return TransformersEngine(
        policy,
        max_rows=options.max_rows,
        prefill_tokens=options.prefill_tokens,
        template=options.template,
        packed=options.packed,
        ignore_end=options.ignore_end,
    )


TRANSFORMERS: Component[Any, RolloutEngine] = Component(
    "transformers",
    TransformersOptions,
    _build_transformers,
    summary="samples in this process from the weights being trained",
    extra="train",
)


def _build_vllm(options: VLLMOptions, context: BuildContext) -> RolloutEngine:
    try:
        import httpx  # noqa: F401  # pyright: ignore[reportUnusedImport]  (asked for before a server is started)

        from assay_engines.vllm.build import build_engine
    except ImportError as error:
        raise ConfigError(
            f"engine 'vllm': a package is missing ({error}); install it with: python -m pip install 'assay[train,vllm]'"
        ) from error
    return build_engine(options, context)


VLLM: Component[Any, RolloutEngine] = Component(
    "vllm",
    VLLMOptions,
    _build_vllm,
    summary="samples on a vLLM server in its own process, which takes each new version of the weights",
    extra="vllm",
)


def _build_openai(options: OpenAIOptions, context: BuildContext) -> RolloutEngine:
    return OpenAIEngine(options, tokenizer=None if context.policy is None else context.policy.tokenizer)


OPENAI: Component[Any, RolloutEngine] = Component(
    "openai",
    OpenAIOptions,
    _build_openai,
    summary="samples from any OpenAI-compatible service; for judges and evaluation, with token ids off-policy too",
    extra="judge",
)


STORED: Component[Any, RolloutEngine] = Component(
    "stored",
    StoredOptions,
    build_stored,
    summary="rollouts of a run that is done, with the log-probs that made them: off-policy training, replay",
)


@hookimpl
def assay_rollout_engines() -> list[Component[Any, RolloutEngine]]:
    """Offer the engines of this package."""
    return [TRANSFORMERS, VLLM, OPENAI, STORED]
