"""What the trained model answers to one fixed prompt: written beside published weights, asked of who took them.

An engine that reads weights from files can take them in part only, silently: vLLM's stock reload on a CPU leaves the
old output layer in place where it is tied to the embeddings. The same greedy tokens with the same log-probs show that
it did not.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from assay.training.forward import causal_model

if TYPE_CHECKING:
    from assay.training.model import PolicyModel

FILE = "probe.json"
TEXT = "Name the largest of these numbers, then say why: 3, 17, 5."
PROMPT_TOKENS = 16
ANSWER_TOKENS = 8


def write_probe(policy: PolicyModel, folder: Path) -> None:
    """Write what `probe` gives into `folder`."""
    (folder / FILE).write_text(json.dumps(probe(policy)), encoding="utf-8")


def probe(policy: PolicyModel) -> dict[str, Any]:
    """The prompt's ids, the greedy answer's, their log-probs, and by how much each token led the second best."""
    prompt = [int(token) for token in policy.tokenizer(TEXT, add_special_tokens=False)["input_ids"]][:PROMPT_TOKENS]
    model: Any = causal_model(policy.model)  # an adapter is inside it; the wrapper's own forward would pass it by
    training = model.training
    model.eval()
    tokens: list[int] = []
    logprobs: list[float] = []
    margins: list[float] = []
    try:
        with torch.no_grad():
            ids = torch.tensor([prompt], device=policy.device)
            for _ in range(ANSWER_TOKENS):
                logits = model(input_ids=ids, use_cache=False).logits  # so few tokens need no cache
                logp = torch.log_softmax(logits[0, -1].float(), dim=-1)
                best = torch.topk(logp, 2)
                tokens.append(int(best.indices[0]))
                logprobs.append(float(best.values[0]))
                margins.append(float(best.values[0] - best.values[1]))
                ids = torch.cat([ids, best.indices[:1].view(1, 1)], dim=1)
    finally:
        model.train(training)
    return {
        "prompt_ids": prompt,
        "token_ids": tokens,
        "logprobs": logprobs,
        "margins": margins,
        "dtype": str(model.dtype).removeprefix("torch."),
    }
