"""What a reward model is beside its weights: plain data that training writes and scoring reads (`reward_model.json`).

Third-party conventions are values of the same model, so that a folder without the file can be named with one of them.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal, cast

from pydantic import Field, ValidationError

from assay.component import Options
from assay.errors import ConfigError, did_you_mean
from assay.steps import SplitterOptions
from assay_prms.aggregate import Aggregation

FILE = "reward_model.json"
HEADS = "heads.safetensors"
SOURCE = "reward-model"
QUESTION = "Verification: Is the answer correct (Yes/No)?"
CRITIQUE = "Verification: Let's verify step by step."


class ScorerSpec(Options):
    """How a reward model reads a response and what it gives back."""

    kind: Literal["head", "vocabulary", "implicit", "generative", "critique"] = "head"
    """A head on hidden states; two ids of the vocabulary; log-ratios to a reference; the word Yes or No; the same word
    after a sampled critique."""
    at: Literal["steps", "end"] = "steps"
    """Whether each step's end is judged, or only the response's last token."""
    template: Literal["auto", "chat", "plain"] = "auto"
    """How prompts are rendered, as an engine renders them."""
    system: str | None = None
    """A system message that the model was trained with."""
    prompt_form: str | None = None
    """The prompt as a text in which `{problem}` stands for the last user message and `{bos}` for the tokenizer's first
    token, instead of a template."""
    splitter: SplitterOptions = SplitterOptions()
    marker: str | None = None
    """A single token behind each step, after which the step is judged; None judges after the step's own last token."""
    between: str = ""
    """With a marker: text before every step but the first."""
    score: Literal["probability", "raw"] = "probability"
    """Probability of good, in [0, 1]; or the raw number, which only ranks."""
    head_prefix: str = "reward."
    """Names of the head's tensors, in `heads.safetensors` or, where there is none, in the model's own file."""
    positive: str | None = None
    """`vocabulary`: the token that says good."""
    negative: str | None = None
    """`vocabulary`: the token that says bad."""
    yes: str = " Yes"
    """`generative`, `critique`: the one token that says right, its leading space included."""
    no: str = " No"
    """The one token that says wrong."""
    question: str = QUESTION
    """What stands between a solution, or a critique, and the verdict."""
    instruction: str = CRITIQUE
    """`critique`: what asks for the critique."""
    critiques: int = Field(default=4, ge=1)
    """`critique`: K, how many are drawn; the score is the mean of their p(yes)."""
    critique_tokens: int = Field(default=512, ge=1)
    """`critique`: longest critique; one that has not come to its verdict by then is no vote."""
    critique_temperature: float = Field(default=1.0, gt=0)
    """`critique`: sampling temperature."""
    beta: float = Field(default=0.05, gt=0)
    """`implicit`: factor of the log-ratio."""
    value: Literal["running", "step"] = "running"
    """`implicit`: a step's value is sigma(q) of all up to its end, or its own share of q."""
    reference: str | None = None
    """`implicit`: folder or hub id of the frozen reference."""
    aggregation: Aggregation = "min"
    """How step scores become the response's."""
    threshold: float | None = None
    """Steps from this score on are good, where it was fitted."""
    temperature: float = Field(default=1.0, gt=0)
    """Calibration: logits are divided by it."""
    tokenizer: str | None = None
    """The encoder's fingerprint; None is not checked (third-party folders)."""

    @property
    def value_range(self) -> tuple[float, float]:
        """Lowest and highest score of a step and of a response; 1e9 stands for no bound."""
        if self.is_raw:
            return -1e9, 1e9
        return 0.0, 1e9 if self.aggregation == "sum" else 1.0

    @property
    def is_raw(self) -> bool:
        """Whether scores only rank: they are no probabilities."""
        return self.score == "raw" or (self.kind == "implicit" and self.value == "step")


CONVENTIONS: dict[str, ScorerSpec] = {
    "qwen-math-prm": ScorerSpec(
        template="chat",
        system="Please reason step by step, and put your final answer within \\boxed{}.",
        marker="<extra_0>",
        head_prefix="score.",
        aggregation="product",
    ),
    "math-shepherd": ScorerSpec(
        kind="vocabulary",
        template="plain",
        prompt_form="{problem}",
        splitter=SplitterOptions(by="line"),
        marker="ки",
        between="\n",
        positive="+",
        negative="-",
        aggregation="min",
    ),
    "skywork-prm": ScorerSpec(
        template="plain",
        prompt_form="{bos}{problem}\n",
        splitter=SplitterOptions(by="line"),
        marker="\n",
        head_prefix="v_head.summary.",
        aggregation="mean",
    ),
}
"""Conventions of published process reward models, as their own inference code reads them: Qwen2.5-Math-PRM (two classes
at `<extra_0>`), Math-Shepherd (the ids of + and - at its tag), Skywork-o1-Open-PRM (a value head at newlines)."""


def read_spec(folder: Path, *, convention: str | None, changes: dict[str, Any]) -> ScorerSpec:
    """The description of the reward model in `folder`, with single values replaced.

    Raises:
        ConfigError: there is none and no convention is named; it belongs to another source; or a value is wrong.
    """
    file = folder / FILE
    if convention is not None:
        if convention not in CONVENTIONS:
            raise ConfigError(
                f"convention: no convention named {convention!r}; known: {', '.join(CONVENTIONS)}."
                f"{did_you_mean(convention, CONVENTIONS)}"
            )
        data = CONVENTIONS[convention].model_dump()
    elif file.is_file():
        data = _described(file)
    else:
        raise ConfigError(
            f"{folder}: no {FILE} in the folder says what kind of reward model it is; name a folder that "
            f'kind = "prm" wrote, or a convention: {", ".join(CONVENTIONS)}'
        )
    try:
        return ScorerSpec.model_validate({**data, **changes})
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise ConfigError(f"{file}: {where}: {first['msg']}; found {first.get('input')!r}"[:400]) from error


def _described(file: Path) -> dict[str, Any]:
    try:
        found: Any = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{file}: cannot be read: {error}") from error
    use = cast("dict[str, Any]", found).get("use") if isinstance(found, dict) else None
    if use != SOURCE:
        raise ConfigError(f"{file}: it describes a model of the source {use!r}; use that source with the same path")
    model: Any = cast("dict[str, Any]", found).get("model", {})
    if not isinstance(model, dict):
        raise ConfigError(f"{file}: model: a table is expected; found {type(model).__name__}")
    return cast("dict[str, Any]", model)


def written(spec: ScorerSpec) -> dict[str, Any]:
    """What is saved for this description."""
    return {"use": SOURCE, "options": {}, "format": 1, "model": spec.model_dump(mode="json")}
