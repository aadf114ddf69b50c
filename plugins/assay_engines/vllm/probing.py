"""Whether a server that took new weights answers as the trained model does."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from assay.errors import EngineError

FILE = "probe.json"
TOLERANCE = {"float32": 2e-3}
"""Largest difference of a log-prob by type of the weights; other kernels differ by 4e-5 in float32."""
COARSE = 0.25
"""The same for 16-bit weights."""


class Probe(BaseModel):
    """The trained model's greedy answer to one prompt, written beside the weights by the trainer."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    prompt_ids: tuple[int, ...]
    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    margins: tuple[float, ...]
    """By how much each token's log-prob led the second best's."""
    dtype: str


def read_probe(folder: Path) -> Probe | None:
    """The probe in a folder of weights, or None where whoever wrote them left none."""
    file = folder / FILE
    return Probe.model_validate(json.loads(file.read_text(encoding="utf-8"))) if file.is_file() else None


def compare(
    probe: Probe, tokens: Sequence[int], logprobs: Sequence[float], *, version: int, dtype: str | None = None
) -> None:
    """Raise `EngineError` where the server's greedy answer is not the trained model's.

    Comparing ends at the first token whose lead is so small that rounding may decide it.
    """
    tolerance = TOLERANCE.get(dtype or probe.dtype, COARSE) if probe.dtype == "float32" else COARSE
    for place, expected in enumerate(probe.token_ids):
        if place >= len(tokens):
            raise _differs(version, f"it ends after {len(tokens)} of {len(probe.token_ids)} tokens")
        close = abs(logprobs[place] - probe.logprobs[place]) <= tolerance
        other = tokens[place] != expected
        if not close or (other and probe.margins[place] > 2 * tolerance):
            raise _differs(
                version,
                f"token {place} is {tokens[place]} with log-prob {logprobs[place]:.4f} there and {expected} with "
                f"{probe.logprobs[place]:.4f} here",
            )
        if other:
            return


def _differs(version: int, how: str) -> EngineError:
    return EngineError(
        f"engine 'vllm': after version {version} was pushed the server does not answer the probe prompt as the trained "
        f"model does: {how}; it did not take all of the weights (an output layer tied to the embeddings is left behind "
        "by vLLM's stock reload); serve it with the plug-in assay-vllm, or untie the model"
    )
