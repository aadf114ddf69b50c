"""Folders to scorers: a folder that training wrote, or a published model by its convention."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from assay.component import BuildContext, Options
from assay.errors import ConfigError
from assay.protocols import RewardSource
from assay_prms.aggregate import Aggregation, Credit
from assay_prms.spec import CRITIQUE, FILE, HEADS, QUESTION, ScorerSpec, read_spec

if TYPE_CHECKING:
    from torch import Tensor

    from assay_prms.scoring import Scorer

WEIGHT_FILES = "*.safetensors"


class RewardModelOptions(Options):
    """A trained reward model, by its folder."""

    path: str = Field(min_length=1)
    """The folder: a checkpoint of `kind = "prm"`, or a published model with `convention`."""
    convention: Literal["qwen-math-prm", "math-shepherd", "skywork-prm"] | None = None
    """How a folder without `reward_model.json` is to be read."""
    aggregation: Aggregation | None = None
    """How step scores become the response's; None takes what was saved."""
    threshold: float | None = None
    """Steps from this score on are good; None takes what was saved."""
    temperature: float | None = Field(default=None, gt=0)
    """Calibration: logits are divided by it; None takes what was saved."""
    value: Literal["running", "step"] | None = None
    """Implicit models: what a step's score is; None takes what was saved."""
    reference: str | None = None
    """Implicit models: folder or hub id of the reference, where the saved one is elsewhere."""
    critiques: int | None = Field(default=None, ge=1)
    """Generative models with critique: how many are drawn; None takes what was saved."""
    credit: Credit = "none"
    """What steps are paid: `none` gives scores; `min` resists padding; `sum` and `final` as their names say."""
    floor: float = Field(default=-20.0, lt=0)
    """The least raw score (Bradley-Terry, PQM, shares of implicit models). Lower ones count as it, and so do empty and
    cut-off responses where the entry has no `on_candidate_fault`."""
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    """Type of the weights."""
    token_budget: int = Field(default=4096, ge=1)
    """Tokens per forward; one response always goes."""
    max_batch: int = Field(default=64, ge=1)
    """Responses that are judged together."""
    timeout_s: float = Field(default=300.0, gt=0)
    """Seconds for one batch."""


def build_reward_model(options: RewardModelOptions, context: BuildContext) -> RewardSource:
    """The source of a folder; raises `ConfigError` in one sentence for anything that does not fit."""
    from assay_prms.source import RewardModelSource

    folder = (context.base_dir / Path(options.path).expanduser()).resolve()
    if not folder.is_dir():
        raise ConfigError(f"path: there is no folder {options.path!r} (looked at {folder})")
    changes = {
        name: value
        for name in ("aggregation", "threshold", "temperature", "value", "reference", "critiques")
        if (value := getattr(options, name)) is not None
    }
    spec = read_spec(folder, convention=options.convention, changes=changes)
    scorer = load_scorer(folder, spec, context, dtype=options.dtype, token_budget=options.token_budget)
    return RewardModelSource(
        scorer, credit=options.credit, floor=options.floor, max_batch=options.max_batch, timeout_s=options.timeout_s,
        fingerprint=weights_hash(folder), device=None if context.device == "cpu" else context.device,
    )  # fmt: skip


def load_scorer(
    folder: Path, spec: ScorerSpec, context: BuildContext, *, dtype: str = "float32", token_budget: int = 4096
) -> Scorer:
    """The scorer in `folder`, its weights loaded.

    Raises:
        ConfigError: a file is missing, damaged, or belongs to another tokenizer.
    """
    try:
        from assay.training.model import load_policy
        from assay_prms.critique import scorer_of
    except ImportError as error:
        raise ConfigError(
            f"reward model {folder.name!r}: torch and transformers are missing ({error}); "
            "install them with: python -m pip install 'assay[train]'"
        ) from error
    policy = load_policy(str(folder), dtype=dtype, device=context.device, cache_dir=context.cache_dir)
    reference = None
    if spec.kind == "implicit":
        if spec.reference is None:
            raise ConfigError(f"{folder / FILE}: an implicit reward model without its reference; name it by reference")
        try:
            reference = load_policy(
                spec.reference, dtype=dtype, device=context.device, cache_dir=context.cache_dir,
                base_dir=context.base_dir,
            )  # fmt: skip
        except ConfigError as error:
            raise ConfigError(f"reference: {error}; name where it is now: reference = ...") from error
    head = None
    if spec.kind == "head":
        from assay_prms.heads import ScoreHead

        head = ScoreHead.of(head_tensors(folder, spec.head_prefix), where=str(folder))
    return scorer_of(policy, spec, head=head, reference=reference, token_budget=token_budget)


def head_tensors(folder: Path, prefix: str) -> dict[str, Tensor]:
    """The tensors whose names begin with `prefix`, without it, from `heads.safetensors` or the model's own files."""
    from safetensors import SafetensorError, safe_open

    files = [folder / HEADS] if (folder / HEADS).is_file() else sorted(folder.glob(WEIGHT_FILES))
    found: dict[str, Any] = {}
    for file in files:
        try:
            with safe_open(file, framework="pt") as handle:
                names = [name for name in handle.keys() if name.startswith(prefix)]  # noqa: SIM118  # not a mapping
                found |= {name.removeprefix(prefix): handle.get_tensor(name) for name in names}
        except (OSError, SafetensorError) as error:
            raise ConfigError(f"{file}: cannot be read: {error}") from error
    if not found:
        raise ConfigError(
            f"{folder}: no tensor named {prefix}... in {', '.join(file.name for file in files) or 'any file'}; "
            "this folder holds no such reward head"
        )
    return found


def weights_hash(folder: Path) -> str:
    """A hash of the description and of all weights in the folder."""
    digest = hashlib.sha256()
    for file in [folder / FILE, *sorted(folder.glob(WEIGHT_FILES))]:
        if file.is_file():
            with file.open("rb") as handle:
                digest.update(hashlib.file_digest(handle, "sha256").digest())
    return digest.hexdigest()[:16]


class VerifierOptions(Options):
    """A generative verifier behind an engine: critiques, and the share of them that end in yes."""

    engine: dict[str, Any]
    """The engine and its options, for example `{ use = "openai", base_url = "...", model = "..." }`."""
    critiques: int = Field(default=4, ge=1)
    """How many are drawn for each response."""
    critique_tokens: int = Field(default=512, ge=1)
    """Longest critique."""
    critique_temperature: float = Field(default=1.0, gt=0)
    """Sampling temperature."""
    instruction: str = CRITIQUE + " Then write: " + QUESTION + " Yes or No."
    """What asks for the critique."""
    question: str = QUESTION
    """What stands before the verdict."""
    timeout_s: float = Field(default=300.0, gt=0)
    """Seconds for one response."""


def build_verifier(options: VerifierOptions, context: BuildContext) -> RewardSource:
    """The source; raises `ConfigError` where no engine can be opened."""
    from assay_prms.critique import EngineVerifier

    given = dict(options.engine)
    use = given.pop("use", None)
    if not isinstance(use, str):
        raise ConfigError("engine: which engine is missing; write engine = { use = ..., ... }")
    if context.open_engine is None:
        raise ConfigError("engine: engines cannot be opened here; run the source inside assay")
    spec = ScorerSpec(
        kind="critique", at="end", critiques=options.critiques, critique_tokens=options.critique_tokens,
        critique_temperature=options.critique_temperature, instruction=options.instruction, question=options.question,
    )  # fmt: skip
    engine = context.open_engine(use, given)
    return EngineVerifier(engine, spec, timeout_s=options.timeout_s, name=f"{use} {sorted(given.items())!r}")
