"""The head, the loss and the scorer."""

# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from assay import Candidate, Limits, Verdict
from assay.contracts.tensors import Forward, LossReport
from assay.errors import ConfigError
from assay.protocols import Encoder, Example, ExampleTotals, Needs
from assay.training.encoder import TextEncoder
from assay.training.forward import TokenRow, response_forward
from assay.training.model import PolicyModel, load_policy


class Head(nn.Module):
    """One grade per state."""

    name = "grade"

    def bind(self, hidden_size: int) -> None:
        """Make the layer."""
        self.layer = nn.Linear(hidden_size, 1)

    def read(self, hidden: Tensor) -> Tensor:
        """(n, H) states to (n,) grades in [0, 1]."""
        return self.layer(hidden.float()).sigmoid().squeeze(-1)

    def after_step(self, batch: Any, metrics: Mapping[str, float]) -> Mapping[str, float]:
        """Nothing moves."""
        return {}


class Graded:
    """Mean over responses of (grade at the end token - reward)^2; a row has `prompt`, `response` and `reward`."""

    kind: Literal["sft", "preference", "prm"] = "prm"
    layout: Literal["pairs", "responses", "steps"] = "responses"
    needs = Needs(logp_old=False, states=True, logp=False)

    def __init__(self) -> None:
        self.sidecars = (Head(),)

    def read(self, row: Mapping[str, Any], encode: Encoder) -> Example:
        """One response and its grade; raises `ConfigError` for a grade outside [0, 1]."""
        if not isinstance(reward := row.get("reward"), int | float) or not 0 <= reward <= 1:
            raise ConfigError(f"column 'reward': a number from 0 to 1 is expected; found {reward!r}")
        return Example((encode(row["prompt"], row["response"]),), facts={"reward": float(reward)})

    def read_all(self, row: Mapping[str, Any], encode: Encoder) -> Sequence[Example]:
        """The one example of a row."""
        return (self.read(row, encode),)

    def prepare(self, examples: Sequence[Example]) -> Sequence[Example]:
        """The examples."""
        return examples

    def rescore(self, examples: Sequence[Example], logp: Tensor, reference: Tensor | None) -> Sequence[Example]:
        """The examples."""
        return examples

    def loss(
        self, examples: Sequence[Example], forward: Forward, reference: Tensor | None, *,
        totals: ExampleTotals | None = None,
    ) -> LossReport:  # fmt: skip
        """This slice's share of the mean."""
        read, ends = forward.extra["head_grade"], [len(example.sequences[0][1]) - 1 for example in examples]
        error = read[range(len(ends)), ends] - read.new_tensor([example.facts["reward"] for example in examples])
        return LossReport(error.square().sum() / (totals.examples if totals else len(examples)), {})

    def describe(self, policy: PolicyModel, reference: PolicyModel | None = None) -> dict[str, Any]:
        """What is saved: the source that reads the folder."""
        return {"use": "graded-reward", "options": {}}

    def source(self, policy: PolicyModel, reference: PolicyModel | None = None) -> "Grader":
        """The model in memory."""
        return Grader(policy, *self.sidecars)


class Grader:
    """The grade of each response."""

    limits = Limits(max_batch=32, timeout_s=120.0, memory_mib=None)

    def __init__(self, policy: PolicyModel, head: Head) -> None:
        self.model, self.read = policy.model, head.read
        self.encode = TextEncoder(policy.tokenizer, literal=True)

    async def judge(self, batch: Sequence[Candidate]) -> list[Verdict]:
        """One verdict per candidate, in order."""
        rows = [TokenRow(*self.encode(each.task.prompt, each.rollout.text)) for each in batch]
        with torch.inference_mode():
            read = response_forward(self.model, rows, heads={"grade": self.read}, logp=False).extra["head_grade"]
        return [Verdict.score(float(read[k, len(row.response) - 1])) for k, row in enumerate(rows)]

    async def aclose(self) -> None:
        """Nothing to close."""


def load(folder: Path) -> Grader:
    """The source of a folder that training wrote."""
    policy, head = load_policy(str(folder)), Head()
    head.bind(policy.model.get_output_embeddings().weight.shape[1])
    saved = load_file(folder / "heads.safetensors").items()
    head.load_state_dict({name.removeprefix("grade."): value for name, value in saved})
    return Grader(policy, head)
